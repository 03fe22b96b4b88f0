"""Chunks in files, which GPUs read directly where a driver can, and the host elsewhere.

The store of files below does everything else, and everything where no driver can: then this
is that store, and logs that once. A failed read is repeated by the host at once, so a
driver that turns out not to work costs a few reads.
"""

from __future__ import annotations

import errno
import logging
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from threading import Lock
from typing import Any, Protocol

from hexkv.adapters.gds.cufile import CuFileError
from hexkv.plugins.file_store import OF_ONE_FILE, FileStore, OverFiles, close_read
from hexkv.ports import (
    PAGE,
    ChunkKey,
    ChunkStore,
    Corrupt,
    Deadline,
    DeviceRange,
    Failed,
    Hit,
    Miss,
    ReadOutcome,
    Reason,
    StoreError,
    StoreUnreachable,
    SupportsDeviceRead,
    SupportsFiles,
    SupportsQuarantine,
    SupportsRangeRead,
    SupportsScan,
    TimedOut,
)

log = logging.getLogger(__name__)

_FAILURES = 3
"""Reads in a row that fail before the driver is given up."""

_NOTHING_NEW = {errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOSPC, errno.EDQUOT}
"""Errors of making a file in a directory whose files can be read all the same."""


class Driver(Protocol):
    """Reads a range of a file into the memory of a device."""

    @property
    def name(self) -> str:
        """The driver's name in the log."""
        ...

    def registered(self, file: int) -> AbstractContextManager[Any]:
        """See :meth:`hexkv.adapters.gds.cufile.CuFile.registered`."""
        ...

    def read(self, handle: Any, into: DeviceRange, start: int) -> int:
        """See :meth:`hexkv.adapters.gds.cufile.CuFile.read`."""
        ...

    def close(self) -> None:
        """Deregister everything."""
        ...


class GdsStore(OverFiles):
    """See the module's text. Safe from any thread.

    Args:
        files: where the files are; closed with this.
        root: their directory, for a trial.
        driver: opens the driver, or raises an ``OSError`` with the reason why there is none.
    """

    def __init__(self, files: FileStore, root: str, driver: Callable[[], Driver]) -> None:
        super().__init__(files)
        self._root = root
        self._driver: Driver | None = None
        self._failures = 0
        self._lock = Lock()
        try:
            self._driver = driver()
            self._try()
        except OSError as error:
            self._give_up(error)
        else:
            log.info("gds: frames in %s are read into devices by %s", root, self._driver.name)

    @property
    def reads_to_devices(self) -> bool:
        """True until the driver turns out not to work."""
        return self._driver is not None

    def read_to_device(
        self, key: ChunkKey, page: memoryview, into: DeviceRange, deadline: Deadline
    ) -> ReadOutcome:
        driver = self._driver
        if driver is None:
            return Miss(Reason.REFUSED)
        if deadline.expired:
            return TimedOut()
        try:
            file = self.files.open_file(key)
        except StoreError as error:
            return Failed(error)
        if file is None:
            return Miss()
        try:
            if os.fstat(file).st_size != len(page) + into.length:
                return Miss(Reason.REFUSED)
            got = os.preadv(file, [page], 0)
            if got == len(page) == PAGE:
                with _direct(file) as direct, driver.registered(direct) as handle:
                    got += driver.read(handle, into, PAGE)
        except CuFileError as error:
            return Failed(self._failed(error))
        except OSError as error:
            kind = StoreError if error.errno in OF_ONE_FILE else StoreUnreachable
            return Failed(kind(f"reading from {self._root}: {error.strerror}"))
        finally:
            close_read(file)
        self._failures = 0
        if got < len(page) + into.length:
            return Corrupt(f"the file ended after {got} of {len(page) + into.length} bytes")
        return Hit(got)

    def close(self) -> None:
        with self._lock:
            driver, self._driver = self._driver, None
        if driver is not None:
            driver.close()
        super().close()

    def _try(self) -> None:
        """Register a file of the directory: most errors show there.

        A full or read-only directory takes no file: then the first reads show them.
        """
        try:
            with tempfile.TemporaryFile(dir=self._root) as file:
                file.write(bytes(PAGE))
                file.flush()
                if self._driver is not None:
                    with _direct(file.fileno()) as direct, self._driver.registered(direct):
                        pass
        except OSError as error:
            if isinstance(error, CuFileError) or error.errno not in _NOTHING_NEW:
                raise

    def _failed(self, error: CuFileError) -> StoreUnreachable:
        with self._lock:
            self._failures += 1
            last = self._failures >= _FAILURES and self._driver is not None
        if last:
            self._give_up(error)
        return StoreUnreachable(f"gds: {error.strerror}")

    def _give_up(self, error: OSError) -> None:
        # Closed with the process: calls may be under way.
        self._driver = None
        log.warning(
            "gds: no way from %s into devices (%s): the host reads, as with disk",
            self._root,
            error.strerror or error,
        )


@contextmanager
def _direct(file: int) -> Iterator[int]:
    """Give a descriptor of an open *file* with flags that cuFile takes.

    cuFile answers 5019 to O_NOFOLLOW, O_NONBLOCK and O_TMPFILE, with which files are opened so
    that they can be checked, and F_SETFL cannot clear them.
    """
    direct = os.open(f"/proc/self/fd/{file}", os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC)
    try:
        yield direct
    finally:
        close_read(direct)


def _is_a_store(
    store: GdsStore,
) -> tuple[
    ChunkStore,
    SupportsScan,
    SupportsQuarantine,
    SupportsRangeRead,
    SupportsDeviceRead,
]:
    return store, store, store, store, store  # mypy checks here that it keeps the ports' promises


def _stands_on(files: FileStore) -> SupportsFiles:
    return files
