"""Chunks in files that NIXL reads and writes: its plug-ins POSIX, GDS and GDS_MT.

The store of files below decides about paths and publishing; it can also open the directory
without NIXL.
"""

from __future__ import annotations

import fcntl
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from hexkv.adapters.net.errors import OutOfTime
from hexkv.adapters.nixl.storage.mover import Fetch, Mover, NixlRange
from hexkv.adapters.nixl.storage.staging import Slot
from hexkv.plugins.file_store import FileStore, OverFiles, close_read
from hexkv.ports import (
    PAGE,
    ChunkKey,
    ChunkStore,
    Corrupt,
    Deadline,
    Failed,
    Hit,
    Item,
    Miss,
    ReadOutcome,
    Reason,
    Sink,
    StoreError,
    StoreUnreachable,
    SupportsQuarantine,
    SupportsRangeRead,
    SupportsScan,
    TimedOut,
    WriteOutcome,
)


class _Open:
    """A file descriptor of our own, open until the end of its transfer."""

    def __init__(self, file: int, size: int) -> None:
        self.file = file
        self.size = _size_of(file)
        if size % PAGE == 0 and sys.platform == "linux":
            # Other sizes go through the page cache, and on some file systems all do.
            with suppress(OSError):
                flags = fcntl.fcntl(file, fcntl.F_GETFL)
                fcntl.fcntl(file, fcntl.F_SETFL, flags | os.O_DIRECT)

    def release(self) -> None:
        close_read(self.file)


def _size_of(file: int) -> int:
    """Return the bytes of an open file, which is closed if it has no answer.

    Raises:
        OSError: the call fails.
    """
    try:
        return os.fstat(file).st_size
    except BaseException:
        close_read(file)
        raise


class _Coming:
    """A frame, or a part of one, on its way to the caller's memory."""

    def __init__(self, at: int, file: int, start: int, into: memoryview) -> None:
        self.at = at
        self.file = file
        self.start = start
        self.into = into
        self.fetch: Fetch | None = None

    def leave(self) -> None:
        """Give up waiting for it."""
        if self.fetch is not None:
            self.fetch.leave()


class NixlFileStore(OverFiles):
    """A store of files whose bytes NIXL moves. Safe from any thread.

    Args:
        files: the store of the files; closed with this.
        mover: with a plug-in for files; closed with this.
    """

    def __init__(self, files: FileStore, mover: Mover) -> None:
        super().__init__(files)
        self._mover = mover

    def read(
        self, keys: Sequence[ChunkKey], sink: Sink, deadline: Deadline
    ) -> Sequence[ReadOutcome]:
        outcomes: list[ReadOutcome] = []
        coming: list[_Coming] = []
        opened: _Coming | None = None

        def finish() -> None:
            it = coming.pop(0)
            outcomes[it.at] = self._copied(it, deadline)

        try:
            for i, key in enumerate(keys):
                found = self._room(i, key, sink, deadline)
                outcomes.append(TimedOut() if isinstance(found, _Coming) else found)
                if not isinstance(found, _Coming):
                    continue
                # It moves while this thread copies the one before, which takes as long. Waiting for
                # memory while holding some could deadlock with other calls that do.
                opened = found
                spare = self._mover.spare(found.into.nbytes, deadline) if coming else None
                if coming and spare is None:
                    finish()
                opened = None
                over = self._start(found, spare, deadline)
                if coming:
                    finish()
                if over is None:
                    coming.append(found)
                else:
                    outcomes[i] = over
            while coming:
                finish()
        finally:
            if opened is not None:
                close_read(opened.file)
            for it in coming:
                it.leave()
        return outcomes

    def read_range(
        self, key: ChunkKey, start: int, into: memoryview, deadline: Deadline
    ) -> ReadOutcome:
        file = self._opened(key, deadline)
        return file if not isinstance(file, int) else self._fill(file, start, into, deadline)

    def write(self, items: Sequence[Item], deadline: Deadline) -> Sequence[WriteOutcome]:
        return [self._write(key, frame, deadline) for key, frame in items]

    def close(self) -> None:
        self._mover.close()
        super().close()

    def _room(self, i: int, key: ChunkKey, sink: Sink, deadline: Deadline) -> _Coming | ReadOutcome:
        file = self._opened(key, deadline)
        if not isinstance(file, int):
            return file
        size = _size_of(file)
        try:
            into = sink.room(i, size)
        except BaseException:
            close_read(file)
            raise
        if into is None:
            close_read(file)
            return Miss(Reason.REFUSED)
        return _Coming(i, file, 0, into.cast("B"))

    def _opened(self, key: ChunkKey, deadline: Deadline) -> int | Miss | Failed | TimedOut:
        if deadline.expired:
            return TimedOut()
        try:
            file = self.files.open_file(key)
        except StoreError as error:
            return Failed(error)
        return Miss() if file is None else file

    def _fill(self, file: int, start: int, into: memoryview, deadline: Deadline) -> ReadOutcome:
        coming, whole = _Coming(0, file, start, into), _size_of(file)
        outcome = self._start(coming, None, deadline) or self._copied(coming, deadline)
        return replace(outcome, whole=whole) if isinstance(outcome, Hit) else outcome

    def _start(self, it: _Coming, spare: Slot | None, deadline: Deadline) -> ReadOutcome | None:
        """Start moving *it*; return its outcome if it has one already."""
        start, size = it.start, it.into.nbytes
        held = _Open(it.file, start | size)
        if (there := held.size) < start + size or not size:
            held.release()
            if spare is not None:
                spare.release()
            told = f"a file of {there} bytes, of which {size} from {start} on are wanted"
            return Corrupt(told) if there < start + size else Hit(0)
        place = NixlRange("FILE", it.file, start=start)
        try:
            it.fetch = self._mover.begin_fetch(place, size, deadline, [held], spare)
        except OutOfTime:
            return TimedOut()
        except StoreError as error:
            return Failed(error)
        return None

    def _copied(self, it: _Coming, deadline: Deadline) -> ReadOutcome:
        fetch, it.fetch = it.fetch, None
        if fetch is None:
            return TimedOut()
        try:
            with fetch.wait(deadline) as slot:
                it.into[:] = slot.view[: it.into.nbytes]
        except OutOfTime:
            return TimedOut()
        except StoreError as error:
            return Failed(error)
        return Hit(it.into.nbytes)

    def _write(self, key: ChunkKey, frame: memoryview, deadline: Deadline) -> WriteOutcome:
        late: list[OutOfTime] = []
        data, size = frame.cast("B"), frame.nbytes

        def fill(file: int) -> None:
            if not size:
                return
            # A descriptor of its own: a late transfer goes on in a file that is not published.
            held = _Open(os.dup(file), size)
            try:
                try:
                    slot = self._mover.stage(size, deadline)
                except BaseException:
                    held.release()
                    raise
                with slot:
                    slot.view[:] = data
                    self._mover.send(NixlRange("FILE", held.file), slot, size, deadline, [held])
            except OutOfTime as error:
                late.append(error)
                raise StoreUnreachable(str(error)) from error

        outcome = self.files.put_file(key, size, fill, deadline)
        return TimedOut() if late else outcome


def _is_a_store(
    store: NixlFileStore,
) -> tuple[ChunkStore, SupportsScan, SupportsQuarantine, SupportsRangeRead]:
    return store, store, store, store  # mypy checks here that it keeps the ports' promises
