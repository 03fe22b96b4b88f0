"""Chunks in files that NIXL reads and writes: its plug-ins POSIX, GDS and GDS_MT.

Where files are and how they are published is the business of the store of files below, which
may as well open the directory without NIXL.
"""

from __future__ import annotations

import fcntl
import os
import sys
from collections.abc import Sequence
from contextlib import suppress

from hexkv.adapters.net.errors import OutOfTime
from hexkv.adapters.nixl.storage.mover import Mover, Place
from hexkv.plugins.filed import FileStore, OverFiles
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
    """A file of our own, open until no byte of it moves any more."""

    def __init__(self, file: int, size: int) -> None:
        self.file = file
        self.size = os.fstat(file).st_size
        if size % PAGE == 0 and sys.platform == "linux":
            # What is not made of pages goes through the cache; so does all on some file systems.
            with suppress(OSError):
                flags = fcntl.fcntl(file, fcntl.F_GETFL)
                fcntl.fcntl(file, fcntl.F_SETFL, flags | os.O_DIRECT)

    def release(self) -> None:
        os.close(self.file)


class NixlFileStore(OverFiles):
    """A store of files whose bytes NIXL moves. Safe from any thread.

    Args:
        files: where the files are; closed with this.
        mover: with a plug-in for files; likewise.
    """

    def __init__(self, files: FileStore, mover: Mover) -> None:
        super().__init__(files)
        self._mover = mover

    def read(
        self, keys: Sequence[ChunkKey], sink: Sink, deadline: Deadline
    ) -> Sequence[ReadOutcome]:
        return [self._whole(i, key, sink, deadline) for i, key in enumerate(keys)]

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

    def _whole(self, i: int, key: ChunkKey, sink: Sink, deadline: Deadline) -> ReadOutcome:
        file = self._opened(key, deadline)
        if not isinstance(file, int):
            return file
        try:
            into = sink.room(i, os.fstat(file).st_size)
        except BaseException:
            os.close(file)
            raise
        if into is None:
            os.close(file)
            return Miss(Reason.REFUSED)
        return self._fill(file, 0, into.cast("B"), deadline)

    def _opened(self, key: ChunkKey, deadline: Deadline) -> int | Miss | Failed | TimedOut:
        if deadline.expired:
            return TimedOut()
        try:
            file = self.files.open_file(key)
        except StoreError as error:
            return Failed(error)
        return Miss() if file is None else file

    def _fill(self, file: int, start: int, into: memoryview, deadline: Deadline) -> ReadOutcome:
        size = into.nbytes
        held = _Open(file, start | size)
        if (there := held.size) < start + size:
            held.release()
            return Corrupt(f"a file of {there} bytes, of which {size} from {start} on are wanted")
        if not size:
            held.release()
            return Hit(0)
        try:
            with self._mover.fetch(
                Place("FILE", file, start=start), size, deadline, [held]
            ) as slot:
                into[:] = slot.view[:size]
        except OutOfTime:
            return TimedOut()
        except StoreError as error:
            return Failed(error)
        return Hit(size)

    def _write(self, key: ChunkKey, frame: memoryview, deadline: Deadline) -> WriteOutcome:
        late: list[OutOfTime] = []
        data, size = frame.cast("B"), frame.nbytes

        def fill(file: int) -> None:
            if not size:
                return
            # Of its own, for what is late goes on in a file that nobody finds.
            held = _Open(os.dup(file), size)
            try:
                try:
                    slot = self._mover.stage(size, deadline)
                except BaseException:
                    held.release()
                    raise
                with slot:
                    slot.view[:] = data
                    self._mover.send(Place("FILE", held.file), slot, size, deadline, [held])
            except OutOfTime as error:
                late.append(error)
                raise StoreUnreachable(str(error)) from error

        outcome = self.files.put_file(key, size, fill, deadline)
        return TimedOut() if late else outcome


def _is_a_store(
    store: NixlFileStore,
) -> tuple[ChunkStore, SupportsScan, SupportsQuarantine, SupportsRangeRead]:
    return store, store, store, store  # mypy checks here that it keeps the ports' promises
