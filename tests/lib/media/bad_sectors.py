"""Files of which reads fail, as those of a bad sector do, or those that only others may read."""

from __future__ import annotations

import errno
import os

from media.chunk_files import Files


class BadSectors:
    """Has reads of the files of chunks fail, until they are written anew as other files.

    Under ``open``, which keeps each file's number from becoming another's.
    """

    def __init__(self, monkeypatch, error=errno.EIO):
        self.error = error
        self._open = []
        self._files = set()
        real = os.preadv

        def preadv(file, *rest):
            if self._files and _of(file) in self._files:
                raise OSError(self.error, os.strerror(self.error))
            return real(file, *rest)

        monkeypatch.setattr(os, "preadv", preadv)

    def __call__(self, root, key):
        """Spoil the file of a chunk in the store's directory *root*."""
        file = os.open(Files(root).path(key), os.O_RDONLY)
        self._open.append(file)
        self._files.add(_of(file))

    def close(self):
        """Let the files go."""
        for file in self._open:
            os.close(file)


_PATCH = """
import errno, os

_LIST, _real = os.environ["BAD_SECTORS"], os.preadv

def preadv(file, *rest):
    found = os.fstat(file)
    with open(_LIST) as bad:
        if f"{found.st_dev} {found.st_ino}" in bad.read().splitlines():
            raise OSError(errno.EIO, os.strerror(errno.EIO))
    return _real(file, *rest)

os.preadv = preadv
"""


class BadSectorsElsewhere:
    """The same for processes that are started with ``env``.

    Args:
        folder: an empty one, for what these processes read.
    """

    def __init__(self, folder):
        (folder / "sitecustomize.py").write_text(_PATCH)
        self._list = folder / "bad"
        self._list.write_text("")
        self._open = []
        self.env = {"PYTHONPATH": str(folder), "BAD_SECTORS": str(self._list)}

    def spoil(self, file):
        """Have reads of a file fail until another one has its name."""
        self._open.append(os.open(file, os.O_RDONLY))
        self._list.write_text("".join("{} {}\n".format(*_of(each)) for each in self._open))

    def close(self):
        """Let the files go."""
        for file in self._open:
            os.close(file)


def _of(file):
    found = os.fstat(file)
    return found.st_dev, found.st_ino
