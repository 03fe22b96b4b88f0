"""The front door of segments, for programs; their types are in :mod:`hexkv.blending.ports`."""

from __future__ import annotations

from hexkv.blending.ports import SegmentCache
from hexkv.blending.segments import Segments
from hexkv.ports import InvalidRequest, PrefixCache


def segments_of(cache: PrefixCache) -> SegmentCache:
    """Return the cache of segments beside *cache*, on the same tiers. It ends with that one.

    Raises:
        InvalidRequest: there is none, as if ``hexkv-blending`` was installed after the opening.
    """
    found = getattr(cache, "segments", None)
    if not isinstance(found, Segments):
        raise InvalidRequest("no cache of segments: it was opened without hexkv-blending")
    return found
