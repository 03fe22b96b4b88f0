"""The classes that ``hexkv check`` runs for segments, which need hexkv-blending."""

from __future__ import annotations

from hexkv.contracts.check._given import given, subject
from hexkv.contracts.segment_finder import SegmentFinderContract
from hexkv.contracts.segments import SegmentCacheContract


class TestSegments(SegmentCacheContract):
    """A cache of segments."""

    cache, other = subject("cache"), given("other")
    damaged, stuck = given("damaged"), given("stuck")


class TestSegmentFinder(SegmentFinderContract):
    """A finder of segments."""

    finder = subject("finder")
