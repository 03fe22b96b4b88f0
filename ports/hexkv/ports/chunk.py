"""The description of a chunk: its key, and the facts that a frame's header records."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from typing import NamedTuple, cast

from hexkv.ports.errors import InvalidRequest
from hexkv.ports.keys import DIGEST_BYTES, KEY_BYTES, ChunkKey
from hexkv.ports.layout import KVLayout

RAW = "raw"
"""The serde of a payload that is plain layer-major KV."""


class ChunkSpec(NamedTuple):
    """Describes one chunk, wanted or present."""

    key: ChunkKey

    identity: str
    """Canonical JSON of the namespace, as frames carry it."""

    layout: KVLayout
    tokens: int

    serde: str = RAW
    """Name of the serde that encoded the payload."""

    position: int | None = None
    """Token position for which its keys are rotated; ``None`` if unknown."""

    @property
    def raw_bytes(self) -> int:
        """Bytes of the chunk before encoding."""
        return self.layout.chunk_bytes(self.tokens)


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
