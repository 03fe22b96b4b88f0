"""Cleaning a directory that many hosts share: a folder at a time, by whoever writes."""

from __future__ import annotations

import os
import secrets
from threading import Lock

from hexkv.adapters.local._files import NEW
from hexkv.adapters.local._layout import FOLDERS, folder_path, key_of
from hexkv.adapters.local._nofollow import listed, open_file, remove
from hexkv.ports import Clock

PART = ".hexkv-part-"
"""How the names of files begin that somebody is writing."""

PART_AGE = 3600.0
"""Seconds after which nobody writes such a file any more."""

_PAUSE = 10.0
"""Seconds between two folders: all of them in three quarters of an hour."""


class Sweeper:
    """Removes what the dead left half-written, and chunks that are older than they may be.

    Ages are told by one clock, the file server's: that of a file just written is now. A
    sweep that fails does no harm; another follows.
    """

    def __init__(self, root: str, clock: Clock, ttl: float | None) -> None:
        self._root = root
        self._clock = clock
        self._ttl = ttl
        self._lock = Lock()
        # Each host begins elsewhere, so that many do not do the same work.
        self._folder = secrets.randbelow(FOLDERS)
        self._next = clock.now()

    def step(self) -> None:
        """Sweep one folder, if it is time to."""
        with self._lock:
            if self._clock.now() < self._next:
                return
            self._next = self._clock.now() + _PAUSE
            folder, self._folder = self._folder, (self._folder + 1) % FOLDERS
        try:
            self.sweep(folder)
        except OSError:
            return  # what is wrong with the directory, its reads and writes will tell

    def sweep(self, folder: int) -> None:
        """Remove from one folder what is too old.

        Raises:
            OSError: it cannot be listed, or something in it cannot be removed.
        """
        path = folder_path(self._root, folder)
        with listed(path) as entries:
            now = self._server_time(path) if entries else 0.0
            for entry in entries:
                age = PART_AGE if entry.name.startswith(PART) else self._ttl
                if age is None or not (entry.name.startswith(PART) or key_of(entry.name)):
                    continue
                try:
                    found = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue
                if now - found.st_mtime > age:
                    remove(f"{path}/{entry.name}")

    def _server_time(self, path: str) -> float:
        probe = f"{path}/{PART}{secrets.token_hex(8)}"
        file = open_file(probe, NEW)
        try:
            os.write(file, b"\0")
            return os.fstat(file).st_mtime
        finally:
            os.close(file)
            remove(probe)
