"""Segments of prompts: KV computed alone, and used at any place of its tokens."""

from hexkv.blending.ports.finder import Piece, SegmentFinder
from hexkv.blending.ports.parts import PromptParts, RetrievedParts, SegmentRun
from hexkv.blending.ports.report import BLEND_KINDS, BlendOutcome, BlendReport
from hexkv.blending.ports.segments import LayeredSegments, SegmentCache, SegmentedCache

__all__ = [
    "BLEND_KINDS",
    "BlendOutcome",
    "BlendReport",
    "LayeredSegments",
    "Piece",
    "PromptParts",
    "RetrievedParts",
    "SegmentCache",
    "SegmentFinder",
    "SegmentRun",
    "SegmentedCache",
]
