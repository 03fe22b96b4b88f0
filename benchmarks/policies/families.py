"""Families of traces whose laws were written down before any policy was run on them.

For judging policies that were made with other traces in sight. Each is a pure function of its seed.
Times are seconds, lengths are chunks; a lognormal law is given by its median and its sigma.

========= ========================================================================================
returning Chats of users who come back. One of 20 system prompts (2 to 12, Zipf 1.1), facts
          remembered of the user (1 to 4), then turns of 1 + geometric (mean 3). Another turn with
          probability 0.75, after lognormal(60, 1.6). When a chat has ended its user returns with
          probability 0.5 after Pareto(1.1) from 600 on: with 0.4 to the old chat, else to a new
          one. New users: one in 4 seconds.
retrieved Answers from documents. 2,000 documents of lognormal(6, 0.8), asked for by Zipf 0.9;
          before every 100th request one of them, any, is replaced by a new version. An instruction
          (2), a document, with probability 0.3 a second one behind it, and a question (1). With
          0.25 the same documents are asked about again, 5 to 50 requests later.
trees     Agents that try several ways. One of 6 tool prompts (8 to 40), a task (2 to 20), then
          steps of 1 + geometric (mean 2). Each step grows 1, 2, 3 or 4 branches (0.5, 0.2, 0.2,
          0.1), asked for one right after the other; of several a branch is abandoned with 0.55.
          The next step of one that lives comes after an exponential of 20; with 0.1 it goes back
          to an earlier step instead. A task ends after 40 steps. Tasks come in bursts of 1 to 12,
          one burst in 300 seconds.
scans     One of 50 assistants (2 to 24, Zipf 1.2) and a question (1 to 8) with probability 0.6;
          documents that are asked for once (20 to 80) with 0.1; else the next of 300 documents
          (4 to 30) that an evaluation passes over in one order, each asked about twice in a row.
edits     Completion in an editor. One of 40 repositories' prompts (4 to 16, Zipf 0.8), a file of
          lognormal(10, 0.7). Each request edits the file at a place that lies near the one before:
          the rest is new. A session has 1 + geometric (mean 25) requests, an exponential
          of 8 apart; its user opens the file again with 0.6 after lognormal(3600, 1). New
          sessions: one in 30 seconds. Held back until a policy was chosen by the others.
========= ========================================================================================
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from functools import partial
from itertools import accumulate, count, islice
from random import Random

from hexkv.plan.trace import TracedPrompt
from hexkv.ports import KEY_BYTES, ChunkKey

CHUNK = 512
"""Tokens of a chunk."""

Keys = list[ChunkKey]
Prompts = Iterator[Keys]


class Maker:
    """Random numbers of the laws above, and keys that nothing else has."""

    def __init__(self, seed: int) -> None:
        self.dice = Random(seed)

    def keys(self, count: int) -> Keys:
        return [ChunkKey(self.dice.randbytes(KEY_BYTES)) for _ in range(count)]

    def between(self, low: int, high: int) -> Keys:
        return self.keys(self.dice.randint(low, high))

    def some(self, mean: float) -> Keys:
        """One chunk and geometrically many more: *mean* in all."""
        length = 1
        while self.dice.random() < 1 - 1 / mean:
            length += 1
        return self.keys(length)

    def lognormal(self, median: float, sigma: float) -> float:
        return median * self.dice.lognormvariate(0, sigma)

    def document(self, median: float, sigma: float) -> Keys:
        return self.keys(max(1, round(self.lognormal(median, sigma))))


def zipf(exponent: float, ranks: int) -> list[float]:
    """Cumulative weights."""
    return list(accumulate(rank**-exponent for rank in range(1, ranks + 1)))


class Agenda:
    """What happens when; of two things at one moment the one that was planned first."""

    def __init__(self) -> None:
        self._planned: list[tuple[float, int, Callable[[float], Prompts]]] = []
        self._number = count()

    def plan(self, at: float, what: Callable[[float], Prompts]) -> None:
        heapq.heappush(self._planned, (at, next(self._number), what))

    def run(self) -> Prompts:
        while self._planned:
            at, _, what = heapq.heappop(self._planned)
            yield from what(at)


def returning(seed: int) -> Prompts:
    make, agenda = Maker(seed), Agenda()
    dice, systems, weights = make.dice, [make.between(2, 12) for _ in range(20)], zipf(1.1, 20)

    def arrive(now: float) -> Prompts:
        agenda.plan(now + dice.expovariate(1 / 4), arrive)
        (system,) = dice.choices(systems, cum_weights=weights)
        yield from turn(now, system + make.between(1, 4), None)

    def turn(now: float, user: Keys, chat: Keys | None) -> Prompts:
        prompt = (user if chat is None else chat) + make.some(3)
        yield prompt
        if dice.random() < 0.75:
            agenda.plan(now + make.lognormal(60, 1.6), lambda at: turn(at, user, prompt))
        elif dice.random() < 0.5:
            later = now + 600 * dice.paretovariate(1.1)
            old = prompt if dice.random() < 0.4 else None
            agenda.plan(later, lambda at: turn(at, user, old))

    agenda.plan(0.0, arrive)
    return agenda.run()


def retrieved(seed: int) -> Prompts:
    make = Maker(seed)
    dice, weights, instruction = make.dice, zipf(0.9, 2000), make.keys(2)
    documents = [make.document(6, 0.8) for _ in range(2000)]
    versions = [0] * 2000
    seconds: dict[tuple[int, int, int, int], Keys] = {}
    again: list[tuple[int, int, Keys]] = []
    for number in count():
        if number % 100 == 99:
            at = dice.randrange(2000)
            documents[at] = make.document(6, 0.8)
            versions[at] += 1
        if again and again[0][0] <= number:
            prompt = heapq.heappop(again)[2]
        else:
            first, second = dice.choices(range(2000), cum_weights=weights, k=2)
            prompt = instruction + documents[first]
            if dice.random() < 0.3 and first != second:
                # The same text behind another one has other keys, the same ones each time.
                pair = (first, versions[first], second, versions[second])
                if pair not in seconds:
                    seconds[pair] = make.keys(len(documents[second]))
                prompt = prompt + seconds[pair]
        yield prompt + make.keys(1)
        if dice.random() < 0.25:
            heapq.heappush(again, (number + dice.randint(5, 50), number, prompt))


def trees(seed: int) -> Prompts:
    make, agenda = Maker(seed), Agenda()
    dice, tools = make.dice, [make.between(8, 40) for _ in range(6)]

    def burst(now: float) -> Prompts:
        agenda.plan(now + dice.expovariate(1 / 300), burst)
        for _ in range(dice.randint(1, 12)):
            task = [dice.choice(tools) + make.between(2, 20)]
            steps = [40]
            yield from step(now, task, steps)

    def step(now: float, path: list[Keys], steps: list[int]) -> Prompts:
        branches = dice.choices((1, 2, 3, 4), (0.5, 0.2, 0.2, 0.1))[0]
        for _ in range(branches):
            if steps[0] == 0:
                return
            steps[0] -= 1
            prompt = path[-1] + make.some(2)
            yield prompt
            if branches == 1 or dice.random() >= 0.55:
                back = dice.random() < 0.1
                on = path[: dice.randint(1, len(path))] if back else [*path, prompt]
                agenda.plan(now + dice.expovariate(1 / 20), partial(step, path=on, steps=steps))

    agenda.plan(0.0, burst)
    return agenda.run()


def scans(seed: int) -> Prompts:
    make = Maker(seed)
    dice, weights = make.dice, zipf(1.2, 50)
    assistants = [make.between(2, 24) for _ in range(50)]
    documents = [make.between(4, 30) for _ in range(300)]
    turn = 0
    while True:
        kind = dice.random()
        if kind < 0.6:
            (assistant,) = dice.choices(assistants, cum_weights=weights)
            yield assistant + make.between(1, 8)
        elif kind < 0.7:
            yield make.between(20, 80)
        else:
            yield documents[turn // 2 % 300] + make.keys(1)
            turn += 1


def edits(seed: int) -> Prompts:
    make, agenda = Maker(seed), Agenda()
    dice, weights = make.dice, zipf(0.8, 40)
    repositories = [make.between(4, 16) for _ in range(40)]

    def arrive(now: float) -> Prompts:
        agenda.plan(now + dice.expovariate(1 / 30), arrive)
        (repository,) = dice.choices(repositories, cum_weights=weights)
        file = make.document(10, 0.7)
        yield from edit(now, repository, file, dice.randrange(len(file)))

    def edit(now: float, repository: Keys, file: Keys, place: int) -> Prompts:
        place = min(max(0, place + round(dice.gauss(0, 1.5))), len(file) - 1)
        edited = file[:place] + make.keys(len(file) - place)
        yield repository + edited
        if dice.random() < 1 - 1 / 25:
            later = now + dice.expovariate(1 / 8)
        elif dice.random() < 0.6:
            later = now + make.lognormal(3600, 1)
        else:
            return
        agenda.plan(later, lambda at: edit(at, repository, edited, place))

    agenda.plan(0.0, arrive)
    return agenda.run()


FAMILIES: dict[str, Callable[[int], Prompts]] = {
    made.__name__: made for made in (returning, retrieved, trees, scans, edits)
}


def trace(family: str, requests: int, seed: int) -> list[TracedPrompt]:
    """The first *requests* of a family."""
    prompts = islice(FAMILIES[family](seed), requests)
    return [TracedPrompt(len(keys) * CHUNK, keys) for keys in prompts]
