"""Prompts in parts: the parts that were found, and those that arrived."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import compress
from typing import TYPE_CHECKING, Self

from hexkv.blending.ports import LayeredSegments, Piece, PromptParts, RetrievedParts, SegmentRun
from hexkv.core.engine.calls import Door
from hexkv.core.keys.prompts import Prompt
from hexkv.core.requests.accounts import Arrived
from hexkv.core.requests.layers.retrieve import LayeredRetrieve
from hexkv.ports import CounterName, InvalidRequest, Retrieved, Telemetry

LOADED = "loaded"
"""The label of a chunk of a segment that arrived; others have the reason why they did not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedParts(PromptParts):
    """Parts as this cache found them, with the keys of their chunks."""

    front: Prompt = field(repr=False, compare=False)
    """The chunks of the prefix."""

    identity: str = field(repr=False)
    """Identity of the segments' namespace."""

    prompt: bytes = field(repr=False)
    """Digest of the tokens in which they were found: for other tokens they are wrong KV."""

    pieces: tuple[Piece, ...] = field(repr=False)
    """The chunks of the segments."""

    @classmethod
    def of(
        cls, front: Prompt, prefix: int, identity: str, prompt: bytes, pieces: Sequence[Piece]
    ) -> NamedParts:
        """Return a prefix of *prefix* tokens in the chunks of *front*, and *pieces* behind it."""
        return cls(
            front.length,
            prefix,
            runs_of(pieces),
            # Without the caller's tokens, which are the caller's again after a call.
            front=replace(front, tails=None),
            identity=identity,
            prompt=prompt,
            pieces=tuple(pieces),
        )

    def limited(self, parts: PromptParts) -> NamedParts:
        """Return the intersection with *parts*.

        Raises:
            InvalidRequest: they are of a prompt of another length.
        """
        if parts.tokens != self.tokens:
            raise InvalidRequest(f"parts of {parts.tokens} tokens for a prompt of {self.tokens}")
        front = self.front.part(0, bisect_right(self.front.ends, parts.prefix))
        some = [
            piece
            for piece in self.pieces
            if any(run.start <= piece.start and piece.end <= run.end for run in parts.segments)
        ]
        prefix = front.ends[-1] if front.keys else 0
        return NamedParts.of(front, prefix, self.identity, self.prompt, some)

    def chunks(self) -> Prompt:
        """Return the chunks of the segments, at their places in the prompt."""
        keys = [piece.key for piece in self.pieces]
        starts = [piece.start for piece in self.pieces]
        ends = [piece.end for piece in self.pieces]
        layout = self.front.layout
        return Prompt(layout, self.identity, self.tokens, keys, starts, ends, placed=False)

    def arrived(self, prefix: int, came: Sequence[bool]) -> PromptParts:
        """Return the parts with *prefix*, and those chunks of segments that *came*."""
        return PromptParts(self.tokens, prefix, runs_of([*compress(self.pieces, came)]))


def runs_of(pieces: Sequence[Piece]) -> tuple[SegmentRun, ...]:
    """Return *pieces* as runs: those that continue each other are one."""
    runs: list[SegmentRun] = []
    for piece in pieces:
        last = runs[-1] if runs else None
        follows = last is not None and last.end == piece.start and piece.position > 0
        if last is not None and follows and last.offset == piece.start - piece.position:
            runs[-1] = last._replace(end=piece.end)
        else:
            runs.append(SegmentRun(piece.start, piece.end, piece.position))
    return tuple(runs)


def merged(first: Sequence[Piece], second: Sequence[Piece]) -> list[Piece]:
    """Return both in one order; of *second* only those that overlap none of *first*."""
    made = [*first]
    starts = [piece.start for piece in first]
    for piece in second:
        at = bisect_right(starts, piece.start)
        clear = at == 0 or first[at - 1].end <= piece.start
        if clear and (at == len(first) or piece.end <= first[at].start):
            made.append(piece)
    return sorted(made, key=lambda piece: piece.start)


def join(total: Arrived, got: Arrived, *, again: bool) -> None:
    """Add to *total* the result of one load of chunks of segments, and why it ended.

    With *again* the chunks behind the first missing one are loaded again, and not counted here.
    """
    total.size += got.size
    for tier, tokens in got.tokens.items():
        total.tokens[tier] = total.tokens.get(tier, 0) + tokens
    for why, chunks in got.misses.items():
        total.misses[why] = total.misses.get(why, 0) + (1 if again else chunks)
        if again:
            break


def answer(
    telemetry: Telemetry, parts: PromptParts, front: Retrieved | None, total: Arrived, chunks: int
) -> RetrievedParts:
    """Count *chunks* of segments that arrived, and return the result of the whole load."""
    telemetry.count(CounterName.BLEND_SEGMENTS, chunks, reason=LOADED)
    for reason, missed in total.misses.items():
        telemetry.count(CounterName.BLEND_SEGMENTS, missed, reason=reason)
    tiers = dict(total.tokens)
    for tier, tokens in {} if front is None else front.tiers.items():
        tiers[tier] = tiers.get(tier, 0) + tokens
    loaded = total.size + (0 if front is None else front.loaded_bytes)
    return RetrievedParts(parts, loaded, tiers, dict(total.misses))


class PartsByLayer:
    """See :class:`hexkv.blending.ports.LayeredSegments`: two layered reads that go side by side."""

    def __init__(
        self,
        found: NamedParts,
        skip: int,
        reads: tuple[LayeredRetrieve, LayeredRetrieve],
        total: Arrived,
        telemetry: Telemetry,
        door: Door,
    ) -> None:
        """Read the prefix behind *skip* tokens, and the segments, which are counted in *total*."""
        self._found = found
        self._skip = skip
        self._front, self._segments = reads
        self._total = total
        self._telemetry = telemetry
        self._door = door
        self._result: RetrievedParts | None = None

    @property
    def parts(self) -> PromptParts:
        reached = self._segments.hit_tokens
        came = [piece.end <= reached for piece in self._found.pieces]
        return self._found.arrived(max(self._skip, self._front.hit_tokens), came)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> int:
        with self._door.passing():
            next(self._front)
            return next(self._segments)

    def result(self) -> RetrievedParts:
        with self._door.passing():
            if self._result is None:
                front = self._front.result()
                self._segments.result()
                parts, pieces = self.parts, self._found.pieces
                chunks = sum(piece.end <= self._segments.hit_tokens for piece in pieces)
                self._result = answer(self._telemetry, parts, front, self._total, chunks)
            return self._result


if TYPE_CHECKING:

    def _is_layered(parts: PartsByLayer) -> LayeredSegments:
        return parts
