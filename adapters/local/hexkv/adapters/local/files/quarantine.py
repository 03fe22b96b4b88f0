"""A bounded number of damaged files, kept apart from the chunks."""

from __future__ import annotations

import os

from hexkv.adapters.local.files.layout import key_of
from hexkv.adapters.local.files.nofollow import listed, move, regular_size, remove
from hexkv.ports import ConfigError


class Quarantine:
    """Keeps the newest damaged files.

    Their bytes do not count in the store's capacity, but have a bound of their own: the core has
    removed the chunk from its index before it is moved here, and would otherwise find the store
    full below its budget. It keeps no state: others may use the folder, too.
    """

    def __init__(self, path: str, max_files: int, max_bytes: int) -> None:
        """Adopt the files that exist already, and trim them to the bounds.

        Raises:
            ConfigError: a bound is negative.
            OSError: the directory cannot be listed or trimmed.
        """
        if max_files < 0 or max_bytes < 0:
            raise ConfigError("a quarantine cannot have fewer than 0 files or bytes")
        self._path = path
        self._max_files = max_files
        self._max_bytes = max_bytes
        self._trim(0, 0)

    def take(self, path: str) -> None:
        """Move the file at *path* in here, or remove it if the bounds allow none.

        Called by one thread at a time.

        Raises:
            OSError: it is still where it was.
        """
        name = os.path.basename(path)
        size = regular_size(path)
        if size is None or not self._max_files or size > self._max_bytes:
            remove(path)
            return
        remove(f"{self._path}/{name}")
        self._trim(1, size)
        os.makedirs(self._path, mode=0o700, exist_ok=True)
        move(path, f"{self._path}/{name}")

    def _trim(self, files: int, size: int) -> None:
        """Make room for *files* more files of *size* bytes together; remove the oldest first."""
        # A rename sets the time of change, so that is the order in which they were moved here.
        with listed(self._path) as entries:
            kept = [
                (found.st_ctime_ns, f"{self._path}/{entry.name}", found.st_size)
                for entry in entries
                if key_of(entry.name) is not None and entry.is_file(follow_symlinks=False)
                for found in [entry.stat(follow_symlinks=False)]
            ]
        files += len(kept)
        size += sum(it for _, _, it in kept)
        for _, path, its_size in sorted(kept):
            if files <= self._max_files and size <= self._max_bytes:
                break
            remove(path)
            files -= 1
            size -= its_size
