"""The contract of keyed caches: in this process, behind a socket, or a double."""

from __future__ import annotations

from hexkv.contracts.chunk_cache._base import ChunkCacheCase
from hexkv.contracts.chunk_cache._holds import Holds
from hexkv.contracts.chunk_cache._keys import Keys
from hexkv.contracts.chunk_cache._windows import Windows
from hexkv.contracts.kit.whole import Whole

__all__ = ["ChunkCacheContract"]


class ChunkCacheContract(Keys, Holds, Windows, ChunkCacheCase, Whole):
    """Subclass this and give it the fixtures ``cache`` and ``ledger``.

    ``cache`` is an empty :class:`~hexkv.ports.ChunkCache` with room for at least 16 chunks of
    :data:`~hexkv.contracts.chunk_cache._base.LAYOUT` and ``TOKENS`` tokens, on tiers that
    keep every chunk. ``ledger`` returns the number of leases by owner, without those of the tiers.
    ``crowd``, optional, leases all free memory and returns a function that releases it.
    """
