"""The path of a chunk's file, and which files are chunks.

::

    root/hexkv-format.json                 {"format": 2}
    root/.hexkv-ledger                     bytes held and being written; its lock orders changes
    root/.hexkv-<16 hex digits>.lock       held by an engine that uses the directory
    root/writing/<16 hex>-<number>.tmp     a frame which that engine is writing
    root/3f/<96 hex digits>.hexkv          one frame, named by its key
    root/quarantine/<96 hex digits>.hexkv  a damaged frame, for a person to look at

The folders are named by the first byte of the chunk's digest. Anything else is foreign and left
alone.
"""

from __future__ import annotations

import re
from contextlib import suppress

from hexkv.adapters.local.files.nofollow import listed
from hexkv.ports import KEY_BYTES, NAMESPACE_BYTES, ChunkKey, Entry, InvalidRequest

FOLDERS = 256
"""The number of folders for chunks."""

MARKER = "hexkv-format.json"
LEDGER = ".hexkv-ledger"
WRITING = "writing"
QUARANTINE = "quarantine"

_NAME = re.compile(rf"([0-9a-f]{{{2 * KEY_BYTES}}})\.hexkv")
_LOCK = re.compile(r"\.hexkv-([0-9a-f]{16})\.lock")
_PART = re.compile(r"([0-9a-f]{16})-\d+\.tmp")


def file_name(key: ChunkKey) -> str:
    """Return the name of a chunk's file, in its folder and in quarantine.

    Raises:
        InvalidRequest: *key* has not the length of a key.
    """
    if len(key) != KEY_BYTES:
        raise InvalidRequest(f"a key of {len(key)} bytes, not {KEY_BYTES}")
    return f"{key.hex()}.hexkv"


def file_path(root: str, key: ChunkKey) -> str:
    """Return the path of the chunk's file."""
    name = file_name(key)
    return f"{folder_path(root, folder_of(key))}/{name}"


def key_of(name: str) -> ChunkKey | None:
    """Return the key in a chunk's file name; ``None`` if it is not a chunk's file name."""
    match = _NAME.fullmatch(name)
    return ChunkKey(bytes.fromhex(match[1])) if match else None


def folder_of(key: ChunkKey) -> int:
    """Return the number of the folder, of ``FOLDERS``, that holds the chunk's file."""
    return key[NAMESPACE_BYTES]


def folder_path(root: str, folder: int) -> str:
    """Return the path of that folder."""
    return f"{root}/{folder:02x}"


def chunks_in(root: str, folder: int) -> list[Entry]:
    """Return an entry for every chunk's file in one folder.

    Raises:
        OSError: the folder cannot be listed. Files that vanish during the listing are skipped.
    """
    found = []
    with listed(folder_path(root, folder)) as entries:
        for entry in entries:
            key = key_of(entry.name)
            if key is None or folder_of(key) != folder:
                continue  # no lookup searches for it here
            with suppress(FileNotFoundError):
                if entry.is_file(follow_symlinks=False):
                    file = entry.stat(follow_symlinks=False)
                    found.append(Entry(key, file.st_size, file.st_mtime))
    return found


def lock_path(root: str, engine: int) -> str:
    """Return the path of the file that the engine keeps locked while it uses the directory."""
    return f"{root}/.hexkv-{engine:016x}.lock"


def part_path(root: str, engine: int, number: int) -> str:
    """Return the path at which the engine writes frame *number* until it is whole."""
    return f"{root}/{WRITING}/{engine:016x}-{number}.tmp"


def locks_in(root: str) -> list[tuple[int, str]]:
    """Return the engines that use or used the directory, and the files that they lock."""
    return _of_engines(root, _LOCK)


def parts_in(root: str) -> list[tuple[int, str]]:
    """Return the engines and the files that they are or were writing."""
    return _of_engines(f"{root}/{WRITING}", _PART)


def _of_engines(path: str, name: re.Pattern[str]) -> list[tuple[int, str]]:
    with listed(path) as entries:
        return [
            (int(match[1], 16), f"{path}/{entry.name}")
            for entry in entries
            if (match := name.fullmatch(entry.name))
        ]
