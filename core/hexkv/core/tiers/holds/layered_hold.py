"""Holds whose chunks come a few layers at a time, from tiers that can read parts of frames."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import takewhile

from hexkv.core.frames.codec import layers_per_part
from hexkv.core.memory.pipelining import Pipelining
from hexkv.core.memory.pool import BlockLease
from hexkv.core.tiers.batches import Batch
from hexkv.core.tiers.holds.hold import LocalHold
from hexkv.core.tiers.matching import Found, runs, why_absent
from hexkv.core.tiers.read.ranges import FIRST, RangeReader
from hexkv.core.tiers.runtime import RAW, TierRuntime
from hexkv.core.tiers.tier import Tier
from hexkv.ports import (
    PAGE,
    Deadline,
    Lease,
    PoolExhausted,
    Reason,
    frame_bytes,
    raw_sizes,
    release_all,
)

log = logging.getLogger(__name__)

_GROUPS_AHEAD = 4
"""Groups of layers that are read ahead of the one that the model computes. One is copied."""

_AT_FIRST = 2
"""The same for the first groups: the copy that the host waits for shares CPUs with the readers."""


class LayeredHold(LocalHold):
    """The first of some chunks, as far as there is memory for all their layers. For one thread.

    A chunk of which a part does not arrive is read whole, which finds out why.
    """

    _parted = False
    """True if any chunk is read part by part."""

    _hit = 0

    @property
    def done(self) -> bool:
        return not (self._parted and self._left) and super().done

    def bring(self, group: int, deadline: Deadline) -> int:
        self._settle(deadline)
        self._left = len(self._terms.layered) - group - 1
        if self._parted:
            for run in runs(sorted(self._reader.take(group, deadline))):
                if run[0] < self._hit:
                    self._read_again(run[0], min(run[-1] + 1, self._hit), deadline)
            self._settle(deadline)
            if not group:
                self._reader.read_ahead(1, deadline)  # while the first is copied
                if self._encoded:
                    self._reader.name_encoded()
        return self._hit

    def once(self, group: int, then: Callable[[], None]) -> None:
        if self._parted:
            self._reader.once_whole(group, then)
        else:
            then()

    def go_on(self, group: int, deadline: Deadline) -> None:
        if self._parted:
            ahead = _AT_FIRST if group < FIRST else _GROUPS_AHEAD
            self._reader.read_ahead(group + ahead, deadline)

    def used(self, deadline: Deadline) -> None:
        first = takewhile(lambda lease: lease is not None, self._leases[: self._hit])
        leases = [lease for lease in first if lease is not None]
        origins = self._origins[: len(leases)]
        with self._fitted(leases, origins) as kept:
            keys = [spec.key for spec in self._wanted[: len(kept)]]
            batch = Batch(keys, kept, self._terms.after)
            self._stack.promote(batch, origins[: len(kept)], deadline)
        if self._parted and self._ended is not None:
            behind = [why or Reason.REFUSED for why in self._reasons[self._hit :]]
            here: list[Reason | None] = [None] * self._hit
            self._ended([*origins, *[""] * len(behind)], [*here, *behind])

    def release(self) -> None:
        if self._parted:
            self._reader.drop()
        super().release()

    def _start(self) -> None:
        self._reader = RangeReader(self._stack.runtime, self._wanted, self._terms.encoded)
        self._left = len(self._terms.layered)
        super()._start()

    def _begin(self, found: Found) -> None:
        """Begin with the chunks, in order, as far as there are blocks."""
        wait: Deadline | None = self._terms.wait or self._deadline
        free: int | None = None
        number = 0
        while number < len(found):
            tier, end = found[number], number + 1
            if tier is None:
                break
            while end < len(found) and found[end] is tier:
                end += 1
            if tier.lends:
                self._lend(range(number, end), tier, self._wanted[number:end])
                number, wait = end, None
                continue
            free = self._room() if free is None else free
            begin = self._begin_parts if self._reader.serves(tier) else self._begin_whole
            begun = begin(tier, number, min(end, number + free), wait)
            number, free, wait = number + begun, free - begun, None
            if number < end:
                break
        self._reasons[number:] = [self._why(i, found[i]) for i in range(number, len(found))]
        self._hit = number
        if self._parted:
            step = layers_per_part(self._wanted[0].layout)
            groups = self._terms.layered
            self._reader.divide([range(g.start // step, -(-g.stop // step)) for g in groups])
            self._reader.read_ahead(0, self._deadline)

    def _room(self) -> int:
        """Return how many chunks the pool may hold for one call, so that others can proceed."""
        pool = self._stack.pool
        block = pool.slot_bytes
        if pool.slots == 1:  # one for blocks of any size
            block = frame_bytes(max(raw_sizes(self._wanted)))
        slots = pool.capacity // block
        return max(1, slots - Pipelining.with_slots(slots, block).passage(slots))

    def _why(self, number: int, tier: Tier | None) -> Reason:
        """Return why a chunk on *tier* is not read."""
        if tier is not None:
            return Reason.REFUSED
        key, stack = self._wanted[number].key, self._stack
        return why_absent(stack.tiers, stack.runtime, key, self._terms.rate)

    def _end(self) -> None:
        """Report the result, unless the last group does."""
        if not self._parted:
            super()._end()

    def _begin_parts(self, tier: Tier, start: int, end: int, wait: Deadline | None) -> int:
        """Begin to read chunks part by part, as many as there are blocks for."""
        until = Deadline(self._deadline.clock, 0.0) if wait is None else wait
        sizes = raw_sizes(self._wanted[start:end])
        try:
            blocks = dict(enumerate(self._stack.pool.lease_run(sizes, self._owner, until), start))
        except PoolExhausted:
            return 0
        for number, block in blocks.items():
            block.spec = self._wanted[number]
            self._leases[number] = block
            self._origins[number] = tier.name
            self._tried[number] = {tier.name}
        if blocks:
            self._parted = True
            self._reader.add(tier, blocks)
        return len(blocks)

    def _begin_whole(self, tier: Tier, start: int, end: int, wait: Deadline | None = None) -> int:
        """Begin to read whole chunks, as many as there is room for."""
        claims = self._stack.fetcher.begin(
            tier,
            self._wanted[start:end],
            self._owner,
            self._deadline,
            wait=wait,
            keeps=True,
            encoded=self._encoded,
        )
        for number, claim in enumerate(claims, start):
            self._claim(number, claim)
        return len(claims)

    def _read_again(self, start: int, end: int, deadline: Deadline) -> None:
        """Read the whole chunks of which a part did not arrive, which finds out why.

        All together, so that damaged chunks are set aside once the first of them is settled:
        the host may store the prompt anew right after that.
        """
        self._reader.leave(start, end)
        self.replaced += end - start
        names, self._deadline = self._origins[start:end], deadline
        release_all([lease for lease in self._leases[start:end] if lease is not None])
        self._leases[start:end] = [None] * (end - start)
        self._origins[start:end] = [""] * (end - start)
        tiers = {tier.name: tier for tier in self._stack.tiers}
        for run in runs([i for i in range(start, end) if names[i - start] in tiers]):
            at = run[0]
            while at <= run[-1]:
                stop = at + 1
                while stop <= run[-1] and names[stop - start] == names[at - start]:
                    stop += 1
                begun = self._begin_whole(tiers[names[at - start]], at, stop)
                if at + begun < stop:
                    self._shorten(at + begun, Reason.REFUSED)
                    return
                at = stop

    def _settle(self, deadline: Deadline) -> None:
        """Wait for the chunks that are read whole; end before the first that is missing."""
        if not self.wait(deadline):
            for number in list(self._claims):
                self._reasons[number] = Reason.TIMED_OUT
        leases = self._leases[: self._hit]
        if None in leases:
            self._shorten(leases.index(None))

    def _shorten(self, hit: int, why: Reason | None = None) -> None:
        """Go on with only the first *hit* chunks."""
        for number in [number for number in self._claims if number >= hit]:
            self._claims.pop(number).drop()
        self._reader.leave(hit, self._hit)
        behind = [lease for lease in self._leases[hit:] if lease is not None]
        self._leases[hit:] = [None] * (len(self._leases) - hit)
        if behind:
            release_all(behind)
        if hit < self._hit and why is not None:
            self._reasons[hit] = why
        self._hit = min(hit, self._hit)

    def _fitted(
        self, leases: Sequence[Lease], tiers: Sequence[str]
    ) -> AbstractContextManager[Sequence[Lease]]:
        """Return the blocks to offer to faster tiers, each as long as the frame in it."""
        fastest = self._stack.tiers[0].name
        raw = [lease.spec is None or lease.spec.serde == RAW for lease in leases]
        if tiers.count(fastest) == len(tiers) or all(raw):
            return nullcontext(leases)
        return _fitted(self._stack.runtime, leases, self._owner)


@contextmanager
def _fitted(runtime: TierRuntime, leases: Sequence[Lease], owner: str) -> Iterator[Sequence[Lease]]:
    """Yield the first of *leases*, each in a block as long as its frame, as far as blocks are free.

    A chunk that was read layer by layer is in a block as long as the raw chunk, also if its frame
    is shorter.
    """
    now, mine = Deadline(runtime.clock, 0.0), list[BlockLease]()
    kept: list[Lease] = []
    try:
        for lease in leases:
            if lease.spec is not None and lease.spec.serde != RAW:
                size = len(lease.payload)
                if frame_bytes(size) != len(lease.frame):
                    mine.append(runtime.pool.lease(size, owner, now))
                    mine[-1].frame[: PAGE + size] = lease.frame[: PAGE + size]
                    mine[-1].spec, lease = lease.spec, mine[-1]
            kept.append(lease)
    except PoolExhausted as error:
        log.debug("encoded chunks are not promoted: %s", error)
    try:
        yield kept
    finally:
        release_all(mine)
