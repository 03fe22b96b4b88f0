"""A directory's frames without the store: for contracts, which must not use what they check."""

from __future__ import annotations

from pathlib import Path

from hexkv.ports import ChunkKey


class FileDoor:
    """Reads and writes by the documented layout of files, without the store's code."""

    def __init__(self, root: str) -> None:
        self._root = Path(root)

    def get(self, key: ChunkKey) -> bytes | None:
        """Return the bytes of the chunk's file; ``None`` if there is none."""
        path = self._path(key)
        return path.read_bytes() if path.exists() else None

    def put(self, key: ChunkKey, frame: bytes) -> None:
        """Make the file hold *frame*."""
        path = self._path(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(frame)

    def keys(self) -> set[ChunkKey]:
        """Return the key of every file."""
        found = self._root.glob("??/*.hexkv")
        return {ChunkKey(bytes.fromhex(path.stem)) for path in found}

    def close(self) -> None:
        """Do nothing: no file is open."""

    def _path(self, key: ChunkKey) -> Path:
        name = key.hex()
        return self._root / name[32:34] / f"{name}.hexkv"
