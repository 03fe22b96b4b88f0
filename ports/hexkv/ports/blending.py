"""Segments of a prompt whose KV was computed alone, and what of them may be used in any place.

A segment is named by its own tokens (:class:`~hexkv.ports.chunker.Chunker`, schemes
``segment/<n>``), its KV computed at positions from 0 on with nothing before it. Where it stands in
a prompt, that KV is approximate: its keys have to be rotated to their place, and it knows nothing
of what stands before it there. So it lies under keys of its own, never under a prefix key, and what
was computed behind it must not be stored under one either. Who blends (CacheBlend, arXiv
2405.16444) computes a part of it again; :mod:`hexkv.ports.segments` is the cache that it asks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple

from hexkv.ports.errors import InvalidRequest
from hexkv.ports.reasons import Reason


class SegmentRun(NamedTuple):
    """A run of a prompt's tokens whose KV is that of a segment computed alone."""

    start: int
    end: int
    """Tokens ``[start, end)`` of the prompt."""

    position: int = 0
    """The position in its segment of the token at *start*: for it the stored keys are rotated."""

    @property
    def offset(self) -> int:
        """Positions by which its keys have to be rotated on; negative: back."""
        return self.start - self.position


@dataclass(frozen=True, slots=True)
class PromptParts:
    """What a prompt is made of: an exact prefix, segments, and holes that have no KV.

    Raises:
        InvalidRequest: the parts leave the prompt, overlap, or are not in order.
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
    """What a retrieve of segments really put into the device."""

    parts: PromptParts
    """What the device holds now, a prefix that was skipped included."""

    loaded_bytes: int = 0
    tiers: Mapping[str, int] = field(default_factory=dict)
    """Loaded tokens by the tier that served them."""

    misses: Mapping[Reason, int] = field(default_factory=dict)
    """Chunks of segments that were expected and not loaded, by reason."""
