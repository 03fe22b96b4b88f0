"""Segments of a prompt whose KV was computed alone, and may be used at any place in a prompt.

A segment is named by its own tokens (:class:`~hexkv.ports.runtime.chunker.Chunker`, schemes
``segment/<n>``); its KV is computed at positions from 0 on, with no tokens before it. Within a
prompt that KV is approximate: its keys have to be rotated to their place, and it does not depend
on the tokens before it there. So it is stored under keys of its own, never under a prefix key, and
KV computed behind it must not be stored under one either. A blender (CacheBlend, arXiv 2405.16444)
recomputes a part of it; it loads from the cache of :mod:`hexkv.blending.ports.segments`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple

from hexkv.ports.errors import InvalidRequest
from hexkv.ports.outcomes import Reason


class SegmentRun(NamedTuple):
    """A run of a prompt's tokens whose KV is that of a segment computed alone."""

    start: int
    end: int
    """Tokens ``[start, end)`` of the prompt."""

    position: int = 0
    """Position in its segment of the token at *start*; the stored keys are rotated for it."""

    @property
    def offset(self) -> int:
        """Positions by which its keys have to be rotated forward; negative: back."""
        return self.start - self.position


@dataclass(frozen=True, slots=True)
class PromptParts:
    """The parts of a prompt: an exact prefix, segments, and holes that have no KV.

    Raises:
        InvalidRequest: a part is outside of the prompt, or they overlap or are not in order.
    """

    tokens: int
    """Tokens in the prompt."""

    prefix: int = 0
    """Tokens ``[0, prefix)`` have the KV that the model computes for this prompt."""

    segments: tuple[SegmentRun, ...] = ()
    """In order, behind the prefix."""

    def __post_init__(self) -> None:
        reached = self.prefix
        if not 0 <= reached <= self.tokens:
            raise InvalidRequest(f"a prefix of {reached} tokens of a prompt of {self.tokens}")
        for start, end, position in self.segments:
            if not reached <= start < end <= self.tokens or position < 0:
                raise InvalidRequest(
                    f"a segment at [{start}, {end}) of own position {position} is not between"
                    f" token {reached} and the prompt's end at {self.tokens}"
                )
            reached = end

    @property
    def holes(self) -> tuple[tuple[int, int], ...]:
        """The runs ``[start, end)`` of tokens that have no KV."""
        edges = [self.prefix, *chain.from_iterable(run[:2] for run in self.segments), self.tokens]
        pairs = zip(edges[::2], edges[1::2], strict=True)
        return tuple((start, end) for start, end in pairs if start < end)

    @property
    def reused(self) -> int:
        """Tokens in segments."""
        return sum(end - start for start, end, _ in self.segments)


@dataclass(frozen=True, slots=True)
class RetrievedParts:
    """The result of a retrieve of segments: the parts on the device now, and their tiers."""

    parts: PromptParts
    """The parts that the device holds now, a skipped prefix included."""

    loaded_bytes: int = 0
    tiers: Mapping[str, int] = field(default_factory=dict)
    """Loaded tokens by the tier that served them."""

    misses: Mapping[Reason, int] = field(default_factory=dict)
    """Chunks of segments that were expected and not loaded, by reason."""
