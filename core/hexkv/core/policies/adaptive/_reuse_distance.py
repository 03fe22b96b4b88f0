"""What chunks of each class are worth at each age, learned from when they were met again."""

from __future__ import annotations

from array import array

from hexkv.core.policies.adaptive._ages import BINS, EDGES, bin_of

_SNAPSHOTS = 512
_LEARN = 1024
"""Ticks after which the worth is computed anew, in a small tier."""

_MEMORY = 1 << 17
"""Ticks after which observations count half, in a small tier."""

_REQUESTS = 32
"""Requests whose observations weigh as much as what is believed beforehand."""


class Gaps:
    """How long it takes until a chunk is met again, by class, and what follows from that.

    The worth of a chunk is the best rate of hits that keeping it can give: over all times
    that it may be kept from now on, the greatest quotient of its chance to be met in that
    time and the time it is expected to take up room. That is Gittins' index ("Bandit
    processes and dynamic allocation indices", 1979) with room as the cost, and close to the
    hit density of LHD (Beckmann, Chen and Cidon, NSDI 2018).

    All observations count, those of evicted chunks too, so the policy's own decisions do
    not bend them. What is believed about a class before anything is seen of it is what is
    known of the class before it; of the first, that every doubling of the age is equally
    likely, which makes older chunks worth less.
    """

    def __init__(self, classes: int) -> None:
        self._met = [array("d", bytes(8 * BINS)) for _ in range(classes)]
        """Chunks met again, by the class they were in and the bin of their age."""

        self._entered = array("d", bytes(8 * classes))
        """Chunks that came into each class, be it by being met."""

        self._snapshots = [self._entered[:]]
        """``_entered`` as it was every ``_step`` ticks: how many are older than an age."""

        self._step = 256
        self._requests = 0
        self._relearn = _LEARN
        self._halve = _MEMORY
        self._worth: list[list[float]] = []
        self._learn(0)

    def enter(self, kind: int) -> None:
        """A chunk came into class *kind* now."""
        self._entered[kind] += 1

    def met(self, kind: int, age: int, count: int) -> None:
        """So many chunks that came into class *kind* so long ago were met again."""
        self._met[kind][bin_of(age)] += count

    def worth(self, kind: int, age: int) -> float:
        """Hits per tick and chunk that keeping a chunk of this class and age can give."""
        worth = self._worth[kind]
        at = bin_of(age)
        low, high = EDGES[at], EDGES[at + 1]
        if age >= high:
            return worth[BINS]
        return worth[at] + (worth[at + 1] - worth[at]) * (age - low) / (high - low)

    def advance(self, now: int, chunks: int) -> None:
        """A request begins at *now*, when the tier holds so many chunks."""
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
        """How many came into each class at least *age* before *now*."""
        if age < self._step:
            return self._entered
        return self._snapshots[int(max(0.0, now - age) / self._step)]


def _smooth(chance: list[float]) -> list[float]:
    """Each bin with a part of its neighbours: where exactly a bin begins means nothing."""
    before, behind = [chance[0], *chance[:-1]], [*chance[1:], chance[-1]]
    return [
        (low + 2 * own + high) / 4 for low, own, high in zip(before, chance, behind, strict=True)
    ]


def _index(chance: list[float]) -> list[float]:
    """The worth at each edge, given the chance of a new chunk to be met in each bin."""
    alive = 1.0
    hits, room = [], []
    for at, share in enumerate(chance):
        met = min(share, 0.98 * alive)
        hits.append(met)
        room.append((EDGES[at + 1] - EDGES[at]) * (alive - met / 2))
        alive -= met
    # From the end on, a bin is one with those behind it as long as they are the better ones.
    worth, stack = [0.0], [(0.0, 1.0)]
    for gain, cost in zip(reversed(hits), reversed(room), strict=True):
        while stack and stack[-1][0] * cost > gain * stack[-1][1]:
            more, longer = stack.pop()
            gain, cost = gain + more, cost + longer
        stack.append((gain, cost))
        worth.append(gain / cost)
    return worth[::-1]
