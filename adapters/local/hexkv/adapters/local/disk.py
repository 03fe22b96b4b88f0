"""Chunks as files: one frame each, in a directory that one engine owns."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from threading import Lock

from hexkv.adapters.local._directory import OwnedDirectory
from hexkv.adapters.local._files import (
    ABSENT,
    is_file,
    read_file,
    remove,
    store_error,
    write_file,
)
from hexkv.adapters.local._layout import chunks_in, file_path, parts_in
from hexkv.adapters.local._ledger import ByteLedger
from hexkv.adapters.local._quarantine import Quarantine
from hexkv.ports import (
    ChunkKey,
    ChunkStore,
    Deadline,
    Entry,
    Failed,
    Item,
    ReadOutcome,
    Sink,
    Stored,
    StoreError,
    StoreFull,
    TimedOut,
    WriteOutcome,
)

_STRIPES = 64


class DiskStore:
    """One file per chunk, written aside and renamed, so that a reader meets whole files only.

    Nothing is synced. A killed process loses nothing, for the page cache is the system's;
    after a power failure a file may be short or hold zeros, and the core, which verifies
    every frame, takes it for a damaged one. Syncing would make each write several times
    slower to save what can be computed again.

    A call that is under way when the store is closed ends in peace: the directory stays
    locked until then.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        capacity: int | None = None,
        quarantine_files: int = 16,
        quarantine_bytes: int = 256 << 20,
    ) -> None:
        """Open *root*, count what is there and remove what a dead process left half-written.

        Args:
            root: created if need be. Foreign files in it are left alone.
            capacity: bytes of all frames together, those being written included; ``None``
                for as many as the disk holds. Only what is written in place of another
                frame may exceed it, by that frame's size, until it is renamed.
            quarantine_files: how many damaged files are kept; 0 deletes them.
            quarantine_bytes: how many bytes they may have, on top of *capacity*.

        Raises:
            ConfigError: *root* is not a directory, or of another version's format.
            StoreBusy: another store has it open.
            StoreFull, StoreUnreachable: it cannot be written to.
        """
        self._lock = Lock()
        self._closed = False
        self._calls = 0
        self._number = itertools.count()
        # Renaming and counting go together, or two writers of one key could settle in
        # another order than their files.
        self._names = tuple(Lock() for _ in range(_STRIPES))
        self._ledger = ByteLedger(capacity)
        self._directory = OwnedDirectory(root)
        self._root = self._directory.path
        try:
            self._quarantine = Quarantine(
                f"{self._root}/quarantine", quarantine_files, quarantine_bytes
            )
            # The lock is ours, so whoever was writing these is dead.
            for path in parts_in(self._root):
                remove(path)
            for entry in chunks_in(self._root):
                self._ledger.found(entry.key, entry.size)
        except OSError as error:
            self._directory.release()
            raise store_error(error, f"{self._root} cannot be used") from error
        except BaseException:
            self._directory.release()
            raise

    @property
    def used_bytes(self) -> int:
        """Bytes of the frames that are readable."""
        return self._ledger.used

    def contains(self, keys: Sequence[ChunkKey], deadline: Deadline) -> Sequence[bool]:
        with self._call():
            try:
                return [not deadline.expired and is_file(self._path(key)) for key in keys]
            except OSError as error:
                raise store_error(error, f"looking into {self._root}") from error

    def read(
        self, keys: Sequence[ChunkKey], sink: Sink, deadline: Deadline
    ) -> Sequence[ReadOutcome]:
        with self._call():
            return [self._read(i, key, sink, deadline) for i, key in enumerate(keys)]

    def write(self, items: Sequence[Item], deadline: Deadline) -> Sequence[WriteOutcome]:
        with self._call():
            return [self._write(item, deadline) for item in items]

    def delete(self, keys: Sequence[ChunkKey], deadline: Deadline) -> Sequence[bool]:
        """Forget each chunk, the deadline notwithstanding: half a deletion helps nobody.

        Raises:
            StoreUnreachable: a file cannot be removed. The others are.
        """
        del deadline
        failure: OSError | None = None
        there = []
        with self._call():
            for key in keys:
                path = self._path(key)
                try:
                    with self._naming(key):
                        there.append(remove(path))
                        self._ledger.forget(key)
                except OSError as error:
                    failure = error
            if failure is not None:
                raise store_error(failure, f"deleting from {self._root}") from failure
        return there

    def scan(self) -> Iterator[Entry]:
        """Every chunk's file, as it is met; raises ``StoreUnreachable`` where none can be."""
        self._check_open()
        try:
            yield from chunks_in(self._root)
        except OSError as error:
            raise store_error(error, f"listing {self._root}") from error

    def quarantine(self, keys: Sequence[ChunkKey], deadline: Deadline) -> None:
        del deadline  # a rename each
        with self._call():
            for key in keys:
                path = self._path(key)
                with self._naming(key):
                    try:
                        self._quarantine.take(path)
                    except ABSENT:
                        pass
                    except OSError as error:
                        # Unreadable is what counts; keeping it would have been a courtesy.
                        try:
                            remove(path)
                        except OSError:
                            raise store_error(error, f"setting {path} aside") from error
                    self._ledger.forget(key)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            if not self._calls:
                self._directory.release()

    def _read(self, index: int, key: ChunkKey, sink: Sink, deadline: Deadline) -> ReadOutcome:
        if deadline.expired:
            return TimedOut()
        try:
            return read_file(self._path(key), partial(sink.room, index))
        except OSError as error:
            return Failed(store_error(error, f"reading from {self._root}"))

    def _write(self, item: Item, deadline: Deadline) -> WriteOutcome:
        if deadline.expired:
            return TimedOut()
        key, size = item.key, item.frame.nbytes
        path = self._path(key)
        try:
            self._ledger.reserve(key, size)
        except StoreFull as error:
            return Failed(error)
        aside = f"{path}.{os.getpid()}-{next(self._number)}.tmp"
        stored = False
        try:
            try:
                write_file(aside, item.frame)
            except FileNotFoundError:  # the first chunk in its folder
                os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
                write_file(aside, item.frame)
            with self._naming(key):
                os.replace(aside, path)
                self._ledger.settle(key, size)
            stored = True
            return Stored(size)
        except OSError as error:
            return Failed(store_error(error, f"writing to {self._root}"))
        finally:
            if not stored:
                with suppress(OSError):  # the next start removes what this one cannot
                    remove(aside)
                self._ledger.cancel(size)

    def _path(self, key: ChunkKey) -> str:
        return file_path(self._root, key)

    def _naming(self, key: ChunkKey) -> Lock:
        return self._names[key[-1] % _STRIPES]

    def _check_open(self) -> None:
        if self._closed:
            raise StoreError(f"the store of {self._root} is closed")

    @contextmanager
    def _call(self) -> Iterator[None]:
        """Keeps the directory ours for the length of a call."""
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


def _is_a_store(store: DiskStore) -> ChunkStore:
    return store  # mypy checks here that DiskStore keeps the port's promises
