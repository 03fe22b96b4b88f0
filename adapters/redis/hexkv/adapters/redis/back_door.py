"""A server's values without the store, for contracts, which must not use the store they check."""

from __future__ import annotations

import redis

from hexkv.ports import ChunkKey


class RedisDoor:
    """A plain client of a single server, for its keys that begin with *prefix*."""

    def __init__(self, client: redis.Redis, prefix: bytes) -> None:
        self._client = client
        self._prefix = prefix

    def get(self, key: ChunkKey) -> bytes | None:
        """The frame of *key*, as the server has it."""
        found = self._client.get(self._prefix + key)
        return found if isinstance(found, bytes) else None

    def put(self, key: ChunkKey, frame: bytes) -> None:
        """Store *frame* on the server."""
        self._client.set(self._prefix + key, frame)

    def keys(self) -> set[ChunkKey]:
        """Every key with the settings' prefix."""
        pattern = b"".join(b"\\" + bytes([byte]) for byte in self._prefix) + b"*"
        found = self._client.scan_iter(match=pattern, count=1000)
        return {ChunkKey(name.removeprefix(self._prefix)) for name in found}

    def close(self) -> None:
        """End the connection."""
        self._client.close()
