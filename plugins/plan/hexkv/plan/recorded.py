"""Statistics of recorded calls: the requests behind them, their hits, and their time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from hexkv.plan.trace import TracedPrompt
from hexkv.ports import ChunkKey, RecordedCall, RecordedKind

COMPUTED = "computed"
"""The part of a request between the cache's last answer and the store of its KV: the model, and
other work of its host."""

WHOLE = "whole"
"""The name of a call as a single part, if no parts are known, as for one layer by layer."""


@dataclass(slots=True)
class Served:
    """One request, as a cache saw it."""

    began: float
    tokens: int
    """Tokens that were requested."""

    keys: Sequence[ChunkKey]
    """The full chunks in them."""

    before: int
    """The number of chunks of the prompt before these."""

    tiers: dict[str, int] = field(default_factory=dict)
    """Tokens loaded, by tier."""

    parts: dict[tuple[str, str], float] = field(default_factory=dict)
    """Seconds by part and tier."""

    ended: float = 0.0
    """The time of the cache's last answer before the model computed."""

    @property
    def hit_tokens(self) -> int:
        """All tokens loaded."""
        return sum(self.tiers.values())


def requests_of(calls: Iterable[RecordedCall], chunk_tokens: int) -> list[TracedPrompt]:
    """Return the requests to replay: each request once, and other stored chunks, in order.

    A replay has each request store the chunks that it missed. So of stores only chunks are left
    that no earlier request asked for: generated ones, or ones computed in advance. A host that
    names chunks itself requests chunks that it knows to be present; those that it stores are those
    that it missed, and count as requested.
    """
    asks = _Asks()
    due: set[ChunkKey] = set()
    requests = []
    for call in calls:
        keys, before = _full(call, chunk_tokens), call.start // chunk_tokens
        if call.by_key:
            requests.append(TracedPrompt(call.tokens, keys, before))
        elif call.kind is RecordedKind.STORE:
            new = [number for number, key in enumerate(keys) if key not in due]
            due.difference_update(keys)
            if new:
                made = [keys[number] for number in new]
                requests.append(TracedPrompt(0, made, before + new[0], asked=False))
        elif asks.new(call):
            due.update(keys)
            requests.append(TracedPrompt(call.tokens - call.start, keys, before))
    return requests


def served(calls: Iterable[RecordedCall], chunk_tokens: int) -> list[Served]:
    """Return each request with the results and times of its calls, by their beginning."""
    asks = _Asks()
    found: list[Served] = []
    by_name: dict[str, Served] = {}
    ends: dict[ChunkKey, Served] = {}
    for call in calls:
        if call.kind is RecordedKind.STORE:
            for known in [ends.pop(key) for key in call.keys if key in ends]:
                _add(known, COMPUTED, "", call.began - known.ended)
            if call.by_key:
                found.append(_begun(call, chunk_tokens))
            continue
        if asks.new(call) or call.request not in by_name:
            one = _begun(call, chunk_tokens)
            found.append(one)
        else:
            one = by_name[call.request]
        if call.request:
            by_name[call.request] = one
        if call.kind is RecordedKind.LOOKUP:
            _add(one, "lookup", "", call.seconds)
        else:
            for step in call.steps:
                _add(one, step.name, step.tier if step.name == "read" else "", step.seconds)
            if not call.steps:
                _add(one, WHOLE, "", call.seconds)
            for tier, tokens in call.tiers.items():
                one.tiers[tier] = one.tiers.get(tier, 0) + tokens
        one.ended = max(one.ended, call.began + call.seconds)
        if one.keys:
            ends[one.keys[-1]] = one
    return found


