"""Files of a store, opened so that no link leads out of it, even one that is planted later.

A path here is the store's root, resolved when it was opened, then at most one folder, then a file.
Each call opens the folder itself, not the target of a link of that name, and names the file within
the folder that it has open: nothing is checked first and trusted afterwards. A user with write
access to the directories above the root decides where the root is; that is not guarded against.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from hexkv.ports import ConfigError

ABSENT = (FileNotFoundError, NotADirectoryError)
"""There is no such file, which is not a fault. A link to a folder is no directory."""

_FOLDER = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# With O_PATH, a file server is asked for the name only.
_ON_THE_WAY = _FOLDER | (os.O_PATH if sys.platform == "linux" else os.O_RDONLY)


def resolved(root: str | os.PathLike[str]) -> str:
    """Return the absolute path of *root*: it stays the same wherever the process changes to.

    Raises:
        ConfigError: no directory can have that name.
    """
    try:
        name = os.fsencode(root)
    except UnicodeEncodeError:
        name = b""
    if not name or b"\0" in name:
        raise ConfigError(f"{os.fspath(root)!r} is no directory's name")
    return os.path.realpath(root)


@contextmanager
def _folder_of(path: str) -> Iterator[tuple[int, str]]:
    """Yield a descriptor of the folder of *path*, and the file's name in it."""
    folder, _, name = path.rpartition("/")
    opened = os.open(folder, _ON_THE_WAY)
    try:
        yield opened, name
    finally:
        os.close(opened)


def open_file(path: str, flags: int, mode: int = 0o600) -> int:
    """Return a descriptor of the file itself.

    Raises:
        OSError: ``ELOOP`` if *path* is a link, ``ENOTDIR`` if its folder is.
    """
    with _folder_of(path) as (folder, name):
        return os.open(name, flags | os.O_CLOEXEC | os.O_NOFOLLOW, mode, dir_fd=folder)


def regular_size(path: str) -> int | None:
    """Return the bytes of a regular file; ``None`` if there is none."""
    try:
        with _folder_of(path) as (folder, name):
            found = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except ABSENT:
        return None
    return found.st_size if stat.S_ISREG(found.st_mode) else None


def remove(path: str) -> bool:
    """Remove a file. Return True if it existed."""
    try:
        with _folder_of(path) as (folder, name):
            os.unlink(name, dir_fd=folder)
    except ABSENT:
        return False
    return True


def move(path: str, to: str) -> None:
    """Rename a file, and replace any file of the new name."""
    with _folder_of(path) as (source, name), _folder_of(to) as (target, new):
        os.replace(name, new, src_dir_fd=source, dst_dir_fd=target)


@contextmanager
def listed(path: str) -> Iterator[list[os.DirEntry[str]]]:
    """Yield the entries of a directory; none if it does not exist, or is a link.

    The entries know the directory for as long as the block lasts; their ``path`` is their name.

    Raises:
        OSError: it cannot be listed.
    """
    try:
        folder = os.open(path, _FOLDER | os.O_RDONLY)
    except ABSENT:
        yield []
        return
    try:
        with os.scandir(folder) as entries:
            found = list(entries)
        yield found
    finally:
        os.close(folder)
