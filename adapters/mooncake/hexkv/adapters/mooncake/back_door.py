"""Mooncake's objects without the store: for contracts, which must not ask what they check."""

from __future__ import annotations

from hexkv.adapters.mooncake._native import Client, error_of
from hexkv.adapters.mooncake._objects import EMPTY, name_of
from hexkv.ports import ChunkKey, StoreError


class BackDoor:
    """A client of its own, and its calls for bytes; the objects are those of *prefix*."""

    def __init__(self, client: Client, prefix: str) -> None:
        self._client = client
        self._prefix = prefix

    def get(self, key: ChunkKey) -> bytes | None:
        """The frame of *key*, as a node has it."""
        frame = self._client.get(name_of(self._prefix, key))
        # The library gives no bytes for what is not there.
        return None if not frame else b"" if frame == EMPTY else frame

    def put(self, key: ChunkKey, frame: bytes) -> None:
        """Make a node hold *frame*, in place of what any of them held."""
        name = name_of(self._prefix, key)
        self._client.batch_remove([name], True)
        if code := self._client.put(name, frame or EMPTY):
            raise error_of(code)

    def keys(self) -> set[ChunkKey]:
        """Nothing: a client cannot ask for names that it does not know."""
        raise StoreError("mooncake: a client cannot list what is stored")

    def close(self) -> None:
        """Leave the store."""
        self._client.close()
