"""Explanation of a miss: where the hits of a prompt end, and why, tier by tier.

Loads nothing. Tiers are queried as for a lookup; absent chunks are looked up in the history; the
same tokens under another namespace are found by the keys that they have there.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter, sub
from typing import NamedTuple

from hexkv.core.keys.hashing import NamespaceHasher
from hexkv.core.keys.prompts import Prompt
from hexkv.core.keys.tokens import TOKEN_BYTES, pack_within
from hexkv.core.tiers.cache import TierStack, contains_by_deadline
from hexkv.core.tiers.local import LocalChunks, keeping
from hexkv.core.tiers.rules import Writes
from hexkv.core.tiers.tier import Tier
from hexkv.ports import (
    ChunkKey,
    ChunkService,
    Deadline,
    InvalidRequest,
    Reason,
    Tokens,
    TraceStep,
    Why,
)

ELSEWHERE = "the tiers are a node's, which has to be asked itself"
"""Why an engine over a node has neither explanations nor administration."""

_SHOWN = 16
"""The most chunks explained one by one; the others are counted."""


@dataclass(frozen=True, slots=True)
class Missed:
    """A chunk that a retrieve would not load now."""

    index: int
    start: int
    end: int
    """Positions ``[start, end)`` of the prompt."""

    tiers: Mapping[str, Why] = field(default_factory=dict)
    """By tier, from the fastest to the slowest."""

    reason: Reason | None = None
    """``behind a miss``, ``too short``, or ``timed out`` (before it had a key); ``None``: no tier
    has it, each for its own reason."""


class Difference(NamedTuple):
    """A field in which two identities differ."""

    field: str
    """A dotted path, for instance ``layout.dtype``."""

    ours: str
    theirs: str

    def __str__(self) -> str:
        return f"{self.field} {self.ours} != {self.theirs}"


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """Another namespace that holds more of the same tokens."""

    identity: str
    chunks: int
    """The number of leading chunks that are there."""

    differs: tuple[Difference, ...]


@dataclass(frozen=True, slots=True)
class Explanation:
    """Where the hits of a prompt end, and why."""

    tokens: int
    chunks: int
    hit_chunks: int
    """The number of leading chunks that a retrieve could load now."""

    hit_tokens: int

    missed: tuple[Missed, ...]
    """The first chunks from there on. Last of all is a tail too short for a chunk."""

    reasons: Mapping[str, Mapping[str, int]]
    """By tier, the number of chunks for each reason, from the first that diverges on."""

    elsewhere: tuple[Elsewhere, ...]
    slowest: TraceStep | None = field(default=None, compare=False)
    """The longest step of the last retrieve of this prompt, if that is remembered."""

    @property
    def diverges(self) -> Missed | None:
        """The first chunk that would not be loaded; ``None`` if all would."""
        return self.missed[0] if self.missed else None

    def __str__(self) -> str:
        text = f"{self.hit_tokens} of {self.tokens} tokens would be loaded"
        if self.slowest is not None:
            where = f" ({self.slowest.tier})" if self.slowest.tier else ""
            text += f"; longest, when they last were: {self.slowest.name}{where}"
            text += f", {1000 * self.slowest.seconds:.1f} ms"
        if self.diverges is None:
            return text
        first = self.diverges
        reasons = [f"{tier}: {_words(why)}" for tier, why in first.tiers.items()]
        text += f"; tokens {first.start} to {first.end}: "
        text += "; ".join(reasons) if first.reason is None else first.reason
        for other in self.elsewhere:
            text += f"; namespace differs in {', '.join(map(str, other.differs))}"
        return text


def explain(
    chunks: ChunkService,
    prompt: Prompt,
    tokens: Tokens,
    others: Iterable[NamespaceHasher],
    deadline: Deadline,
) -> Explanation:
    """Return how much of *prompt* is found, and why the rest is not.

    Args:
        chunks: those of the tiers to query.
        prompt: all chunks of the tokens.
        tokens: its tokens.
        others: of namespaces that may hold the same tokens; the prompt's own is skipped.
        deadline: of the whole; facts that are unknown by then are explained by the timeout.

    Raises:
        InvalidRequest: the tiers belong to another process.
    """
    if not isinstance(chunks, LocalChunks):
        raise InvalidRequest(ELSEWHERE)
    stack = chunks.stack
    if prompt.unnamed.ends:
        starts, ends = prompt.unnamed
        late = Missed(0, starts[0], ends[0], reason=Reason.TIMED_OUT)
        return Explanation(prompt.length, len(ends), 0, 0, (late,), {}, ())
    sizes = list(map(sub, prompt.ends, prompt.starts))
    answers = {
        tier.name: explain_tier(stack, tier, prompt.keys, sizes, deadline) for tier in stack.tiers
    }
    there = [
        any(whys[i].reason is Reason.PRESENT for whys in answers.values())
        for i in range(len(prompt))
    ]
    hit = there.index(False) if False in there else len(there)
    shown = range(hit, min(hit + _SHOWN, len(prompt)))
    missed = [
        Missed(
            i,
            prompt.starts[i],
            prompt.ends[i],
            {tier: whys[i] for tier, whys in answers.items()},
            Reason.BEHIND_A_MISS if there[i] else None,
        )
        for i in shown
    ]
    end = prompt.ends[-1] if len(prompt) else 0
    if end < prompt.length:
        missed.append(Missed(len(prompt), end, prompt.length, reason=Reason.TOO_SHORT))
    return Explanation(
        tokens=prompt.length,
        chunks=len(prompt),
        hit_chunks=hit,
        hit_tokens=_tail_end(stack, prompt, hit, deadline) or (prompt.ends[hit - 1] if hit else 0),
        missed=tuple(missed),
        reasons={
            tier: dict(Counter(why.reason.value for why in whys[hit:]))
            for tier, whys in answers.items()
        },
        elsewhere=tuple(_elsewhere(stack, prompt, tokens, others, hit, deadline)),
        slowest=_slowest(stack.runtime.steps.steps(), prompt.keys),
    )


def differing(ours: Mapping[str, object], theirs: Mapping[str, object]) -> tuple[Difference, ...]:
    """Return the fields in which two identities, parsed from JSON, differ.

    Identities contain only digests of salts, so no secret can show.
    """
    mine, other = dict(_fields(ours)), dict(_fields(theirs))
    return tuple(
        Difference(name, mine.get(name, "nothing"), other.get(name, "nothing"))
        for name in sorted({*mine, *other})
        if mine.get(name) != other.get(name)
    )


def _tail_end(stack: TierStack, prompt: Prompt, hit: int, deadline: Deadline) -> int:
    """Return the end of the longest tail found in place of chunk *hit*; 0 for none."""
    keys, ends = prompt.tails_of(hit)
    rate = stack.runtime.computing.rate
    tiers = [tier for tier in stack.tiers if not tier.link.slower_than(rate)]
    tiers = keeping(tiers, prompt.tails.size) if prompt.tails is not None else []
    found = stack.find_tiers(keys, deadline, tiers) if keys else ()
    return next((end for end, tier in zip(ends, found, strict=False) if tier is not None), 0)


def explain_tier(
    stack: TierStack,
    tier: Tier,
    keys: Sequence[ChunkKey],
    tokens: Iterable[int],
    deadline: Deadline,
) -> list[Why]:
    """Return why *tier* would serve each chunk, or would not; *tokens* has their sizes."""
    unanswered, indexing = tier.calls.unanswered, tier.indexing
    asked = tier.remote
    # An index answers also while the breaker of its store is open.
    here = contains_by_deadline(tier, keys, deadline) if asked else tier.contains(keys, deadline)
    silent = asked and (tier.calls.unanswered != unanswered or deadline.expired)
    return [
        _why(stack, tier, key, count, there, asked=asked, silent=silent, indexing=indexing)
        for key, count, there in zip(keys, tokens, here, strict=False)
    ]


def _why(
    stack: TierStack,
    tier: Tier,
    key: ChunkKey,
    tokens: int,
    there: bool,
    *,
    asked: bool,
    silent: bool,
    indexing: bool,
) -> Why:
    note = stack.runtime.history.find(key, tier.name)
    off = _off(tier)
    if off and (there or asked):
        return Why(Reason.TIER_OFF, detail=off)
    if there and (note is None or note.cause is not Reason.READ_FAILED):
        rate = stack.runtime.computing.known
        if not tier.link.slower_than(rate):
            return Why(Reason.PRESENT)
        detail = f"{tier.link.tokens_rate:,.0f} tokens/s, and computing {rate:,.0f}"
        return Why(Reason.SLOWER, detail=detail)
    if note is not None:
        return Why(note.cause, note.when, note.detail)
    if silent:
        return Why(Reason.NO_ANSWER)
    if indexing:
        return Why(Reason.INDEXING)
    if tier.calls.wrote(key):
        return Why(Reason.LOST)
    never = "" if tier.rules.writes is Writes.ALL else f"the tier takes {tier.rules.writes}"
    if tokens < tier.rules.shortest:
        never = f"the tier takes no chunk of fewer than {tier.rules.shortest} tokens"
    return Why(Reason.NEVER_STORED, detail=never)


def _off(tier: Tier) -> str:
    if not tier.rules.reads:
        return "its rules say that it is not read"
    return "it failed, and is left alone for a time" if tier.off else ""


def _elsewhere(
    stack: TierStack,
    prompt: Prompt,
    tokens: Tokens,
    others: Iterable[NamespaceHasher],
    hit: int,
    deadline: Deadline,
) -> Iterator[Elsewhere]:
    packed = None if hit == len(prompt) else pack_within(tokens, deadline)
    if packed is None:
        return
    # Up to the first miss: namespaces without these tokens need not hash the rest.
    first = packed[: prompt.ends[hit] * TOKEN_BYTES]
    for keyer in others:
        if keyer.identity == prompt.identity or deadline.expired:
            continue
        if len(stack.locate(keyer.name(first, deadline), deadline)) > hit:
            chunks = len(stack.locate(keyer.name(packed, deadline), deadline))
            differs = differing(json.loads(prompt.identity), json.loads(keyer.identity))
            yield Elsewhere(keyer.identity, chunks, differs)


def _fields(value: object, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield every leaf of an identity with its dotted path, in readable form."""
    if path == "extra" and isinstance(value, list):
        value = {str(name): text for name, text in value}
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _fields(inner, f"{path}.{name}" if path else str(name))
    elif path == "salt" and isinstance(value, str):
        yield path, f"digest {value[:16]}" if value else "nothing"
    else:
        text = repr(value) if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
        yield path, text


def _words(why: Why) -> str:
    return f"{why.reason} ({why.detail})" if why.detail else str(why.reason)


def _slowest(steps: Sequence[TraceStep], keys: Sequence[ChunkKey]) -> TraceStep | None:
    """Return the longest part of the newest retrieve of the prompt that ends with *keys*."""
    key = keys[-1].hex() if keys else ""
    for whole in reversed(steps):
        if key and whole.key == key and whole.name == "retrieve":
            parts = [step for step in steps if step.call == whole.call and not step.key]
            return max(parts, key=attrgetter("seconds"), default=None)
    return None
