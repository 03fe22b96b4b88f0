"""Chunks as files in a directory that many hosts share, over NFS or the like.

It uses the disk store's format without what that needs beside it: no lock, no ledger, no direct
I/O. Only this is assumed of the file system: a rename within one folder shows a whole file or none,
and bytes that were written before a file was closed are visible when another host opens it
afterwards. Folders may be listed late, clocks may differ, and any call may fail with ``ESTALE``
because another host has removed its file.
"""

from __future__ import annotations

import errno
import itertools
import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import TypeVar

from hexkv.adapters.local.files.files import (
    FileIO,
    chunk_error,
    in_time,
    make_file,
    open_frame,
    store_error,
)
from hexkv.adapters.local.files.layout import FOLDERS, MARKER, chunks_in, file_path
from hexkv.adapters.local.files.marker import Presence, check_format
from hexkv.adapters.local.files.nofollow import move, regular_size, remove, resolved
from hexkv.adapters.local.files.sweep import PART, Sweeper
from hexkv.ports import (
    ChunkKey,
    ChunkStore,
    Clock,
    ConfigError,
    Corrupt,
    Deadline,
    Entry,
    Failed,
    Item,
    Miss,
    ReadOutcome,
    SharedMedium,
    Sink,
    Stored,
    StoreError,
    SupportsFiles,
    SupportsRangeRead,
    SupportsScan,
    TimedOut,
    WriteOutcome,
)

T = TypeVar("T")

_PASSING = {errno.ESTALE, errno.EIO, errno.EINTR, errno.EAGAIN, errno.ENOENT}
"""Errors that often do not recur at a second try, which looks the name up anew.

``ENOENT`` is of an open file that another host has replaced, where files go by their names.
"""

_GONE = {errno.ESTALE, errno.ENOENT}
"""Errors that, seen twice, mean that another host has removed the file."""


