"""A directory that engines share, or that one has to itself."""

from __future__ import annotations

import fcntl
import os
import secrets
from contextlib import suppress

from hexkv.adapters.local.files.files import NEW, store_error
from hexkv.adapters.local.files.layout import (
    LEDGER,
    WRITING,
    lock_path,
    locks_in,
    part_path,
    parts_in,
)
from hexkv.adapters.local.files.ledger import ENGINES, Books, EngineRow, Ledger
from hexkv.adapters.local.files.marker import check_format
from hexkv.adapters.local.files.nofollow import listed, open_file, remove, resolved
from hexkv.plugins.file_store import close_read
from hexkv.ports import ConfigError, HexKVError, StoreBusy

_LEAVING = 0.5
"""Seconds that leaving waits for the ledger. The next engine removes the rest."""


class SharedDirectory:
    """A directory that is created if need be, has a format that this version knows, and is joined.

    An engine lives as long as its lock file is locked. The lock is the operating system's (flock),
    so a crash releases it, and it holds across containers, where process ids mean nothing.
    """

    def __init__(self, root: str | os.PathLike[str], *, exclusive: bool = False) -> None:
        """Join *root*, and remove the half-written files of dead engines.

        Args:
            root: the directory.
            exclusive: refuse other engines until it is released.

        Raises:
            ConfigError: *root* is empty, not a directory, or of a format of another version; or
                another user owns it, or one of its folders is a link.
            StoreBusy: another engine has it to itself, or *exclusive* and another has it; or a
                stopped process has locked its ledger.
            StoreFull, StoreUnreachable: it cannot be written to.
        """
        self.path = resolved(root)
        self.engine = secrets.randbits(63)
        self.pid = os.getpid()
        self.exclusive = exclusive
        self._lock: int | None = None
        self._ledger: Ledger | None = None
        try:
            try:
                os.makedirs(self.path, mode=0o700, exist_ok=True)
                _check_owner(self.path)
                os.makedirs(f"{self.path}/{WRITING}", mode=0o700, exist_ok=True)
                self._ledger = Ledger(f"{self.path}/{LEDGER}")
                with self._ledger.held() as books:
                    check_format(self.path)
                    self._join(books)
            except (FileExistsError, NotADirectoryError) as error:
                raise ConfigError(f"{self.path} is not a directory") from error
            except OSError as error:
                raise store_error(error, f"{self.path} cannot be used") from error
        except HexKVError:
            self.release()
            raise

    @property
    def ledger(self) -> Ledger:
        """The ledger of this directory."""
        if self._ledger is None:
            raise ValueError(f"{self.path} was released")
        return self._ledger

    def part(self, number: int) -> str:
        """Return the path at which this engine writes frame *number* until it is whole."""
        return part_path(self.path, self.engine, number)

    def bury(self, books: Books) -> set[int]:
        """Remove the files and rows of dead engines. Return the living engines.

        Called while the ledger is held: an engine joins and leaves under that lock.

        Raises:
            OSError: something cannot be listed or removed.
        """
        living = living_engines(self.path)
        if self._lock is not None:
            living.add(self.engine)  # even if our lock file has been removed
        for engine, path in parts_in(self.path):
            if engine not in living:
                remove(path)
        for engine, path in locks_in(self.path):
            if engine not in living:
                remove(path)
        books.engines = {e: row for e, row in books.engines.items() if e in living}
        return living

    def release(self) -> None:
        """Leave. Calling it twice is allowed; in a forked child the parent stays joined."""
        lock, self._lock = self._lock, None
        ledger, self._ledger = self._ledger, None
        if ledger is not None and lock is not None and self.pid == os.getpid():
            # The next engine removes the rest.
            with suppress(OSError, StoreBusy), ledger.held(_LEAVING) as books:
                books.engines.pop(self.engine, None)
                remove(lock_path(self.path, self.engine))
                fcntl.flock(lock, fcntl.LOCK_UN)  # a forked child has the open file, too
        if lock is not None:
            os.close(lock)
        if ledger is not None:
            ledger.close()

    def _join(self, books: Books) -> None:
        living = self.bury(books)
        for engine in living:
            row = books.engines.get(engine)
            if self.exclusive or (row is not None and row.exclusive):
                raise StoreBusy(f"{self.path} is in use by process {row.pid if row else '?'}")
        if len(living) >= ENGINES:
            raise StoreBusy(f"{self.path} is in use by {len(living)} engines")
        if not living:
            books.forget_count()  # the files may have changed while no engine used them
        self._lock = open_file(lock_path(self.path, self.engine), NEW)
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        books.engines[self.engine] = EngineRow(self.pid, self.exclusive)


def _check_owner(root: str) -> None:
    """Refuse an owner other than root and us, and links: they decide which files we write."""
    owner = os.stat(root).st_uid
    if owner not in (0, os.geteuid()):
        raise ConfigError(f"{root} belongs to user {owner}, and not to the one that opens it")
    with listed(root) as entries:
        for entry in entries:
            if entry.is_symlink():
                raise ConfigError(f"{root}/{entry.name} is a link, and chunks do not leave {root}")


def living_engines(root: str) -> set[int]:
    """Engines that use the directory at present.

    Raises:
        OSError: it cannot be listed, or a lock cannot be tried.
    """
    living = set()
    for engine, path in locks_in(root):
        try:
            file = open_file(path, os.O_RDONLY | os.O_NONBLOCK)
        except FileNotFoundError:
            continue
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            living.add(engine)
        finally:
            close_read(file)
    return living
