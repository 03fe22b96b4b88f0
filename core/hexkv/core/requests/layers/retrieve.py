"""Retrieving layer by layer: what the model needs next is being read while it computes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Self

from hexkv.core.frames.codec import layers_per_part
from hexkv.core.keys.prompts import Prompt
from hexkv.core.memory.copying import Copier
from hexkv.core.memory.pipelining import Pipelining
from hexkv.core.memory.pool import BlockLease
from hexkv.core.requests.layers.limits import Hosts, TimeBudget, room
from hexkv.core.requests.layers.ranges import RangeReader
from hexkv.core.requests.retrieve import Arrived, worth_waiting
from hexkv.core.tiers.cache import TierStack
from hexkv.core.tiers.matching import runs, why_absent
from hexkv.core.tiers.pending_reads import PendingRead
from hexkv.core.tiers.tier import Tier
from hexkv.core.tiers.writing import Batch
from hexkv.ports import (
    ChunkKey,
    Deadline,
    DeviceKV,
    InvalidRequest,
    Lease,
    PoolExhausted,
    Reason,
    Retrieved,
)

PARTS_AHEAD = 4
"""How many layers are read ahead of the one that the model computes."""


class LayeredRetrieve:
    """A retrieve under way: iterating gives each layer's number once its KV is in the device.

    What turns out not to be whole shortens :attr:`hit_tokens` at any layer. The layers given
    before hold KV of the longer prefix; the host computes again, from there, what it lost.
    """

    def __init__(
        self,
        stack: TierStack,
        copier: Copier,
        prompt: Prompt,
        device: DeviceKV,
        *,
        skip: int,
        pace: Pipelining,
        owner: str,
        patience: TimeBudget,
        hosts: Hosts,
        ready: dict[ChunkKey, PendingRead],
        report: Callable[[Arrived], Retrieved],
    ) -> None:
        self._stack = stack
        self._copier = copier
        self._prompt = prompt
        self._device = device
        self._skip = skip
        self._pace = pace
        self._owner = owner
        self._patience = patience
        self._hosts = hosts
        self._ready = ready
        self._report = report
        self._reader = RangeReader(stack.runtime, prompt)
        self._found: Sequence[Tier] = ()
        self._claims: dict[int, PendingRead] = {}
        self._leases: dict[int, Lease] = {}
        self._tiers: dict[int, str] = {}
        self._hit = 0
        self._why: Reason | None = Reason.ABSENT
        self._layer = 0
        self._closed = False
        self._result: Retrieved | None = None

    @property
    def hit_tokens(self) -> int:
        """The device gets the KV of tokens ``[0, hit_tokens)``, as far as is known by now."""
        return max(self._skip, self._prompt.ends[self._hit - 1]) if self._hit else self._skip

    def begin(self) -> None:
        """Find the chunks, hold their blocks and begin to read. Once, before anything else."""
        with self._patience.step() as deadline:
            self._found = self._stack.match_prefix(self._prompt.keys, deadline)
            keys = self._prompt.keys[: len(self._found)]
            self._stack.touch(keys)
            # Making room for one chunk must not push out another one of the same prompt.
            self._stack.pins.pin(self._owner, keys)
            self._hit = self._hold(deadline)
            if self._hit < len(self._found):
                self._why = Reason.REFUSED
            elif self._hit < len(self._prompt):
                tiers, rate = self._stack.tiers, self._stack.runtime.compute_rate
                self._why = why_absent(tiers, rate, self._prompt.keys[self._hit])
            self._reader.read_ahead(0, deadline)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> int:
        layer, layout = self._layer, self._prompt.layout
        if layer == layout.layers:
            raise StopIteration
        if self._closed:
            raise InvalidRequest("the context of the retrieve was left")
        with self._patience.step() as deadline:
            part, within = divmod(layer, layers_per_part(layout))
            if not within:
                self._load(part, deadline)
            self._scatter(layer, deadline)
        self._layer += 1
        if self._layer == layout.layers:
            self._finish()
        return layer

    def result(self) -> Retrieved:
        """What was loaded, after the last layer.

        Raises:
            InvalidRequest: there are layers still to come.
        """
        if self._result is None:
            raise InvalidRequest(f"layer {self._layer} and those after it are still to come")
        return self._result

    def close(self) -> None:
        """Let go of everything; reads and copies that have begun keep their blocks to their end."""
        self._closed = True
        self._reader.drop()
        for claim in (*self._claims.values(), *self._ready.values()):
            claim.drop()
        self._claims.clear()
        self._ready.clear()
        for lease in self._leases.values():
            lease.release()
        self._leases.clear()
        self._hosts.leave(self)
        self._stack.pins.unpin(self._owner)

    def _hold(self, deadline: Deadline) -> int:
        """Hold blocks for the chunks, in order. For how many there are some."""
        free = room(self._pace, self._stack.pool)
        found, number = self._found, 0
        wait = None
        if found and not self._ready and self._hosts.may_wait():
            wait = worth_waiting(self._stack, self._prompt, found, 0, deadline)
        while number < len(found):
            claim = self._ready.pop(self._prompt.keys[number], None)
            if claim is not None:
                self._claims[number] = claim
                number += 1
                continue
            tier, end = found[number], number + 1
            while (
                end < len(found)
                and found[end] is tier
                and self._prompt.keys[end] not in self._ready
            ):
                end += 1
            most = end if tier.lends else min(end, number + free)
            begin = self._begin_parts if self._reader.serves(tier) else self._begin_whole
            begun = begin(tier, number, most, deadline, wait)
            wait = None
            if begun and not tier.lends:
                self._hosts.hold(self)
            free -= 0 if tier.lends else begun
            number += begun
            if number < end:
                break
        return number

    def _begin_parts(
        self, tier: Tier, start: int, end: int, deadline: Deadline, wait: Deadline | None
    ) -> int:
        """Have chunks read part by part, as many as there are blocks for."""
        now = Deadline(deadline.clock, 0.0)
        blocks: dict[int, BlockLease] = {}
        for number in range(start, end):
            try:
                until = now if blocks or wait is None else wait
                block = self._stack.pool.lease(self._prompt.raw_bytes(number), self._owner, until)
            except PoolExhausted:
                break
            block.spec = self._prompt.spec(number)
            blocks[number] = self._leases[number] = block
            self._tiers[number] = tier.name
        if blocks:
            self._reader.add(tier, blocks)
        return len(blocks)

    def _begin_whole(
        self, tier: Tier, start: int, end: int, deadline: Deadline, wait: Deadline | None = None
    ) -> int:
        """Have chunks read whole, as many as there is room for."""
        begun = start
        while begun < end:
            stop = min(end, begun + self._pace.step)
            specs, tiers = self._prompt.specs(begun, stop), [tier] * (stop - begun)
            claims = self._stack.begin(specs, tiers, self._owner, deadline, wait=wait, keeps=True)
            wait = None
            self._claims.update(enumerate(claims, begun))
            begun += len(claims)
            if begun < stop:
                break
        return begun - start

    def _load(self, part: int, deadline: Deadline) -> None:
        """Bring one part of every chunk into its block, and begin with the next ones."""
        self._settle(deadline)
        for run in runs(sorted(self._reader.take(part, deadline))):
            if run[0] < self._hit:
                self._read_again(run[0], min(run[-1] + 1, self._hit), deadline)
        self._settle(deadline)
        last = -(-self._prompt.layout.layers // layers_per_part(self._prompt.layout)) - 1
        self._reader.read_ahead(min(part + PARTS_AHEAD, last), deadline)

    def _read_again(self, start: int, end: int, deadline: Deadline) -> None:
        """Read chunks whole of which a part did not arrive; so it becomes known why.

        Together, so that what is damaged has been set aside once the first of them is settled:
        the host may store the prompt anew right after that.
        """
        self._reader.leave(start, end)
        for number in range(start, end):
            self._leases.pop(number).release()
        while start < end:
            tier, stop = self._found[start], start + 1
            while stop < end and self._found[stop] is tier:
                stop += 1
            begun = self._begin_whole(tier, start, stop, deadline)
            if start + begun < stop:
                self._shorten(start + begun, Reason.REFUSED)
                return
            start = stop

    def _settle(self, deadline: Deadline) -> None:
        """Wait for the chunks that are read whole; slower tiers stand in for what fails."""
        for number in sorted(self._claims):
            claim = self._claims.pop(number, None)
            if claim is None:
                continue  # it was dropped with the prefix that it belonged to
            lease = claim.settle(self._owner, deadline)
            if lease is None:
                lease = self._stack.stand_in(claim, self._owner, deadline)
            if lease is None:
                self._shorten(number, claim.why)
            else:
                self._leases[number] = lease
                self._tiers[number] = claim.tier

    def _shorten(self, hit: int, why: Reason | None) -> None:
        """Only the first *hit* chunks are to be loaded from now on."""
        for number in range(hit, self._hit):
            if number in self._claims:
                self._claims.pop(number).drop()
            if number in self._leases:
                self._leases.pop(number).release()
        self._reader.leave(hit, self._hit)
        self._hit, self._why = hit, why

    def _scatter(self, layer: int, deadline: Deadline) -> None:
        leases = [self._leases[number] for number in range(self._hit)]
        spans = self._prompt.spans(leases)
        layers = range(layer, layer + 1)
        if spans and not self._copier.copy(
            self._device, spans, leases, deadline, gather=False, layers=layers
        ):
            self._shorten(0, Reason.DEVICE)

    def _finish(self) -> None:
        """The blocks are whole chunks now: offer them to the faster tiers, count, and let go."""
        part = self._prompt.part(0, self._hit)
        leases = [self._leases[number] for number in range(self._hit)]
        tiers = [self._tiers[number] for number in range(self._hit)]
        with self._patience.step() as deadline:
            self._stack.promote(Batch(part.keys, leases, part.after), tiers, deadline)
        arrived = Arrived()
        arrived.add(part, tiers)
        arrived.end(len(self._prompt), self._why)
        self._result = self._report(arrived)
        self.close()
