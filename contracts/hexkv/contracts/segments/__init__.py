"""The contract of caches of segments: over the tiers of a process, or over a node."""

from __future__ import annotations

from hexkv.contracts.kit.whole import Whole
from hexkv.contracts.segments._base import MINIMUM, SEPARATOR, SegmentCacheCase
from hexkv.contracts.segments._keeping import Keeping
from hexkv.contracts.segments._places import Places

__all__ = ["MINIMUM", "SEPARATOR", "SegmentCacheContract"]


class SegmentCacheContract(Places, Keeping, SegmentCacheCase, Whole):
    """Subclass this and give it the fixture ``cache``; the others are optional.

    ``damaged`` and ``stuck`` are those of
    :class:`~hexkv.contracts.prefix_cache.PrefixCacheContract`.
    """
