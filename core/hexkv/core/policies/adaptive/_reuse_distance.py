"""The worth of chunks of each class at each age, learned from the ages at which they are reused."""

from __future__ import annotations

from array import array

from hexkv.core.policies.adaptive._ages import BINS, EDGES, bin_of

_SNAPSHOTS = 512
_LEARN = 1024
"""Ticks after which the worth is computed again, in a small tier."""

_MEMORY = 1 << 17
"""Ticks after which observations are halved, in a small tier."""

_REQUESTS = 32
"""The number of requests whose observations weigh as much as the prior."""


class Gaps:
    """The time until a chunk is used again, by class, and the worth that follows from it.

    The worth of a chunk is the best rate of hits that keeping it can give: over all times that it
    may be kept from now on, the greatest quotient of its chance to be used in that time and the
    time for which it is expected to take up space. That is Gittins' index ("Bandit processes and
    dynamic allocation indices", 1979) with space as the cost, and close to the hit density of LHD
    (Beckmann, Chen and Cidon, NSDI 2018).

    All observations count, those of evicted chunks too, so the policy's own decisions do not bias
    them. The prior of a class is the estimate of the class before it; for the first, that every
    doubling of the age is equally likely, which makes older chunks worth less.
    """

    def __init__(self, classes: int) -> None:
        self._met = [array("d", bytes(8 * BINS)) for _ in range(classes)]
        """Reused chunks, by their class before and the bin of their age."""

        self._entered = array("d", bytes(8 * classes))
        """Chunks that came into each class, also by a use."""

        self._snapshots = [self._entered[:]]
        """Copies of ``_entered``, one every ``_step`` ticks: they give the chunks older than an
        age."""

        self._step = 256
        self._requests = 0
        self._relearn = _LEARN
        self._halve = _MEMORY
        self._worth: list[list[float]] = []
        self._learn(0)

    def enter(self, kind: int) -> None:
        """Count a chunk that comes into class *kind* now."""
        self._entered[kind] += 1

    def met(self, kind: int, age: int, count: int) -> None:
        """Count *count* chunks of class *kind* that were used again at this *age* in the class."""
        self._met[kind][bin_of(age)] += count

    def worth(self, kind: int, age: int) -> float:
        """The hits per tick and chunk that keeping a chunk of this class and age can give."""
        worth = self._worth[kind]
        at = bin_of(age)
        low, high = EDGES[at], EDGES[at + 1]
        if age >= high:
            return worth[BINS]
        return worth[at] + (worth[at + 1] - worth[at]) * (age - low) / (high - low)

    def advance(self, now: int, chunks: int) -> None:
        """Begin a request at *now*, when the tier holds this number of *chunks*."""
        self._requests += 1
        while now >= self._step * len(self._snapshots):
            self._snapshots.append(self._entered[:])
            if len(self._snapshots) > _SNAPSHOTS:
                self._snapshots = self._snapshots[::2]
                self._step *= 2
        if now >= self._relearn:
            self._relearn = now + max(_LEARN, chunks >> 4)
            self._learn(now)
        if now >= self._halve:
            self._halve = now + max(_MEMORY, chunks << 3)
            for row in (self._entered, *self._met, *self._snapshots):
                row[:] = array("d", [value / 2 for value in row])

    def _learn(self, now: int) -> None:
        prior = _REQUESTS * (now / max(1, self._requests)) + 16
        entered = [self._older(edge, now) for edge in EDGES[:BINS]]
        chance = [
            (sum(met[at] for met in self._met) + prior / BINS) / (sum(entered[at]) + prior)
            for at in range(BINS)
        ]
        self._worth = []
        for kind, met in enumerate(self._met):
            chance = [
                (met[at] + prior * before) / (entered[at][kind] + prior)
                for at, before in enumerate(chance)
            ]
            self._worth.append(_index(_smooth(chance)))

    def _older(self, age: float, now: int) -> array[float]:
        """The number of chunks that came into each class at least *age* before *now*."""
        if age < self._step:
            return self._entered
        return self._snapshots[int(max(0.0, now - age) / self._step)]


def _smooth(chance: list[float]) -> list[float]:
    """Mix each bin with a part of its neighbours: the exact edges of bins have no meaning."""
    before, behind = [chance[0], *chance[:-1]], [*chance[1:], chance[-1]]
    return [
        (low + 2 * own + high) / 4 for low, own, high in zip(before, chance, behind, strict=True)
    ]


def _index(chance: list[float]) -> list[float]:
    """Return the worth at each edge, given the chance of a new chunk to be used in each bin."""
    alive = 1.0
    hits, room = [], []
    for at, share in enumerate(chance):
        met = min(share, 0.98 * alive)
        hits.append(met)
        room.append((EDGES[at + 1] - EDGES[at]) * (alive - met / 2))
        alive -= met
    # From the end on, a bin is merged with those behind it as long as they are better.
    worth, stack = [0.0], [(0.0, 1.0)]
    for gain, cost in zip(reversed(hits), reversed(room), strict=True):
        while stack and stack[-1][0] * cost > gain * stack[-1][1]:
            more, longer = stack.pop()
            gain, cost = gain + more, cost + longer
        stack.append((gain, cost))
        worth.append(gain / cost)
    return worth[::-1]
