"""Chunks as files, without the stores that keep them: for what is checked of such stores."""

import fcntl
import os
import resource
import shutil
from contextlib import contextmanager

from hexkv.contracts.store import Service


class Files:
    """The back door: the documented file layout, and nothing of the store."""

    def __init__(self, root):
        self.root = root

    def path(self, key):
        return self.root / key.hex()[32:34] / f"{key.hex()}.hexkv"

    def get(self, key):
        return self.path(key).read_bytes() if self.path(key).exists() else None

    def put(self, key, frame):
        self.path(key).parent.mkdir(exist_ok=True)
        self.path(key).write_bytes(frame)

    def put_zeros(self, key, size):
        """A sparse file: so many zeros that take no room."""
        self.put(key, b"")
        os.truncate(self.path(key), size)

    def keys(self):
        return {bytes.fromhex(path.stem) for path in self.root.glob("??/*.hexkv")}

    def aside(self):
        """The number of chunks in quarantine."""
        return len(list(self.root.glob("quarantine/*.hexkv")))


class File:
    """One file: written anew, published by its name, and read; all of it in one call each.

    Past the page cache where the store goes past it.
    """

    def __init__(self, path, *, direct):
        self.path = path
        self.direct = os.O_DIRECT if direct else 0

    def write(self, frame):
        aside = self.path.with_suffix(".new")
        with self._opened(aside, os.O_RDWR | os.O_CREAT) as file:
            assert os.pwrite(file, frame, 0) == len(frame)
        aside.replace(self.path)

    def read(self, into):
        with self._opened(self.path, os.O_RDONLY) as file:
            assert os.preadv(file, [into], 0) == len(into)

    @contextmanager
    def _opened(self, path, flags):
        try:
            file = os.open(path, flags | self.direct)
        except OSError:  # a file system without O_DIRECT, such as tmpfs
            file = os.open(path, flags)
        try:
            yield file
        finally:
            os.close(file)


class Folder(Service):
    """A directory that may be gone or full; and where it has a ledger, somebody may keep that.

    It is full as the kernel has it: this process's files are cut off at a size. And it is gone as
    when somebody unmounts it: another that the store makes there meanwhile is not the same.
    """

    can = frozenset({"full", "kill"})
    MOST = 256 << 10

    def __init__(self, root):
        self.root = root
        self.away = root.with_name(f"{root.name} elsewhere")
        self.ledger = root / ".hexkv-ledger"
        if self.ledger.exists():
            self.can |= {"stall"}

    def kill(self):
        self.root.rename(self.away)

    def start(self):
        while self.away.exists():
            try:
                self.away.rename(self.root)
            except OSError:  # the store is writing there
                shutil.rmtree(self.root, ignore_errors=True)

    def stall(self):
        self.file = os.open(self.ledger, os.O_RDWR)
        fcntl.flock(self.file, fcntl.LOCK_EX)

    def resume(self):
        os.close(self.file)

    def fill(self):
        self._limit(self.MOST)

    def mend(self):
        self._limit(resource.getrlimit(resource.RLIMIT_FSIZE)[1])

    @staticmethod
    def _limit(size):
        _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, most))


class Copy:
    """The limit of stores in memory: a copy there and back."""

    def write(self, frame):
        self.kept = bytes(frame)

    def read(self, into):
        into[:] = self.kept
