"""Replaying a trace through the very index and policies that an engine uses."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from hexkv.core.memory.pipelining import Pipelining
from hexkv.core.tiers.index.index import TierIndex
from hexkv.plan.trace import TracedPrompt
from hexkv.ports import ChunkKey, Policy

_OWNER = "replay"


@dataclass(frozen=True, slots=True)
class Replay:
    """The result of a replay."""

    tokens: int
    """Tokens in all prompts."""

    hit_tokens: int
    """Tokens found: the longest unbroken run of chunks from the start of each prompt."""

    requests: int = 0
    evictions: int = 0
    dropped: int = 0
    """Evicted chunks that a second tier did not take, for its queue was full."""

    @property
    def hit_rate(self) -> float:
        """The share of all tokens that were found; the cold start counts."""
        return self.hit_tokens / self.tokens if self.tokens else 0.0


def replay(
    requests: Iterable[TracedPrompt],
    make_policy: Callable[[], Policy],
    chunks: int,
    *,
    chunk_tokens: int = 512,
    chunk_bytes: int = 1,
) -> Replay:
    """Serve *requests* one after the other from a tier that is empty at first.

    Each request does to the index what one retrieve and one store of the engine do: found chunks
    are touched and pinned, missing ones take space, window by window, and victims are evicted
    first.

    Args:
        requests: in the order of arrival.
        make_policy: builds the tier's policy.
        chunks: the number of chunks that the tier may hold.
        chunk_tokens: tokens of a full chunk.
        chunk_bytes: bytes of one, if known: the window is that of an engine whose pool is as large
            as the tier.
    """
    window = Pipelining.with_slots(chunks, chunk_bytes).run
    index = TierIndex(make_policy(), chunks)
    tokens = hit = evictions = served = 0
    for request in requests:
        keys = request.keys
        here = index.contains(keys)
        run = here.index(False) if False in here else len(keys)
        if request.asked:
            hit += run * chunk_tokens
            tokens += request.tokens
            served += 1
        if run:
            index.touch(keys[:run])
            index.pin(_OWNER, keys[:run])
        start = run
        while start < len(keys):
            if here[start]:
                start += 1
                continue
            end = start + 1
            while end < len(keys) and end < start + window and not here[end]:
                end += 1
            part = keys[start:end]
            reserved = index.reserve(part, [1] * len(part), keys[start - 1] if start else None)
            evictions += len(reserved.victims)
            index.deleted(reserved.victims)
            index.commit(reserved.keys)
            index.pin(_OWNER, part)
            start = end
        index.unpin(_OWNER)
    return Replay(tokens, hit, served, evictions)


def unlimited(requests: Sequence[TracedPrompt], *, chunk_tokens: int = 512) -> Replay:
    """Return the hits of a tier that never evicts."""
    seen: set[ChunkKey] = set()
    hit = 0
    for request in requests:
        for key in request.keys if request.asked else ():
            if key not in seen:
                break
            hit += chunk_tokens
        seen.update(request.keys)
    return Replay(_tokens(requests), hit, _asked(requests))


def optimal(requests: Sequence[TracedPrompt], chunks: int, *, chunk_tokens: int = 512) -> Replay:
    """Return the hits of a tier that knows the future: no policy can have more.

    Belady's rule ("A study of replacement algorithms for a virtual-storage computer", 1966) with
    bypass: after each request the chunks that are used again soonest stay, old or new, and of those
    used again by one request the ones nearest to its beginning. A chunk is never used before its
    parent, so whole prefixes stay.
    """
    never = len(requests)
    following: dict[ChunkKey, int] = {}
    uses: list[list[int]] = []
    for at in range(never - 1, -1, -1):
        keys = requests[at].keys
        uses.append([following.get(key, never) for key in keys])
        # A chunk that will be stored again before its next request need not be kept until then.
        following.update(dict.fromkeys(keys, at if requests[at].asked else never))
    uses.reverse()
    kept: dict[ChunkKey, tuple[int, int]] = {}
    farthest: list[tuple[int, int, ChunkKey]] = []
    hit = evictions = 0
    for request, following_uses in zip(requests, uses, strict=True):
        run = True
        for depth, (key, use) in enumerate(
            zip(request.keys, following_uses, strict=True), start=request.before
        ):
            run = run and request.asked and key in kept
            hit += run
            kept.pop(key, None)
            if use < never:
                kept[key] = (-use, -depth)
                heapq.heappush(farthest, (-use, -depth, key))
        while len(kept) > chunks:
            use, depth, key = heapq.heappop(farthest)
            if kept.get(key) == (use, depth):
                del kept[key]
                evictions += 1
    return Replay(_tokens(requests), hit * chunk_tokens, _asked(requests), evictions)


def _tokens(requests: Sequence[TracedPrompt]) -> int:
    return sum(request.tokens for request in requests if request.asked)


def _asked(requests: Sequence[TracedPrompt]) -> int:
    return sum(request.asked for request in requests)
