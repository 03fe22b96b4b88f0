"""A bounded number of damaged files, out of the way."""

from __future__ import annotations

import os
from collections import OrderedDict
from threading import Lock

from hexkv.adapters.local._files import remove
from hexkv.adapters.local._layout import listed
from hexkv.ports import ConfigError


class Quarantine:
    """Keeps the newest damaged files.

    Their bytes are outside the store's capacity, within a bound of their own: the core has
    struck the chunk off its books by the time it comes here, and would else meet a full
    store below its budget.
    """

    def __init__(self, path: str, max_files: int, max_bytes: int) -> None:
        """Take over what is there already, and trim it to the bounds.

        Raises:
            ConfigError: a bound is negative.
            OSError: the directory cannot be listed or trimmed.
        """
        if max_files < 0 or max_bytes < 0:
            raise ConfigError("a quarantine cannot have fewer than 0 files or bytes")
        self._path = path
        self._max_files = max_files
        self._max_bytes = max_bytes
        self._lock = Lock()
        self._sizes: OrderedDict[str, int] = OrderedDict()  # oldest first
        self._bytes = 0
        # A rename sets the time of change, so that orders them by when they came.
        files = [(e.stat(follow_symlinks=False), e.name) for e in listed(path) if _ours(e)]
        for found, name in sorted(files, key=lambda file: (file[0].st_ctime_ns, file[1])):
            self._sizes[name] = found.st_size
            self._bytes += found.st_size
        self._trim(0, 0)

    def take(self, path: str) -> None:
        """Move the file at *path* in here, or remove it where there is no room at all.

        Raises:
            OSError: it is still where it was.
        """
        name = os.path.basename(path)
        with self._lock:
            size = os.lstat(path).st_size
            if not self._max_files or size > self._max_bytes:
                remove(path)
                return
            self._drop(name)
            self._trim(1, size)
            os.makedirs(self._path, mode=0o700, exist_ok=True)
            os.replace(path, f"{self._path}/{name}")
            self._sizes[name] = size
            self._bytes += size

    def _trim(self, files: int, size: int) -> None:
        """Make room for as many *files* of *size* bytes together."""
        while self._sizes and (
            len(self._sizes) + files > self._max_files or self._bytes + size > self._max_bytes
        ):
            self._drop(next(iter(self._sizes)))

    def _drop(self, name: str) -> None:
        if name in self._sizes:
            remove(f"{self._path}/{name}")
            self._bytes -= self._sizes.pop(name)


def _ours(entry: os.DirEntry[str]) -> bool:
    return entry.name.endswith(".hexkv") and entry.is_file(follow_symlinks=False)
