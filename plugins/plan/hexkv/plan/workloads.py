"""Synthetic traces of different character, to judge policies by more than one.

Each is a pure function of its seed and its length. None imitates a recorded trace: they are chosen
to differ, so that no policy can be tuned to all of them.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping
from itertools import accumulate, chain, islice
from random import Random
from types import MappingProxyType

from hexkv.plan.trace import TracedPrompt
from hexkv.ports import KEY_BYTES, ChunkKey

CHUNK = 512
"""Tokens of a chunk."""

Prompts = Iterator[list[ChunkKey]]


class _Maker:
    """Random numbers, and unique keys."""

    def __init__(self, seed: int) -> None:
        self.dice = Random(seed)  # noqa: S311 - a workload, not a secret

    def keys(self, count: int) -> list[ChunkKey]:
        return [ChunkKey(self.dice.randbytes(KEY_BYTES)) for _ in range(count)]


def assistants(seed: int) -> Prompts:
    """System prompts of very different popularity, each followed by a question asked once."""
    make = _Maker(seed)
    systems = [make.keys(make.dice.randint(2, 24)) for _ in range(400)]
    weights = list(accumulate(1 / rank for rank in range(1, 401)))
    while True:
        (system,) = make.dice.choices(systems, cum_weights=weights)
        yield system + make.keys(make.dice.randint(1, 20))


def chats(seed: int) -> Prompts:
    """Conversations that grow turn by turn; half of the users are fifty times slower."""
    make = _Maker(seed)
    pace = {"fast": 30.0, "slow": 1500.0}
    waiting: list[tuple[float, int, str, list[ChunkKey]]] = []
    now, number = 0.0, 0
    while True:
        now += make.dice.expovariate(0.4)
        while waiting and waiting[0][0] <= now:
            due, _, speed, prompt = heapq.heappop(waiting)
            prompt = prompt + make.keys(make.dice.randint(1, 6))
            yield prompt
            if make.dice.random() < 0.7:
                number += 1
                due += make.dice.expovariate(1 / pace[speed])
                heapq.heappush(waiting, (due, number, speed, prompt))
        prompt = make.keys(make.dice.randint(2, 12))
        yield prompt
        if make.dice.random() < 0.7:
            number += 1
            speed = make.dice.choice(list(pace))
            due = now + make.dice.expovariate(1 / pace[speed])
            heapq.heappush(waiting, (due, number, speed, prompt))


def loops(seed: int) -> Prompts:
    """The same documents over and over in one order, as an evaluation does."""
    make = _Maker(seed)
    documents = [make.keys(make.dice.randint(4, 16)) for _ in range(600)]
    while True:
        yield from documents


def scans(seed: int) -> Prompts:
    """A few popular documents, and occasionally a sweep over many that are requested only once."""
    make = _Maker(seed)
    popular = [make.keys(make.dice.randint(4, 16)) for _ in range(150)]
    while True:
        for _ in range(400):
            yield make.dice.choice(popular)
        for _ in range(200):
            yield make.keys(make.dice.randint(4, 16))


def agents(seed: int) -> Prompts:
    """Agents that add a step every few moments to a deep prompt that they share, and end."""
    make = _Maker(seed)
    tools = [make.keys(30) for _ in range(4)]
    running: list[list[ChunkKey]] = []
    while True:
        if len(running) < 24:
            running.append(make.dice.choice(tools) + make.keys(make.dice.randint(1, 10)))
        at = make.dice.randrange(len(running))
        running[at] = running[at] + make.keys(make.dice.randint(1, 3))
        yield running[at]
        if make.dice.random() < 0.04:
            del running[at]


def drifting(seed: int) -> Prompts:
    """Documents of changing popularity: those requested an hour ago are forgotten."""
    make = _Maker(seed)
    documents = [make.keys(make.dice.randint(4, 16)) for _ in range(100)]
    while True:
        documents[make.dice.randrange(100)] = make.keys(make.dice.randint(4, 16))
        for _ in range(6):
            yield documents[min(99, int(make.dice.expovariate(0.05)))]


def mixed(seed: int) -> Prompts:
    """Chats, agents and assistants on one machine."""
    dice = Random(seed)  # noqa: S311
    parts = [chats(seed), agents(seed + 1), assistants(seed + 2)]
    while True:
        yield next(dice.choice(parts))


def phases(seed: int) -> Prompts:
    """Another character every thousand requests; no earlier chunk comes back."""
    kinds = [chats, loops, assistants, agents, scans, drifting]
    for turn in range(1_000_000):
        yield from islice(kinds[turn % len(kinds)](seed + turn), 1000)


WORKLOADS: Mapping[str, Callable[[int], Prompts]] = MappingProxyType(
    {
        maker.__name__: maker
        for maker in (assistants, chats, loops, scans, agents, drifting, mixed, phases)
    }
)


def synthetic(name: str, requests: int, seed: int = 0) -> list[TracedPrompt]:
    """Return the first *requests* of the workload *name*."""
    prompts = islice(WORKLOADS[name](seed), requests)
    return [TracedPrompt(len(keys) * CHUNK, keys) for keys in prompts]


def footprint(requests: list[TracedPrompt]) -> int:
    """Return the number of different chunks."""
    return len(set(chain.from_iterable(request.keys for request in requests)))
