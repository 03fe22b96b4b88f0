"""For hosts that name chunks themselves: the keys of a namespace, and the cache by key."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from typing import NamedTuple, Protocol, cast

from hexkv.ports.chunk import ChunkSpec
from hexkv.ports.chunk_cache import ChunkCache
from hexkv.ports.errors import InvalidRequest
from hexkv.ports.keys import (
    DIGEST_BYTES,
    KEY_BYTES,
    ChunkKey,
    Namespace,
)
from hexkv.ports.layout import KVLayout
from hexkv.ports.outcomes import Reason
from hexkv.ports.peers.announcing import Announcing


class KeySpace(NamedTuple):
    """The keys of one namespace's chunks, for hosts that name chunks themselves.

    An engine returns one for a namespace (``key_space``).
    """

    identity: str
    """Canonical JSON of the namespace, as frames carry it."""

    prefix: bytes
    """The first ``NAMESPACE_BYTES`` bytes of every key of the namespace."""

    layout: KVLayout

    def spec(self, digest: bytes, tokens: int, position: int | None = None) -> ChunkSpec:
        """Return the spec of the chunk of *tokens* tokens that the host names *digest*.

        Raises:
            InvalidRequest: *digest* is not ``DIGEST_BYTES`` long, or *tokens* is less than one.
        """
        if len(digest) != DIGEST_BYTES or tokens < 1:
            raise InvalidRequest(
                f"a chunk of {tokens} tokens under a digest of {len(digest)} bytes,"
                f" not {DIGEST_BYTES}"
            )
        key = ChunkKey(self.prefix + digest)
        return ChunkSpec(key, self.identity, self.layout, tokens, position=position)

    def keys(self, digests: Sequence[bytes]) -> list[ChunkKey]:
        """Return the keys of the chunks that the host names *digests*.

        Raises:
            InvalidRequest: a digest is not ``DIGEST_BYTES`` long.
        """
        prefix = self.prefix
        keys = [prefix + digest for digest in digests]
        if any(size != KEY_BYTES for size in set(map(len, keys))):
            raise InvalidRequest(f"a digest has {DIGEST_BYTES} bytes")
        return cast("list[ChunkKey]", keys)

    def specs(self, digests: Sequence[bytes], tokens: int) -> list[ChunkSpec]:
        """Return the same as :meth:`spec` for many chunks of equal length, in a third of the time.

        Raises:
            InvalidRequest: as :meth:`spec`.
        """
        if tokens < 1:
            raise InvalidRequest(f"a chunk has at least one token, not {tokens}")
        same = repeat(self.identity), repeat(self.layout), repeat(tokens)
        return list(map(ChunkSpec, self.keys(digests), *same))


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

    def why_absent(self, key: ChunkKey) -> Reason | None:
        """Return why no tier would serve a chunk, as far as it is known without a query of a store.

        ``SLOWER`` if a tier holds it and the model computes it sooner.
        """
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
