"""A server's values without the store: for contracts, which must not ask what they check."""

from __future__ import annotations

import redis

from hexkv.adapters.redis.address import Location
from hexkv.adapters.redis.plugin import RedisSettings
from hexkv.ports import ChunkKey

_PATIENCE = 10.0
"""Seconds after which a server that says nothing counts as gone."""


class BackDoor:
    """A plain client of the one server that *settings* name."""

    def __init__(self, settings: RedisSettings) -> None:
        location = Location.parse(settings.url)
        address = location.address
        self._prefix = settings.prefix.encode()
        self._client = redis.Redis(
            host=address.host,
            port=address.port,
            unix_socket_path=address.path or None,
            db=location.database,
            username=settings.username or None,
            password=settings.password.reveal() or None,
            socket_timeout=_PATIENCE,
            ssl=location.tls,
            ssl_ca_certs=settings.tls_authorities or None,
            ssl_certfile=settings.tls_certificate or None,
            ssl_keyfile=settings.tls_key or None,
            ssl_check_hostname=settings.tls_verify,
            ssl_cert_reqs="required" if settings.tls_verify else "none",
        )

    def get(self, key: ChunkKey) -> bytes | None:
        """The frame of *key*, as the server has it."""
        found = self._client.get(self._prefix + key)
        return found if isinstance(found, bytes) else None

    def put(self, key: ChunkKey, frame: bytes) -> None:
        """Make the server hold *frame*."""
        self._client.set(self._prefix + key, frame)

    def keys(self) -> set[ChunkKey]:
        """Every key with the settings' prefix."""
        pattern = b"".join(b"\\" + bytes([byte]) for byte in self._prefix) + b"*"
        found = self._client.scan_iter(match=pattern, count=1000)
        return {ChunkKey(name.removeprefix(self._prefix)) for name in found}

    def close(self) -> None:
        """End the connection."""
        self._client.close()
