"""Where a chunk's file lies, and which files are chunks.

::

    root/hexkv-format.json                 {"format": 1}
    root/.hexkv-lock                       held by the engine that uses the directory
    root/3f/<96 hex digits>.hexkv          one frame, named by its key
    root/3f/<name>.<pid>-<number>.tmp      a frame being written
    root/quarantine/<96 hex digits>.hexkv  a damaged frame, for a person to look at

The folders are named by the first byte of the chunk's digest. Anything else is foreign and
left alone.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from hexkv.ports import KEY_BYTES, NAMESPACE_BYTES, ChunkKey, Entry, InvalidRequest

_NAME = re.compile(rf"([0-9a-f]{{{2 * KEY_BYTES}}})\.hexkv")
_PART = re.compile(rf"{_NAME.pattern}\.\d+-\d+\.tmp")
_FOLDER = re.compile(r"[0-9a-f]{2}")


def file_name(key: ChunkKey) -> str:
    """The name of a chunk's file, in its folder and in quarantine.

    Raises:
        InvalidRequest: *key* has not the length of a key.
    """
    if len(key) != KEY_BYTES:
        raise InvalidRequest(f"a key of {len(key)} bytes, not {KEY_BYTES}")
    return f"{key.hex()}.hexkv"


def file_path(root: str, key: ChunkKey) -> str:
    """Where the chunk's file lies."""
    return f"{root}/{_folder(key)}/{file_name(key)}"


def chunks_in(root: str) -> Iterator[Entry]:
    """Every chunk's file under *root*.

    Raises:
        OSError: a folder cannot be listed. What vanishes meanwhile is passed over.
    """
    for folder, entry in _entries(root):
        match = _NAME.fullmatch(entry.name)
        if match is None:
            continue
        key = ChunkKey(bytes.fromhex(match[1]))
        if _folder(key) != folder:
            continue  # nobody would look for it here
        try:
            if entry.is_file(follow_symlinks=False):
                found = entry.stat(follow_symlinks=False)
                yield Entry(key, found.st_size, found.st_mtime)
        except FileNotFoundError:
            continue


def parts_in(root: str) -> Iterator[str]:
    """Paths of files that somebody was writing."""
    return (entry.path for _, entry in _entries(root) if _PART.fullmatch(entry.name))


def listed(path: str) -> list[os.DirEntry[str]]:
    """What a directory holds; nothing if it is not there."""
    try:
        with os.scandir(path) as entries:
            return list(entries)
    except FileNotFoundError:
        return []


def _folder(key: ChunkKey) -> str:
    return key[NAMESPACE_BYTES : NAMESPACE_BYTES + 1].hex()


def _entries(root: str) -> Iterator[tuple[str, os.DirEntry[str]]]:
    for folder in listed(root):
        if _FOLDER.fullmatch(folder.name) and folder.is_dir(follow_symlinks=False):
            for entry in listed(folder.path):
                yield folder.name, entry
