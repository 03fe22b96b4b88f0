"""Chunks as files: one frame each, in a directory that engines may share."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from threading import Lock

from hexkv.adapters.local.files.account import ByteAccount
from hexkv.adapters.local.files.directory import SharedDirectory
from hexkv.adapters.local.files.files import (
    Direct,
    FileIO,
    chunk_error,
    in_time,
    make_file,
    open_frame,
    store_error,
)
from hexkv.adapters.local.files.layout import FOLDERS, MARKER, QUARANTINE, chunks_in, file_path
from hexkv.adapters.local.files.marker import Presence
from hexkv.adapters.local.files.nofollow import move, regular_size, remove
from hexkv.adapters.local.files.quarantine import Quarantine
from hexkv.adapters.local.files.ranges import RangeFiles
from hexkv.ports import (
    ChunkKey,
    ChunkStore,
    Deadline,
    Entry,
    Failed,
    Item,
    Miss,
    ReadOutcome,
    Sink,
    Stored,
    StoreError,
    SupportsFiles,
    SupportsQuarantine,
    SupportsRangeRead,
    SupportsScan,
    TimedOut,
    WriteOutcome,
)

_ABSENT = Miss()


class DiskStore:
    """One file per chunk, written aside and renamed, so that a reader sees whole files only.

    Nothing is synced. A killed process loses nothing, for the page cache is the system's; after a
    power failure a file may be short or hold zeros, and the core, which verifies every frame,
    treats it as damaged. Syncing would make each write several times slower to save chunks that can
    be computed again.

    Opening takes as long for 100,000 chunks as for none. The first write that needs to know how
    full the directory is counts the files, some 2 microseconds each.

    A call that is under way when the store is closed runs to its end: the directory is left after
    it. A child made by ``fork`` cannot use its parent's store.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        capacity: int | None = None,
        direct: Direct = "auto",
        exclusive: bool = False,
        quarantine_files: int = 16,
        quarantine_bytes: int = 256 << 20,
    ) -> None:
        """Open *root*, and remove the half-written files of dead processes.

        Args:
            root: created if need be. Foreign files in it are left alone.
            capacity: bytes of all frames together, of all writers, those being written included;
                ``None`` for as many as the disk holds. Only a frame that replaces another may
                exceed it, by the other's size, until it is renamed.
            direct: whether frames bypass the page cache: ``auto`` if the file system can do that,
                ``on`` or fail, ``off`` never.
            exclusive: let no other store open *root* at the same time.
            quarantine_files: how many damaged files are kept; 0 deletes them.
            quarantine_bytes: how many bytes they may have, on top of *capacity*.

        Raises:
            ConfigError: *root* is not a directory, or of another version's format; or *direct* is
                ``on`` and the file system refuses.
            StoreBusy: another store has it to itself, or *exclusive* and another has it; or a
                stopped process has locked its ledger.
            StoreFull, StoreUnreachable: it cannot be written to.
        """
        self._lock = Lock()
        self._closed = False
        self._calls = 0
        self._number = itertools.count()
        self._directory = SharedDirectory(root, exclusive=exclusive)
        self._root = self._directory.path
        try:
            self._account = ByteAccount(self._directory, capacity)
            with self._directory.ledger.held():
                self._quarantine = Quarantine(
                    f"{self._root}/{QUARANTINE}", quarantine_files, quarantine_bytes
                )
            self._presence = Presence(self._root)
            self._io = FileIO(direct, f"{self._root}/{MARKER}")
            self._ranges = RangeFiles(self._io)
        except OSError as error:
            self._directory.release()
            raise store_error(error, f"{self._root} cannot be used") from error
        except BaseException:
            self._directory.release()
            raise

    @property
    def shared(self) -> bool:
        """True if other engines may add and remove chunks at the same time."""
        return not self._directory.exclusive

    def limit(self, size: int) -> None:
        self._account.limit(size)

    @property
    def direct(self) -> bool:
        """True if frames bypass the page cache, where their buffers are aligned."""
        return self._io.direct

    @property
    def used_bytes(self) -> int:
        """Bytes of the readable frames; counts the folders that are not counted yet.

        Raises:
            StoreBusy: another process has locked the directory's ledger.
            StoreUnreachable: the files cannot be counted.
        """
        with self._call():
            try:
                return self._account.used()
            except OSError as error:
                raise store_error(error, f"counting in {self._root}") from error

    def contains(self, keys: Sequence[ChunkKey], deadline: Deadline) -> Sequence[bool]:
        doing = f"looking into {self._root}"
        with self._call():
            try:
                return [self._there(key) for key in in_time(keys, deadline, doing)]
            except OSError as error:
                raise store_error(error, doing) from error

    def read(
        self, keys: Sequence[ChunkKey], sink: Sink, deadline: Deadline
    ) -> Sequence[ReadOutcome]:
        with self._call():
            return [self._read(i, key, sink, deadline) for i, key in enumerate(keys)]

    def read_range(
        self, key: ChunkKey, start: int, into: memoryview, deadline: Deadline
    ) -> ReadOutcome:
        with self._call():
            if deadline.expired:
                return TimedOut()
            try:
                return self._ranges.read(self._path(key), start, into)
            except OSError as error:
                return Failed(chunk_error(error, "reading", self._path(key)))

    def write(self, items: Sequence[Item], deadline: Deadline) -> Sequence[WriteOutcome]:
        with self._call():
            return [
                self._write(key, frame.nbytes, partial(self._io.write, frame=frame), deadline)
                for key, frame in items
            ]

    def open_file(self, key: ChunkKey) -> int | None:
        with self._call():
            try:
                return open_frame(self._path(key))
            except OSError as error:
                raise chunk_error(error, "reading", self._path(key)) from error

    def put_file(
        self, key: ChunkKey, size: int, fill: Callable[[int], None], deadline: Deadline
    ) -> WriteOutcome:
        with self._call():
            return self._write(key, size, lambda path: make_file(path, size, fill), deadline)

    def delete(self, keys: Sequence[ChunkKey], deadline: Deadline) -> Sequence[bool]:
        """Delete each chunk, even past the deadline: half a deletion is of no use.

        Raises:
            StoreUnreachable: a file cannot be removed. The others are.
            StoreBusy: another process had locked the directory's ledger until the deadline.
        """
        failure: OSError | None = None
        there = []
        with self._call():
            for key in keys:
                path = self._path(key)
                try:
                    with self._account.changing(key, deadline) as size:
                        there.append(size is not None and remove(path))
                except OSError as error:
                    failure = error
                self._ranges.drop(path)
            if failure is not None:
                raise store_error(failure, f"deleting from {self._root}") from failure
        return there

    def scan(self) -> Iterator[Entry]:
        """Yield an entry for every chunk's file, listing each folder when it is reached.

        Raises:
            StoreUnreachable: a folder cannot be listed.
            StoreError: the store was closed before the end, so the list is incomplete.
        """
        for folder in range(FOLDERS):
            self._check_open()
            try:
                yield from chunks_in(self._root, folder)
            except OSError as error:
                raise store_error(error, f"listing {self._root}") from error

    def quarantine(self, keys: Sequence[ChunkKey], deadline: Deadline) -> None:
        with self._call():
            for key in keys:
                path = self._path(key)
                try:
                    with self._account.changing(key, deadline) as size:
                        if size is not None:
                            self._set_aside(path)
                except OSError as error:
                    raise store_error(error, f"setting {path} aside") from error
                finally:
                    self._ranges.drop(path)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            if not self._calls:
                self._directory.release()
        self._ranges.close()

    def _there(self, key: ChunkKey) -> bool:
        """True if a chunk has a file. False if its folder cannot be searched, but others can.

        Raises:
            OSError: the directory itself cannot be searched.
        """
        try:
            return regular_size(self._path(key)) is not None
        except PermissionError:
            regular_size(f"{self._root}/{MARKER}")
            return False

    def _read(self, index: int, key: ChunkKey, sink: Sink, deadline: Deadline) -> ReadOutcome:
        if deadline.expired:
            return TimedOut()
        try:
            outcome = self._io.read(self._path(key), index, sink)
        except OSError as error:
            return Failed(chunk_error(error, "reading", self._path(key)))
        if outcome == _ABSENT:
            self._presence.look()
        return outcome

    def _write(
        self, key: ChunkKey, size: int, make: Callable[[str], None], deadline: Deadline
    ) -> WriteOutcome:
        if deadline.expired:
            return TimedOut()
        path = self._path(key)
        try:
            if not self._account.reserve(key, size, deadline):
                return TimedOut()
        except StoreError as error:
            return Failed(error)
        except OSError as error:
            return Failed(store_error(error, f"counting in {self._root}"))
        aside = self._directory.part(next(self._number))
        stored = False
        try:
            self._in_its_folder(aside, lambda: make(aside))
            with self._account.changing(key, deadline, settled=size):
                self._in_its_folder(path, lambda: move(aside, path))
                stored = True
            self._ranges.drop(path)
            return Stored(size)
        except StoreError as error:
            return Failed(error)
        except OSError as error:
            return Failed(chunk_error(error, "writing", path))
        finally:
            if not stored:
                with suppress(OSError):  # the next opener removes the rest
                    remove(aside)
                self._account.cancel(size)

    def _in_its_folder(self, path: str, act: Callable[[], None]) -> None:
        """Call *act*; if the folder of *path* is missing, make it and call again."""
        try:
            act()
        except FileNotFoundError:
            aside = f"{MARKER}.{self._directory.engine:x}"
            self._presence.make(os.path.dirname(path), aside)
            act()

    def _set_aside(self, path: str) -> None:
        try:
            self._quarantine.take(path)
        except OSError:
            # The chunk must become unreadable; to keep its file is optional.
            remove(path)

    def _path(self, key: ChunkKey) -> str:
        return file_path(self._root, key)

    def _check_open(self) -> None:
        if self._closed:
            raise StoreError(f"the store of {self._root} is closed")

    @contextmanager
    def _call(self) -> Iterator[None]:
        """Keeps the directory joined for the length of a call."""
        if self._directory.pid != os.getpid():
            raise StoreError(
                f"the store of {self._root} is of process {self._directory.pid}: "
                "a forked child must open its own"
            )
        with self._lock:
            self._check_open()
            self._calls += 1
        try:
            yield
        finally:
            with self._lock:
                self._calls -= 1
                if self._closed and not self._calls:
                    self._directory.release()


def _is_a_store(
    store: DiskStore,
) -> tuple[ChunkStore, SupportsScan, SupportsQuarantine, SupportsRangeRead, SupportsFiles]:
    return store, store, store, store, store  # mypy checks here that it keeps the ports' promises
