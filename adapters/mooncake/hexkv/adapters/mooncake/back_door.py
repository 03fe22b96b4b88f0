"""Mooncake's objects without the store, for contracts, which must not use the store they check."""

from __future__ import annotations

from hexkv.adapters.mooncake._native import Client, error_of
from hexkv.adapters.mooncake._objects import EMPTY, name_of
from hexkv.ports import ChunkKey, StoreError


class MooncakeDoor:
    """A separate client, with its calls for bytes, for objects below *prefix*."""

    def __init__(self, client: Client, prefix: str) -> None:
        self._client = client
        self._prefix = prefix

    def get(self, key: ChunkKey) -> bytes | None:
        """The frame of *key*, as a node has it."""
        frame = self._client.get(name_of(self._prefix, key))
        # The library returns empty bytes for an absent object.
        return None if not frame else b"" if frame == EMPTY else frame

    def put(self, key: ChunkKey, frame: bytes) -> None:
        """Store *frame* on a node, replacing an earlier one."""
        name = name_of(self._prefix, key)
        self._client.batch_remove([name], True)
        if code := self._client.put(name, frame or EMPTY):
            raise error_of(code)

    def keys(self) -> set[ChunkKey]:
        """Always empty: a client cannot list names."""
        raise StoreError("mooncake: a client cannot list the stored objects")

    def close(self) -> None:
        """Disconnect."""
        self._client.close()
