"""The way from the cache by tokens to the one by key, for hosts that name chunks themselves."""

from __future__ import annotations

from typing import Protocol

from hexkv.ports.announcing import Announcing
from hexkv.ports.chunk import KeySpace
from hexkv.ports.chunk_cache import ChunkCache
from hexkv.ports.keys import Namespace


class KeyedAccess(Protocol):
    """What a cache by tokens stands on."""

    @property
    def chunks(self) -> ChunkCache:
        """The cache by key. It ends with this one."""
        ...

    @property
    def announcing(self) -> Announcing | None:
        """Where chunks under way are announced to the cache's other clients, if it has any."""
        ...

    def key_space(self, namespace: Namespace | None = None) -> KeySpace:
        """Return where the chunks of *namespace*, by default this cache's own, lie among all keys.

        Chunks under the same digests are the same chunks as this cache's own, where its chains
        are not seeded (``chunk.seeded: false``) and the host hashes tokens as it does.

        Raises:
            InvalidRequest: that is no namespace.
            ConfigError: it is too long to describe.
        """
        ...
