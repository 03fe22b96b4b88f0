"""The count of bytes that the engines of one directory hold: one page in a file, behind a lock.

The lock is the operating system's (flock), so a crash releases it, and it is held for moments only:
to read and change the count, together with the one file whose change it counts. The page is
little-endian::

    magic 8 | version 4 | changing 4 | folders counted 4 | engines 4 | bytes 8
    then for each engine: id 8 | bytes being written 8 | pid 4 | exclusive 4

Nothing in it outlives its writers: an engine counts anew if no other uses the directory, or if
another was killed in the middle of a change.
"""

from __future__ import annotations

import fcntl
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from struct import Struct
from threading import TIMEOUT_MAX, Lock
from typing import ClassVar, NamedTuple

from hexkv.adapters.local.files.nofollow import open_file
from hexkv.ports import PAGE, ConfigError, StoreBusy

_MAGIC = b"hexkvled"
_VERSION = 1
_HEAD = Struct("<8sIIIIq")
_ROW = Struct("<QqII")

_SHORTEST_PAUSE = 0.0002
_LONGEST_PAUSE = 0.001
"""Seconds between two attempts to lock the page; a running holder has it for less time."""

MOMENT = 0.05
"""Seconds to wait for the ledger after a deadline, where leaving work half done would be worse."""

ENGINES = (PAGE - _HEAD.size) // _ROW.size
"""How many engines one directory can have at a time."""


class EngineRow(NamedTuple):
    """An engine's row in the ledger."""

    pid: int
    exclusive: bool = False
    writing: int = 0
    """Bytes of the frames that it is writing at present."""


@dataclass(slots=True)
class Books:
    """The contents of the ledger."""

    used: int = 0
    """Bytes of the frames in the folders that are counted."""

    counted: int = 0
    """The number of folders that are counted: all below this number."""

    changing: bool = False
    """True while a file is being changed and the change has not been counted yet."""

    engines: dict[int, EngineRow] = field(default_factory=dict)

    @property
    def writing(self) -> int:
        """Bytes of the frames that are being written, by all engines."""
        return sum(row.writing for row in self.engines.values())

    def change(self, folder: int, difference: int) -> None:
        """Count *difference* more bytes in *folder*. A later count of it includes them anyway."""
        if folder < self.counted:
            self.used += difference

    def forget_count(self) -> None:
        """Let the folders be counted from the first on."""
        self.used = self.counted = 0
        self.changing = False

    def pack(self) -> bytes:
        """Return the page."""
        head = (_MAGIC, _VERSION, self.changing, self.counted, len(self.engines), self.used)
        rows = (
            _ROW.pack(engine, row.writing, row.pid, row.exclusive)
            for engine, row in self.engines.items()
        )
        return b"".join((_HEAD.pack(*head), *rows)).ljust(PAGE, b"\0")

    @classmethod
    def unpack(cls, page: bytes) -> Books:
        """Return the books in *page*; books with nothing counted if it is not one of ours."""
        if len(page) != PAGE:
            return cls()
        magic, version, changing, counted, engines, used = _HEAD.unpack_from(page)
        if (magic, version) != (_MAGIC, _VERSION) or engines > ENGINES:
            return cls()
        rows = _ROW.iter_unpack(page[_HEAD.size : _HEAD.size + engines * _ROW.size])
        found = {
            engine: EngineRow(pid, bool(exclusive), writing)
            for engine, writing, pid, exclusive in rows
        }
        return cls(used, counted, bool(changing), found)


class Ledger:
    """The file that keeps the books of one directory."""

    patience: ClassVar[float] = 3.0
    """Seconds that opening, closing and counting wait; others hold the books for moments only."""

    def __init__(self, path: str) -> None:
        """Open the ledger, new if there is none.

        Raises:
            ConfigError: something else has its name.
            OSError: it cannot be written to.
        """
        self._path = path
        self._file = open_file(path, os.O_RDWR | os.O_CREAT | os.O_NONBLOCK)
        found = os.fstat(self._file)
        if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
            os.close(self._file)
            raise ConfigError(f"{path} is no file of its own, and would be overwritten")
        self._lock = Lock()  # flock excludes open files only, not threads

    @contextmanager
    def held(self, patience: float | None = None) -> Iterator[Books]:
        """Hold the books alone until the block ends. Changes in them are written then.

        Args:
            patience: seconds to wait for another holder, for one that was stopped in that moment
                (SIGSTOP) never lets go; by default :attr:`patience`, for callers without a
                deadline.

        Raises:
            StoreBusy: another process held them all that time. Names the process.
            OSError: they cannot be read or written.
        """
        patience = min(self.patience if patience is None else patience, TIMEOUT_MAX)
        end = time.monotonic() + patience
        if not self._lock.acquire(timeout=patience):
            raise self._busy(patience)
        try:
            self._take(end, patience)
            try:
                page = os.pread(self._file, PAGE, 0)
                books = Books.unpack(page)
                if books.changing:
                    books.forget_count()  # the process that changed a file was killed
                try:
                    yield books
                finally:
                    if (changed := books.pack()) != page:
                        os.pwrite(self._file, changed, 0)
            finally:
                fcntl.flock(self._file, fcntl.LOCK_UN)
        finally:
            self._lock.release()

    def _take(self, end: float, patience: float) -> None:
        """Lock the file. The system call has no time limit, so try again and again."""
        pause = _SHORTEST_PAUSE
        while True:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                left = end - time.monotonic()
                if left <= 0:
                    raise self._busy(patience) from None
                time.sleep(min(pause, left))
                pause = min(2 * pause, _LONGEST_PAUSE)
            else:
                return

    def _busy(self, patience: float) -> StoreBusy:
        holder = _holder(os.fstat(self._file).st_ino)
        return StoreBusy(f"{self._path} was locked for {patience:.3g} s by process {holder}")

    def announce(self, books: Books) -> None:
        """Record, while the books are held, that a file is about to be changed.

        Raises:
            OSError: it cannot be written.
        """
        books.changing = True
        os.pwrite(self._file, books.pack(), 0)

    def close(self) -> None:
        """Close the file. The books are not held by now. Called once."""
        os.close(self._file)


def _holder(inode: int) -> str:
    """Return the id of the process that has a file locked; ``?`` if the kernel does not give it."""
    # proc(5): ordinal: FLOCK ADVISORY WRITE pid major:minor:inode start end
    with suppress(OSError), open("/proc/locks", encoding="ascii") as locks:
        for line in locks:
            fields = line.split()
            if fields[1] == "FLOCK" and fields[5].rpartition(":")[2] == str(inode):
                return fields[4]
    return "?"
