"""Replaying a trace through two tiers: memory, and a tier that takes the chunks it evicts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from hexkv.core.memory.pipelining import Pipelining
from hexkv.core.tiers.index.index import TierIndex
from hexkv.core.tiers.write.admission import Admission
from hexkv.plan.trace import TracedPrompt
from hexkv.ports import ChunkKey, Policy

_OWNER = "replay"


@dataclass(frozen=True, slots=True)
class Writing:
    """The pace of the second tier, beside requests that follow each other.

    Chunks that memory evicts wait to be written, and are found on no tier until then.
    """

    queue: int
    """The most chunks that wait. Further ones are dropped: the stores do not wait."""

    pace: float
    """Chunks written in the time in which one is computed. Hits take no time."""

    between: float = 0.0
    """Chunks written between two requests, in their think time."""


@dataclass(frozen=True, slots=True)
class Below:
    """The second tier."""

    chunks: int
    """The number of chunks that it may hold; for compressed memory, once they are encoded."""

    min_reuse: float = 0.0
    """As in a configuration; 0: all offered chunks are written."""

    writing: Writing | None = None
    """How chunks wait for it; ``None``: they are written at once."""


@dataclass(slots=True)
class Stacked:
    """The result of a replay."""

    tokens: int = 0
    hit_tokens: int = 0
    """Tokens found on either tier: the longest unbroken run from the start of each prompt."""

    below_tokens: int = 0
    """Those of them that only the second tier held."""

    written: int = 0
    """Chunks written to the second tier."""

    offered: int = 0
    """Chunks offered to it, written or not."""

    dropped: int = 0
    """Evicted chunks that found the queue full."""

    @property
    def hit_rate(self) -> float:
        """The share of all tokens that were found; the cold start counts."""
        return self.hit_tokens / self.tokens if self.tokens else 0.0


class _Replay:
    """Does to both indexes what one retrieve and one store of the engine do."""

    def __init__(self, make_policy: Callable[[], Policy], chunks: int, below: Below) -> None:
        self.upper = TierIndex(make_policy(), chunks)
        self.lower = TierIndex(make_policy(), below.chunks)
        self.below = below
        self.window = Pipelining.with_slots(chunks, 1).run
        self.admission = Admission(below.min_reuse)
        self.done = Stacked()
        self.waiting: dict[ChunkKey, None] = {}
        self._credit = 0.0
        """Chunks that could have been written since the last one was."""

    def serve(self, request: TracedPrompt, chunk_tokens: int) -> None:
        keys, done = request.keys, self.done
        fast, slow = self.upper.contains(keys), self.lower.contains(keys)
        here = [a or b for a, b in zip(fast, slow, strict=True)]
        run = here.index(False) if False in here else len(keys)
        done.tokens += request.tokens
        done.hit_tokens += run * chunk_tokens
        done.below_tokens += fast[:run].count(False) * chunk_tokens
        present = [key for key, there in zip(keys, here, strict=True) if there]
        for index in (self.upper, self.lower):
            index.touch(present)
            index.pin(_OWNER, keys[:run])
        if present:
            self.admission.met(present)
        for part, after in self._runs(keys, [not there for there in fast[:run]]):
            self._keep(part, after)
        for part, after in self._runs(keys, [not there for there in here]):
            self.admission.added(part, after)
            self._keep(part, after)
            self._write_on(writing.pace * len(part) if (writing := self.below.writing) else 0)
        for index in (self.upper, self.lower):
            index.unpin(_OWNER)
        if self.below.writing is not None:
            self._write_on(self.below.writing.between)

    def _runs(
        self, keys: Sequence[ChunkKey], wanted: Sequence[bool]
    ) -> Iterable[tuple[Sequence[ChunkKey], ChunkKey | None]]:
        """Yield neighbouring wanted chunks, a window at a time, with the chunk before each."""
        start = 0
        while start < len(wanted):
            end = start
            while end < len(wanted) and end < start + self.window and wanted[end]:
                end += 1
            if end > start:
                yield keys[start:end], keys[start - 1] if start else None
            start = max(end, start + 1)

    def _keep(self, part: Sequence[ChunkKey], after: ChunkKey | None) -> None:
        """Put chunks into memory; chunks evicted for them are offered to the tier below."""
        reserved = self.upper.reserve(part, [1] * len(part), after)
        for victim in reserved.victims:
            self._offer(victim)
        self.upper.deleted(reserved.victims)
        self.upper.commit(reserved.keys)
        self.upper.pin(_OWNER, reserved.keys)

    def _offer(self, key: ChunkKey) -> None:
        if key in self.waiting or self.lower.contains([key])[0]:
            return
        self.done.offered += 1
        if self.below.min_reuse and not self.admission.worth(key, self.below.chunks):
            return
        if (writing := self.below.writing) is None:
            self._write(key)
        elif len(self.waiting) < writing.queue:
            self.waiting[key] = None
        else:
            self.done.dropped += 1

    def _write_on(self, chunks: float) -> None:
        """Write the chunks that wait, as many as there was time for since the last one."""
        self._credit += chunks
        while self.waiting and self._credit >= 1:
            self._credit -= 1
            key = next(iter(self.waiting))
            del self.waiting[key]
            self._write(key)
        if not self.waiting:
            self._credit = 0.0

    def _write(self, key: ChunkKey) -> None:
        reserved = self.lower.reserve([key], [1])
        self.lower.deleted(reserved.victims)
        self.lower.commit(reserved.keys)
        self.done.written += len(reserved.keys)


def replay_stacked(
    requests: Iterable[TracedPrompt],
    make_policy: Callable[[], Policy],
    chunks: int,
    below: Below,
    *,
    chunk_tokens: int = 512,
) -> Stacked:
    """Serve *requests* one after the other from two tiers that are empty at first.

    A chunk found on the second tier is copied into memory; its copy below stays until it is evicted
    there, as in the engine.

    Args:
        requests: in the order of arrival.
        make_policy: builds the policy of each tier.
        chunks: the number of chunks that memory may hold.
        below: the second tier.
        chunk_tokens: tokens of a full chunk.
    """
    stack = _Replay(make_policy, chunks, below)
    for request in requests:
        stack.serve(request, chunk_tokens)
    return stack.done