def _begun(call: RecordedCall, chunk_tokens: int) -> Served:
    """Return the request whose first call is *call*."""
    keys = _full(call, chunk_tokens)
    return Served(call.began, call.tokens - call.start, keys, call.start // chunk_tokens)


class _Asks:
    """Distinguishes new requests from further calls for known requests."""

    def __init__(self) -> None:
        self._looked: set[str] = set()

    def new(self, call: RecordedCall) -> bool:
        """True if *call* is the first one for its request.

        A host that looks up before it loads names the request in both, and may look up several
        times.
        """
        if call.kind is RecordedKind.STORE:
            return False
        known = call.request in self._looked
        if call.kind is RecordedKind.LOOKUP:
            self._looked.add(call.request)
        elif known:
            self._looked.discard(call.request)
        return not known


def totals(calls: Iterable[RecordedCall], kind: RecordedKind) -> tuple[dict[str, int], ...]:
    """Return tokens by tier, and by reason, of all calls of *kind*, as the counters count them."""
    tiers: dict[str, int] = {}
    misses: dict[str, int] = {}
    for call in calls:
        if call.kind is kind:
            for sums, more in ((tiers, call.tiers), (misses, call.misses)):
                for name, tokens in more.items():
                    sums[name] = sums.get(name, 0) + tokens
    return tiers, misses


@dataclass(frozen=True, slots=True)
class Span:
    """The requests within a span of time."""

    start: float
    seconds: float
    requests: int
    tokens: int
    tiers: Mapping[str, int]
    """Tokens hit, by tier."""


def over_time(requests: Sequence[Served], spans: int) -> list[Span]:
    """Divide *requests* into this number of *spans* of equal length, including empty ones."""
    if not requests:
        return []
    first = requests[0].began
    length = max(1e-3, (requests[-1].began - first) / spans * (1 + 1e-9))
    parts: list[list[Served]] = [[] for _ in range(spans)]
    for one in requests:
        parts[min(spans - 1, int((one.began - first) / length))].append(one)
    return [
        Span(first + i * length, length, len(part), sum(one.tokens for one in part), _hit(part))
        for i, part in enumerate(parts)
    ]


@dataclass(frozen=True, slots=True)
class Spending:
    """The time that some requests spent in each part."""

    name: str
    requests: int
    parts: Mapping[tuple[str, str], float]
    """Mean seconds of each part and tier."""

    half: float
    """Seconds that half of them took at most, all parts together."""

    most: float
    """Seconds that nine of ten took at most."""


def spending(requests: Iterable[Served]) -> list[Spending]:
    """Return the times for requests with no hit, with some, and with 90 % or more."""
    groups: dict[str, list[Served]] = {"nothing hit": [], "a part hit": [], "90 % hit or more": []}
    for one in requests:
        if not one.parts:
            continue  # stored by a host that requests chunks that it knows to be present
        share = one.hit_tokens / one.tokens if one.tokens else 0.0
        name = "90 % hit or more" if share >= 0.9 else "a part hit" if share else "nothing hit"
        groups[name].append(one)
    return [_spent(name, group) for name, group in groups.items() if group]


def _spent(name: str, group: Sequence[Served]) -> Spending:
    parts: dict[tuple[str, str], float] = {}
    for one in group:
        for part, seconds in one.parts.items():
            parts[part] = parts.get(part, 0.0) + seconds / len(group)
    took = sorted(sum(one.parts.values()) for one in group)
    return Spending(
        name, len(group), parts, took[(len(took) - 1) // 2], took[(len(took) - 1) * 9 // 10]
    )


def _hit(requests: Iterable[Served]) -> dict[str, int]:
    sums: dict[str, int] = {}
    for one in requests:
        for tier, tokens in one.tiers.items():
            sums[tier] = sums.get(tier, 0) + tokens
    return sums


def _add(one: Served, name: str, tier: str, seconds: float) -> None:
    one.parts[name, tier] = one.parts.get((name, tier), 0.0) + max(0.0, seconds)


def _full(call: RecordedCall, chunk_tokens: int) -> Sequence[ChunkKey]:
    """Return the chunks of *call* without a shorter last one."""
    short = not call.by_key and (call.end - call.start) % chunk_tokens
    return call.keys[:-1] if short else call.keys
