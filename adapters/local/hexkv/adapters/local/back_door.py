"""A directory's frames without the store: for contracts, which must not ask what they check."""

from __future__ import annotations

from pathlib import Path

from hexkv.ports import ChunkKey


class BackDoor:
    """The documented layout of files, and nothing of the store."""

    def __init__(self, root: str) -> None:
        self._root = Path(root)

    def get(self, key: ChunkKey) -> bytes | None:
        """The frame of *key*, as its file has it."""
        path = self._path(key)
        return path.read_bytes() if path.exists() else None

    def put(self, key: ChunkKey, frame: bytes) -> None:
        """Make the file hold *frame*."""
        path = self._path(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(frame)

    def keys(self) -> set[ChunkKey]:
        """Of every file."""
        found = self._root.glob("??/*.hexkv")
        return {ChunkKey(bytes.fromhex(path.stem)) for path in found}

    def close(self) -> None:
        """Nothing is open."""

    def _path(self, key: ChunkKey) -> Path:
        name = key.hex()
        return self._root / name[32:34] / f"{name}.hexkv"
