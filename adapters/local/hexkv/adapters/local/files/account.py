"""The bytes that an engine may still write, while others write into the same directory."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Lock

from hexkv.adapters.local.files.directory import SharedDirectory
from hexkv.adapters.local.files.layout import FOLDERS, chunks_in, file_path, folder_of
from hexkv.adapters.local.files.ledger import MOMENT, Books, EngineRow
from hexkv.adapters.local.files.nofollow import regular_size
from hexkv.ports import ChunkKey, Deadline, StoreBusy, StoreFull

_RECOUNT_SECONDS = 60.0
"""How long a refusal trusts a count. Files that a person removed are noticed after this time."""

_COUNTED_AT_ONCE = 256
"""Files after which other threads and engines get a turn: half a millisecond."""


class ByteAccount:
    """Reserves room before a frame is written, and counts every change of a chunk's file.

    The folders are counted one by one, each under the lock, so that no file changes during it;
    changes in folders that are already counted are added. So a count is exact, yet only a writer
    that needs it waits for all of it.
    """

    def __init__(self, directory: SharedDirectory, capacity: int | None) -> None:
        self._directory = directory
        self._root = directory.path
        self._capacity = capacity
        self._lock = Lock()
        self._writing = 0
        self._counted_at: float | None = None

    def used(self) -> int:
        """Return the exact number of bytes of the readable frames.

        Raises:
            StoreBusy: another process has locked the ledger.
            OSError: the files cannot be counted.
        """
        while True:
            with self._directory.ledger.held() as books:
                if books.counted == FOLDERS:
                    return books.used
                self._count_on(books)

    def limit(self, capacity: int) -> None:
        """Change the capacity from the next reservation on."""
        self._capacity = capacity

    def reserve(self, key: ChunkKey, size: int, deadline: Deadline) -> bool:
        """Reserve *size* bytes for a frame of *key*. Return True once they are reserved.

        The chunk that they replace does not count. Every other frame that is being written counts
        in full, so the total stays within the capacity in whatever order the writes end. Return
        False if the deadline passes before the answer is known.

        Raises:
            StoreFull: they would exceed the capacity. Nothing is reserved.
            StoreBusy: another process had locked the ledger until the deadline.
            OSError: the files cannot be counted.
        """
        doubted = False
        while True:
            fits = False
            try:
                with self._directory.ledger.held(deadline.remaining()) as books:
                    if self._capacity is not None and books.counted < FOLDERS:
                        self._count_on(books)
                    elif self._room(books, key) >= size:
                        fits = True
                        self._add(size)
                        self._sign(books)
                    elif doubted:
                        raise StoreFull(
                            f"{size} bytes do not fit: {books.used} are stored and "
                            f"{self._being_written(books)} are being written, of {self._capacity}"
                        )
                    else:
                        doubted = True
                        self._doubt(books, deadline)
            except OSError:
                if fits:  # it fits, but the reservation could not be written
                    self._add(-size)
                raise
            if fits:
                return True
            if deadline.expired:
                return False

    def cancel(self, size: int) -> None:
        """Cancel a reservation of *size* bytes."""
        self._add(-size)
        # If this cannot be written now, the next change writes it.
        with suppress(OSError, StoreBusy), self._directory.ledger.held(MOMENT) as books:
            self._sign(books)

    @contextmanager
    def changing(self, key: ChunkKey, deadline: Deadline, settled: int = 0) -> Iterator[int | None]:
        """Count the block's change of the chunk's file, whether the block succeeds or fails.

        Yields the file's size, ``None`` if there is none.

        Args:
            key: the chunk.
            deadline: after it, wait for the ledger's lock for a moment at most.
            settled: bytes of a reservation that ends with the block, if it succeeds.

        Raises:
            StoreBusy: another process has locked the ledger. The block was not entered.
            OSError: the ledger cannot be written. If that was after the block, the next process
                that opens the ledger counts anew.
        """
        path = file_path(self._root, key)
        ledger = self._directory.ledger
        with ledger.held(max(deadline.remaining(), MOMENT)) as books:
            ledger.announce(books)
            before = regular_size(path)
            try:
                yield before
                self._add(-settled)
            finally:
                books.change(folder_of(key), (regular_size(path) or 0) - (before or 0))
                self._sign(books)
                books.changing = False

    def _room(self, books: Books, key: ChunkKey) -> float:
        """Return the bytes that may be written under *key* beside all that are being written."""
        if self._capacity is None:
            return math.inf
        there = regular_size(file_path(self._root, key)) or 0
        return self._capacity - books.used + there - self._being_written(books)

    def _being_written(self, books: Books) -> int:
        return books.writing - self._row(books).writing + self._writing

    def _doubt(self, books: Books, deadline: Deadline) -> None:
        """Drop the reservations of dead engines, and recount the files if due: before a refusal."""
        self._directory.bury(books)
        now = deadline.clock.now()
        if self._counted_at is None or now - self._counted_at >= _RECOUNT_SECONDS:
            self._counted_at = now
            books.forget_count()

    def _count_on(self, books: Books) -> None:
        files = 0
        while books.counted < FOLDERS and files < _COUNTED_AT_ONCE:
            sizes = [entry.size for entry in chunks_in(self._root, books.counted)]
            books.used += sum(sizes)
            books.counted += 1
            files += len(sizes)

    def _row(self, books: Books) -> EngineRow:
        empty = EngineRow(os.getpid(), self._directory.exclusive)
        return books.engines.get(self._directory.engine, empty)

    def _sign(self, books: Books) -> None:
        books.engines[self._directory.engine] = self._row(books)._replace(writing=self._writing)

    def _add(self, size: int) -> None:
        with self._lock:
            self._writing += size
