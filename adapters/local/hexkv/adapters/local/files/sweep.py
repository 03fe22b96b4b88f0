"""Cleaning a directory that many hosts share: each writer sweeps one folder at a time."""

from __future__ import annotations

import os
import secrets
from threading import Lock

from hexkv.adapters.local.files.files import NEW
from hexkv.adapters.local.files.layout import FOLDERS, folder_path, key_of
from hexkv.adapters.local.files.nofollow import listed, open_file, remove
from hexkv.ports import Clock

PART = ".hexkv-part-"
"""Prefix of the names of files that are being written."""

PART_AGE = 3600.0
"""Seconds after which such a file is abandoned."""

_PAUSE = 10.0
"""Seconds between two folders: all of them in three quarters of an hour."""


class Sweeper:
    """Removes half-written files of dead processes, and chunks that are older than the limit.

    Ages are measured by one clock, the file server's: a file just written gives its present time. A
    sweep that fails does no harm; another follows.
    """

    def __init__(self, root: str, clock: Clock, ttl: float | None) -> None:
        self._root = root
        self._clock = clock
        self._ttl = ttl
        self._lock = Lock()
        # Each host begins at another folder, so that many do not do the same work.
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
            return  # reads and writes report the directory's faults

    def sweep(self, folder: int) -> None:
        """Remove the files that are too old from one folder.

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