class SharedFileStore:
    """One file per chunk, written beside its place and renamed into it.

    Any number of hosts and processes may use one directory, and none waits for another. If two
    write one chunk, the later rename stays. Nothing is synced, as on the disk tier.
    """

    def __init__(self, root: str | os.PathLike[str], clock: Clock, *, ttl: float | None) -> None:
        """Open *root*.

        Args:
            root: created if need be. Foreign files in it are left alone.
            clock: decides when to sweep.
            ttl: seconds after which a chunk that was not written again is removed.

        Raises:
            ConfigError: *root* is not a directory, or of another version's format.
            StoreFull, StoreUnreachable: it cannot be written to.
        """
        self._root = resolved(root)
        self._closed = False
        self._engine = secrets.token_hex(8)
        self._number = itertools.count()
        self._sweeper = Sweeper(self._root, clock, ttl)
        try:
            _join(self._root, f"{MARKER}.{self._engine}")
        except OSError as error:
            raise store_error(error, f"{self._root} cannot be used") from error
        self._presence = Presence(self._root, clock)
        self._io = FileIO("off", f"{self._root}/{MARKER}")

    @property
    def shared(self) -> bool:
        """True: other hosts may add and remove chunks at the same time."""
        return True

    def contains(self, keys: Sequence[ChunkKey], deadline: Deadline) -> Sequence[bool]:
        self._check_open()
        doing = f"looking into {self._root}"
        try:
            return [
                _unless_gone(partial(self._there, self._path(key)))
                for key in in_time(keys, deadline, doing)
            ]
        except OSError as error:
            raise store_error(error, doing) from error

    def read(
        self, keys: Sequence[ChunkKey], sink: Sink, deadline: Deadline
    ) -> Sequence[ReadOutcome]:
        return [
            self._read(lambda path, i=i: self._io.read(path, i, sink), key, deadline)  # type: ignore[misc]
            for i, key in enumerate(keys)
        ]

    def read_range(
        self, key: ChunkKey, start: int, into: memoryview, deadline: Deadline
    ) -> ReadOutcome:
        return self._read(lambda path: self._io.read_range(path, start, into), key, deadline)

    def write(self, items: Sequence[Item], deadline: Deadline) -> Sequence[WriteOutcome]:
        outcomes = [
            self._write(key, frame.nbytes, partial(_fill, frame), deadline) for key, frame in items
        ]
        self._sweeper.step()
        return outcomes

    def open_file(self, key: ChunkKey) -> int | None:
        self._check_open()
        try:
            return _again(partial(open_frame, self._path(key)))
        except OSError as error:
            if error.errno in _GONE:
                return None
            raise chunk_error(error, "reading", self._path(key)) from error

    def put_file(
        self, key: ChunkKey, size: int, fill: Callable[[int], None], deadline: Deadline
    ) -> WriteOutcome:
        outcome = self._write(key, size, fill, deadline)
        self._sweeper.step()
        return outcome

    def delete(self, keys: Sequence[ChunkKey], deadline: Deadline) -> Sequence[bool]:
        """Delete each chunk, even past the deadline: half a deletion is of no use."""
        del deadline
        self._check_open()
        try:
            return [_unless_gone(partial(remove, self._path(key))) for key in keys]
        except OSError as error:
            raise store_error(error, f"deleting from {self._root}") from error

    def scan(self) -> Iterator[Entry]:
        """Yield an entry for every chunk's file that this host can list by now.

        Raises:
            StoreUnreachable: a folder cannot be listed.
            StoreError: the store was closed before the end, so the list is incomplete.
        """
        for folder in range(FOLDERS):
            self._check_open()
            seen = set()
            try:
                # List a folder completely before yielding: a listing that breaks off is begun
                # again.
                entries = _again(lambda folder=folder: chunks_in(self._root, folder))  # type: ignore[misc]
            except OSError as error:
                raise store_error(error, f"listing {self._root}") from error
            for entry in entries:
                # A folder that changes while it is listed may name a file twice.
                if entry.key not in seen:
                    seen.add(entry.key)
                    yield entry

    def close(self) -> None:
        self._closed = True

    def _read(
        self, call: Callable[[str], ReadOutcome], key: ChunkKey, deadline: Deadline
    ) -> ReadOutcome:
        self._check_open()
        if deadline.expired:
            return TimedOut()
        path = self._path(key)
        try:
            outcome = _again(lambda: call(path))
            if outcome == Miss():
                self._presence.look()
            # Another host may have replaced the file after its size and before its bytes were read.
            return _again(lambda: call(path)) if isinstance(outcome, Corrupt) else outcome
        except OSError as error:
            if error.errno in _GONE:
                return Miss()
            return Failed(chunk_error(error, "reading", path))

    def _write(
        self, key: ChunkKey, size: int, fill: Callable[[int], None], deadline: Deadline
    ) -> WriteOutcome:
        self._check_open()
        if deadline.expired:
            return TimedOut()
        path = self._path(key)
        folder = os.path.dirname(path)
        # Beside its place: not every shared file system renames between folders in one step.
        part = f"{folder}/{PART}{self._engine}-{next(self._number)}"
        try:
            # No blocks are reserved: where a server cannot do that, the C library writes to each.
            try:
                make_file(part, size, fill, reserves=False)
            except FileNotFoundError:
                self._presence.make(folder, f"{MARKER}.{self._engine}")
                make_file(part, size, fill, reserves=False)
            _publish(part, path, size)
        except (OSError, StoreError) as error:
            with suppress(OSError):  # the sweep of any host removes it later
                remove(part)
            if isinstance(error, StoreError):
                return Failed(error)
            return Failed(chunk_error(error, "writing", path))
        return Stored(size)

    def _there(self, path: str) -> bool:
        try:
            return regular_size(path) is not None
        except PermissionError:  # of one folder, if not of the directory itself
            regular_size(f"{self._root}/{MARKER}")
            return False

    def _path(self, key: ChunkKey) -> str:
        return file_path(self._root, key)

    def _check_open(self) -> None:
        if self._closed:
            raise StoreError(f"the store of {self._root} is closed")


def _again(call: Callable[[], T]) -> T:
    """Return the result of *call*, and try once more if the first error may be transient."""
    try:
        return call()
    except OSError as error:
        if error.errno not in _PASSING:
            raise
    return call()


def _unless_gone(call: Callable[[], bool]) -> bool:
    """Call as :func:`_again`. False for a file that is stale twice: another host removed it."""
    try:
        return _again(call)
    except OSError as error:
        if error.errno in _GONE:
            return False
        raise


def _fill(frame: memoryview, file: int) -> None:
    done = 0
    while done < frame.nbytes:
        done += os.pwrite(file, frame[done:], done)


def _publish(part: str, path: str, size: int) -> None:
    """Rename a written file to its final name."""
    try:
        move(part, path)
    except OSError as error:
        # If a server renamed it but its answer was lost, the retry finds no such file.
        if error.errno not in (errno.ENOENT, errno.ESTALE) or _size(part) is not None:
            raise
        if _size(path) != size:
            raise


def _size(path: str) -> int | None:
    return _again(partial(regular_size, path))


def _join(root: str, aside: str) -> None:
    """Make the directory, and record its format unless that is done.

    Raises:
        ConfigError: it has another format, or is no directory.
        OSError: it cannot be written to.
    """
    try:
        os.makedirs(root, mode=0o700, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise ConfigError(f"{root} is not a directory") from error
    # Hosts that begin at once write the same, so the order of their renames does not matter.
    check_format(root, aside)


def _is_a_store(
    store: SharedFileStore,
) -> tuple[ChunkStore, SupportsScan, SupportsRangeRead, SharedMedium, SupportsFiles]:
    return store, store, store, store, store  # mypy checks here that it keeps the ports' promises
