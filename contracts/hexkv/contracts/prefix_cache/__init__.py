"""The contract of caches by tokens: in this process, or a client of another process."""

from __future__ import annotations

from hexkv.contracts.kit.whole import Whole
from hexkv.contracts.prefix_cache._base import Damaged, Faulty, PrefixCacheCase, Stuck
from hexkv.contracts.prefix_cache._faults import Faults
from hexkv.contracts.prefix_cache._layers import Layers
from hexkv.contracts.prefix_cache._prefixes import Prefixes
from hexkv.contracts.prefix_cache._requests import Requests
from hexkv.contracts.prefix_cache._upkeep import Upkeep

__all__ = ["Damaged", "Faulty", "PrefixCacheContract", "Stuck"]


class PrefixCacheContract(Prefixes, Requests, Layers, Upkeep, Faults, PrefixCacheCase, Whole):
    """Subclass this and give it the fixture ``cache``.

    Optional are ``most``, the number of chunks that it holds; ``damaged``, a cache whose
    medium can be damaged; ``stuck``, one whose tiers do not answer.
    """
