"""Accounting of calls: their parts, what they moved, their metrics, results, records and spans."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress, groupby, repeat
from operator import sub
from threading import get_ident
from typing import NamedTuple

from hexkv.core.keys.prompts import Prompt
from hexkv.core.runtime import Runtime, StepFields, StepRing
from hexkv.ports import (
    Bounds,
    ChunkKey,
    Clock,
    CounterName,
    EndedCall,
    HistogramName,
    Lookup,
    Reason,
    RecordedCall,
    RecordedKind,
    RecordedStep,
    Retrieved,
    SpanSink,
    StoreReport,
    TraceStep,
    traceparent,
)


class Spent(NamedTuple):
    """The time of one call."""

    seconds: float
    waited: float | None = None
    """Seconds of that for which it waited for tiers; ``None`` if not known."""

    slowest: TraceStep | None = None
    """The part that took longest."""

    parts: Sequence[StepFields] = ()
    """Each part, as the ring has it; empty if not known."""

    begun: float | None = None
    """If the host works in between: when the call began, which lasts until it is reported."""

    parent: str | None = None
    """The parent span; ``None``: the current one at its end."""


class Laps:
    """The parts of one call, one after the other: together they take as long as the call.

    A part ends with ``laps.mark((name, tier, laps.now()))``: it began at the last mark.
    """

    __slots__ = ("_marks", "begun", "mark", "now")

    def __init__(self, clock: Clock) -> None:
        self.now = clock.now
        self.begun = clock.now()
        self._marks: list[tuple[str, str, float]] = []
        self.mark = self._marks.append
        """Record a part's name, its tier or "", and the time of its end."""

    def end(self, ring: StepRing, name: str, call: str, keys: Sequence[ChunkKey]) -> Spent:
        """Record the rest as the end of the call: put its parts, and the whole, into *ring*."""
        self.mark(("end", "", self.now()))
        # By column: a loop over the parts takes three times as long.
        names, tiers, ends = zip(*self._marks, strict=True)
        begins, row = (self.begun, *ends), f"calls {get_ident()}"
        took = list(map(sub, ends, begins))
        alike = repeat(call), repeat(0.0), repeat(0), repeat("")
        parts = list(zip(names, repeat(row), begins, took, tiers, *alike, strict=False))
        longest = parts[took.index(max(took))]
        waited = sum(compress(took, map("read".__eq__, names))) if "read" in names else 0.0
        key, seconds = keys[-1].hex() if keys else "", ends[-1] - self.begun
        ring.extend((*parts, (name, row, self.begun, seconds, "", call, 0.0, 0, key)))
        return Spent(seconds, waited, tuple.__new__(TraceStep, longest), parts)


@dataclass(slots=True)
class Arrived:
    """The chunks that a retrieve has loaded so far, and those that it missed."""

    chunks: int = 0
    size: int = 0
    tokens: dict[str, int] = field(default_factory=dict)
    """Tokens by tier."""

    by_tier: dict[str, int] = field(default_factory=dict)
    """Chunks by tier."""

    asked: int = 0
    """Chunks requested."""

    asked_tokens: int = 0
    """Tokens in them."""

    end_token: int = 0
    """The end of the last chunk that arrived."""

    misses: dict[Reason, int] = field(default_factory=dict)
    """Chunks that did not arrive, by reason."""

    missed_tokens: dict[Reason, int] = field(default_factory=dict)
    """Tokens in them, by reason."""

    def add(self, part: Prompt, tiers: Sequence[str]) -> None:
        """Count the chunks of *part* as arrived, each from one of *tiers*."""
        self.chunks += len(part.keys)
        self.end_token = part.ends[-1] if part.keys else self.end_token
        at = 0
        for tier, run in groupby(tiers):
            count = len(list(run))
            tokens = sum(part.ends[at : at + count]) - sum(part.starts[at : at + count])
            self.size += part.layout.chunk_bytes(tokens)
            self.tokens[tier] = self.tokens.get(tier, 0) + tokens
            self.by_tier[tier] = self.by_tier.get(tier, 0) + count
            at += count

    def end(self, asked: Bounds, why: Reason | None, *, short: bool = False) -> None:
        """End the load of the chunks *asked*, of which the next is missing because of *why*.

        *short* adds one chunk: a tail in place of one of them. Its tokens are part of that one's.
        """
        ends = asked.ends
        if not ends:
            return
        self.asked = len(ends) + short
        self.asked_tokens = ends[-1] - asked.starts[0]
        lost = self.asked - self.chunks
        if why is None or not lost:
            return  # everything has come
        here = self.end_token if self.chunks else asked.starts[0]
        next_end = ends[bisect_right(ends, here, hi=len(ends) - 1)]
        self._miss(why, 1, next_end - here)
        if lost > 1:
            rest = why if why.gone else Reason.BEHIND_A_MISS
            self._miss(rest, lost - 1, ends[-1] - next_end)

    def _miss(self, why: Reason, chunks: int, tokens: int) -> None:
        self.misses[why] = self.misses.get(why, 0) + chunks
        self.missed_tokens[why] = self.missed_tokens.get(why, 0) + tokens


@dataclass(slots=True)
class Kept:
    """The results of a store so far, in tokens."""

    asked: int = 0
    present: int = 0
    present_chunks: int = 0
    stored: int = 0
    size: int = 0
    queued: int = 0
    tiers: dict[str, int] = field(default_factory=dict)
    drops: dict[Reason, int] = field(default_factory=dict)

    def drop(self, why: Reason, tokens: int) -> None:
        """Count *tokens* that no tier took."""
        self.drops[why] = self.drops.get(why, 0) + tokens


