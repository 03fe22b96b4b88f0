"""A directory that one store owns for as long as it is open."""

from __future__ import annotations

import fcntl
import json
import os

from hexkv.adapters.local._files import store_error
from hexkv.ports import ConfigError, HexKVError, StoreBusy

FORMAT = 1
_MARKER = "hexkv-format.json"
_LOCK = ".hexkv-lock"


class OwnedDirectory:
    """Created if need be, locked, and of a format that this version knows.

    The lock is the operating system's (flock), so that a crash gives it back.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        """Take ownership of *root*.

        Raises:
            ConfigError: *root* is empty, not a directory, or of a format of another version.
            StoreBusy: another store has it.
            StoreFull, StoreUnreachable: it cannot be written to.
        """
        if not os.fspath(root):
            raise ConfigError("a disk store needs the name of a directory")
        # Absolute, so that it stays the same one wherever the process goes.
        self.path = os.path.abspath(root)
        self._lock: int | None = None
        try:
            try:
                os.makedirs(self.path, mode=0o700, exist_ok=True)
                self._lock = self._take_lock()
                self._check_format()
            except (FileExistsError, NotADirectoryError) as error:
                raise ConfigError(f"{self.path} is not a directory") from error
            except OSError as error:
                raise store_error(error, f"{self.path} cannot be used") from error
        except HexKVError:
            self.release()
            raise

    def release(self) -> None:
        """Let others have it. Calling it twice is allowed."""
        lock, self._lock = self._lock, None
        if lock is not None:
            os.close(lock)

    def _take_lock(self) -> int:
        lock = os.open(f"{self.path}/{_LOCK}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(lock, 0)
            os.pwrite(lock, b"%d\n" % os.getpid(), 0)
        except BlockingIOError as error:
            holder = os.pread(lock, 20, 0).decode("ascii", "replace").strip()
            os.close(lock)
            raise StoreBusy(f"{self.path} is in use by process {holder or '?'}") from error
        except OSError:
            os.close(lock)
            raise
        return lock

    def _check_format(self) -> None:
        path = f"{self.path}/{_MARKER}"
        try:
            with open(path, "rb") as file:
                text = file.read(4096)
        except FileNotFoundError:
            self._write_marker(path)
            return
        try:
            found = json.loads(text)
        except ValueError:
            found = None
        if found != {"format": FORMAT}:
            raise ConfigError(
                f"{path} says {text[:80]!r}, but this version knows format {FORMAT} only; "
                "give the cache another directory or empty this one"
            )

    def _write_marker(self, path: str) -> None:
        aside = f"{path}.tmp"
        with open(aside, "wb") as file:
            file.write(json.dumps({"format": FORMAT}).encode() + b"\n")
            file.flush()
            # The one file that is synced: an empty marker would lock the next start out.
            os.fsync(file.fileno())
        os.replace(aside, path)
