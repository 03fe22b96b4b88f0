"""Access from the cache by tokens to the cache by key, for hosts that name chunks themselves."""

from __future__ import annotations

from typing import Protocol

from hexkv.ports.announcing import Announcing
from hexkv.ports.chunk import KeySpace
from hexkv.ports.chunk_cache import ChunkCache
from hexkv.ports.keys import Namespace


class KeyedAccess(Protocol):
    """Access to the cache by key below a cache by tokens."""

    @property
    def chunks(self) -> ChunkCache:
        """The cache by key. It ends with this one."""
        ...

    @property
    def announcing(self) -> Announcing | None:
        """Announcements to the cache's other clients; ``None`` if it can have none."""
        ...

    def key_space(self, namespace: Namespace | None = None) -> KeySpace:
        """Return the keys of the chunks of *namespace*, by default this cache's own.

        Chunks under the same digests are the same chunks as this cache's own, if its chains
        are not seeded (``chunk.seeded: false``) and the host hashes tokens as it does.

        Raises:
            InvalidRequest: *namespace* is no namespace.
            ConfigError: its description is too long for a frame header.
        """
        ...