class Accounts:
    """Counts calls, and records and traces them if that is configured."""

    def __init__(self, runtime: Runtime) -> None:
        """Report calls to the sinks of *runtime*."""
        self._clock = runtime.clock
        self._telemetry = runtime.telemetry
        self._sink = runtime.calls
        self._spans = runtime.spans
        self.watched = runtime.calls is not None or runtime.spans is not None
        """True if calls are recorded or traced."""

    def looked_up(self, prompt: Prompt, answer: Lookup, began: float, request: str | None) -> None:
        """Record and trace the *answer* of a lookup of *prompt* for *request*."""
        spent = Spent(self._clock.now() - began)
        if self._sink is not None and request is not None and prompt.keys:
            self._record(RecordedKind.LOOKUP, prompt, spent, answer.tiers, request=request)
        if self._spans is not None:
            self._trace(self._spans, "lookup", spent, answer)

    def retrieved(
        self, prompt: Prompt, skip: int, got: Arrived, spent: Spent, request: str | None = None
    ) -> Retrieved:
        """Return the result of a retrieve of *prompt*, behind its first *skip* tokens."""
        if prompt.unnamed.ends:
            got.end(prompt.unnamed, Reason.TIMED_OUT)
        count, observe = self._telemetry.count, self._telemetry.observe
        count(CounterName.LOOKUPS, got.asked)
        count(CounterName.LOOKUP_TOKENS, got.asked_tokens)
        for tier, chunks in got.by_tier.items():
            count(CounterName.HITS, chunks, tier=tier)
            count(CounterName.HIT_TOKENS, got.tokens[tier], tier=tier)
        for reason, chunks in got.misses.items():
            count(CounterName.MISSES, chunks, reason=reason)
            count(CounterName.MISSED_TOKENS, got.missed_tokens[reason], reason=reason)
        observe(HistogramName.RETRIEVE, spent.seconds)
        if spent.waited is not None:
            observe(HistogramName.LOAD_WAIT, spent.waited)
        answer = Retrieved(
            tokens=prompt.length,
            hit_tokens=max(skip, got.end_token),
            loaded_tokens=sum(got.tokens.values()),
            loaded_bytes=got.size,
            tiers=got.tokens,
            misses=got.misses,
            slowest=spent.slowest,
        )
        if self._sink is not None and prompt.keys:
            misses = {reason.value: tokens for reason, tokens in got.missed_tokens.items()}
            self._record(
                RecordedKind.RETRIEVE, prompt, spent, got.tokens, misses, request=request or ""
            )
        if self._spans is not None:
            self._trace(self._spans, "retrieve", spent, answer)
        return answer

    def stored(self, prompt: Prompt, kept: Kept, spent: Spent) -> StoreReport:
        """Return the result of a store of *prompt*."""
        if kept.present_chunks:
            self._telemetry.count(CounterName.PRESENT, kept.present_chunks)
            self._telemetry.count(CounterName.PRESENT_TOKENS, kept.present)
        self._telemetry.observe(HistogramName.STORE, spent.seconds)
        starts, ends = prompt.unnamed
        if ends:
            self._telemetry.count(CounterName.DROPPED, len(ends), reason=Reason.TIMED_OUT)
            kept.drop(Reason.TIMED_OUT, ends[-1] - starts[0])
        # All other tokens: so every token is counted, for any answer of a store.
        dropped = kept.asked - kept.present - kept.stored - kept.queued
        dropped += ends[-1] - starts[0] if ends else 0
        if rest := dropped - sum(kept.drops.values()):
            kept.drop(Reason.DROPPED, rest)
        answer = StoreReport(
            tokens=prompt.length,
            stored_tokens=kept.stored,
            present_tokens=kept.present,
            queued_tokens=kept.queued,
            dropped_tokens=dropped,
            drops=kept.drops,
            stored_bytes=kept.size,
            tiers=kept.tiers,
            slowest=spent.slowest,
        )
        if self._sink is not None and prompt.keys:
            self._record(RecordedKind.STORE, prompt, spent, kept.tiers, present=kept.present)
        if self._spans is not None:
            self._trace(self._spans, "store", spent, answer)
        return answer

    def _trace(
        self, sink: SpanSink, name: str, spent: Spent, answer: Lookup | Retrieved | StoreReport
    ) -> None:
        """Send the ended call *name* to the span *sink*."""
        seconds, now = spent.seconds, self._clock.now()
        if spent.begun is not None:
            begun, seconds = spent.begun, now - spent.begun
        else:
            begun = spent.parts[0][2] if spent.parts else now - seconds
        parent = traceparent() if spent.parent is None else spent.parent
        parts = [TraceStep(what, "", at, took, tier) for what, _, at, took, tier, *_ in spent.parts]
        sink.ended(EndedCall(name, begun, seconds, answer, parts, parent))

    def _record(
        self,
        kind: RecordedKind,
        prompt: Prompt,
        spent: Spent,
        tiers: Mapping[str, int],
        misses: Mapping[str, int] | None = None,
        *,
        present: int = 0,
        request: str = "",
    ) -> None:
        assert self._sink is not None  # noqa: S101 - checked before
        began = self._clock.now() - spent.seconds
        self._sink.record(
            RecordedCall(
                kind,
                began,
                spent.seconds,
                prompt.length,
                prompt.keys,
                prompt.starts[0],
                prompt.ends[-1],
                tiers,
                misses or {},
                present,
                request,
                not prompt.placed,
                _steps(spent),
            )
        )


def _steps(spent: Spent) -> Sequence[RecordedStep]:
    """Return the parts of a call, those of one name and tier together."""
    steps: dict[tuple[str, str], float] = {}
    for name, _, _, seconds, tier, *_ in spent.parts:
        steps[name, tier] = steps.get((name, tier), 0.0) + seconds
    return [RecordedStep(name, tier, seconds) for (name, tier), seconds in steps.items()]
