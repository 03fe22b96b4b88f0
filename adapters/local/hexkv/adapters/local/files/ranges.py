"""Files that are read range by range: open from the first range of a load to its last.

A layerwise load reads ten ranges of each of its files. To open and close a file for each range took
as many system calls as the rest of the load, and each call releases the interpreter's lock.
"""

from __future__ import annotations

import logging
import os
from threading import Condition, Lock, Thread

from hexkv.adapters.local.files.direct import REFUSALS, go_direct
from hexkv.adapters.local.files.files import FileIO, open_frame
from hexkv.plugins.file_store import close_read
from hexkv.ports import Corrupt, Hit, Miss, ReadOutcome

log = logging.getLogger(__name__)

_MOST = 128
"""Files that stay open. Those of larger loads are opened for each range."""

_IDLE = 2.0
"""Seconds after which an unread file is closed; twice as many at most."""


class _OpenFile:
    """A descriptor, and how many calls use it."""

    __slots__ = ("descriptor", "listed", "unused", "users")

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.users = 1
        self.listed = False
        """True while a next call may find it; else the last call that uses it closes it."""

        self.unused = False
        """True if no call has used it since the last sweep."""


class RangeFiles:
    """Reads ranges of files. Safe from any thread.

    A file is closed once its end was read, once it failed, once this store or another one has
    deleted or replaced it, and once it is not read further because the load was abandoned. A
    deleted file is not served from a descriptor that is still open: before each range the number of
    the file's links is checked, which costs less than a lookup of its name.

    Args:
        io: how files are read.
        most: how many stay open.
        idle: seconds, see the module.
    """

    def __init__(self, io: FileIO, *, most: int = _MOST, idle: float = _IDLE) -> None:
        self._io = io
        self._most = most
        self._idle = idle
        self._files: dict[tuple[str, bool], _OpenFile] = {}
        """By path and whether the descriptor bypasses the page cache: calls that need it otherwise
        may use the file at the same time."""

        self._changes = 0
        self._closed = False
        self._lock = Lock()
        self._ends = Condition(self._lock)
        self._sweeper: Thread | None = None

    @property
    def count(self) -> int:
        """The number of files that stay open for a next call."""
        return len(self._files)

    def read(self, path: str, start: int, into: memoryview) -> ReadOutcome:
        """Fill *into* with a file's bytes from *start* on.

        Raises:
            OSError: other than that there is no such file.
        """
        place = path, self._io.bypasses(into, start)
        found = self._take(place)
        if found is None:
            return Miss()
        file, size = found
        end, keep = start + into.nbytes, False
        try:
            got = self._io.fill(file.descriptor, into, start)
            keep = start + got == end < size
        finally:
            self._give(place, file, keep=keep)
        if start + got < end:
            return Corrupt(f"the file ended after {start + got} of {end} bytes")
        return Hit(got, size)

    def drop(self, path: str) -> None:
        """Forget a file whose path names another file now, or none."""
        with self._lock:
            self._changes += 1  # so a file that is being opened is not kept
            gone = [self._unlist(place) for place in ((path, False), (path, True))]
        _close(gone)

    def sweep(self) -> None:
        """Close the files that no call has used since the last sweep."""
        with self._lock:
            gone = [
                self._unlist(place) if file.unused and not file.users else None
                for place, file in list(self._files.items())
            ]
            for file in self._files.values():
                file.unused = True
        _close(gone)

    def close(self) -> None:
        """Close all files; those in use are closed when their calls end."""
        with self._lock:
            self._closed = True
            gone = [self._unlist(place) for place in list(self._files)]
            self._ends.notify_all()
        _close(gone)

    def _take(self, place: tuple[str, bool]) -> tuple[_OpenFile, int] | None:
        """Return the file, for one call, and its size; ``None`` if there is none."""
        with self._lock:
            changes = self._changes
            kept = self._files.get(place)
            if kept is not None:
                kept.users += 1
                kept.unused = False
        if kept is not None:
            links = 0
            try:
                found = os.fstat(kept.descriptor)
                links = found.st_nlink
            finally:
                if not links:
                    self._give(place, kept, keep=False)
            if links:
                return kept, found.st_size
        descriptor = open_frame(place[0])
        if descriptor is None:
            return None
        try:
            if place[1]:
                self._bypass(descriptor)
            size = os.fstat(descriptor).st_size
        except BaseException:
            close_read(descriptor)
            raise
        file = _OpenFile(descriptor)
        with self._lock:
            room = len(self._files) < self._most and place not in self._files
            if room and changes == self._changes and self._swept():
                self._files[place] = file
                file.listed = True
        return file, size

    def _bypass(self, descriptor: int) -> None:
        try:
            go_direct(descriptor)
        except OSError as error:
            if error.errno not in REFUSALS:
                raise
            self._io.refused(error)

    def _give(self, place: tuple[str, bool], file: _OpenFile, *, keep: bool) -> None:
        """End one call's use of *file*."""
        with self._lock:
            file.users -= 1
            if not keep and self._files.get(place) is file:
                self._unlist(place)
            over = not (file.listed or file.users)
        if over:
            close_read(file.descriptor)

    def _unlist(self, place: tuple[str, bool]) -> int | None:
        """Remove a file from the list. Return its descriptor if the caller must close it."""
        file = self._files.pop(place, None)
        if file is None:
            return None
        file.listed = False
        return None if file.users else file.descriptor

    def _swept(self) -> bool:
        """True if a sweeper thread closes the files that are left open. Called under the lock."""
        if self._closed:
            return False
        if self._sweeper is None:
            sweeper = Thread(target=self._run, name="hexkv open files", daemon=True)
            try:
                sweeper.start()
            except RuntimeError:  # the system refuses a thread, or Python ends
                return False
            self._sweeper = sweeper
        return True

    def _run(self) -> None:
        """Sweep for as long as files are open."""
        while True:
            with self._lock:
                self._ends.wait_for(lambda: self._closed, self._idle)
                if self._closed or not self._files:
                    self._sweeper = None
                    return
            self.sweep()


def _close(descriptors: list[int | None]) -> None:
    for descriptor in descriptors:
        if descriptor is not None:
            close_read(descriptor)
