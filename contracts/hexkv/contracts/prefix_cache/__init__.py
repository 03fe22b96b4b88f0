"""What every cache by tokens promises, as tests: in this process, or a client of another one."""

from __future__ import annotations

from hexkv.contracts.prefix_cache._base import Damaged, Faulty, PrefixCacheCase, Stuck
from hexkv.contracts.prefix_cache._faults import Faults
from hexkv.contracts.prefix_cache._layers import Layers
from hexkv.contracts.prefix_cache._prefixes import Prefixes
from hexkv.contracts.prefix_cache._requests import Requests
from hexkv.contracts.prefix_cache._upkeep import Upkeep
from hexkv.contracts.whole import Whole

__all__ = ["Damaged", "Faulty", "PrefixCacheContract", "Stuck"]


class PrefixCacheContract(Prefixes, Requests, Layers, Upkeep, Faults, PrefixCacheCase, Whole):
    """Subclass this and give it the fixture ``cache``.

    As far as you have them: ``most``, how many chunks it holds; ``damaged``, a cache whose
    medium can be spoilt; ``stuck``, one whose tiers do not answer.
    """
