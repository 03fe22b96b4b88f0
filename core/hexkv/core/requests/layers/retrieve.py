"""Retrieves layer by layer: the next layers are read while the model computes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Self

from hexkv.core.keys.prompts import Prompt
from hexkv.core.memory.background import in_background, open_lane
from hexkv.core.memory.copying import Copier, Copy
from hexkv.core.memory.pipelining import Pipelining
from hexkv.core.memory.pool import BlockLease
from hexkv.core.requests.decoding import decoded_by, fitted, is_raw, load
from hexkv.core.requests.layers.groups import layer_groups, part_groups
from hexkv.core.requests.layers.limits import Hosts, TimeBudget, room
from hexkv.core.requests.layers.ranges import FIRST, RangeReader
from hexkv.core.requests.prefix import Prefix, match_prefix
from hexkv.core.requests.retrieve import Arrived, worth_waiting
from hexkv.core.tiers.batches import Batch
from hexkv.core.tiers.cache import TierStack
from hexkv.core.tiers.matching import runs, why_absent
from hexkv.core.tiers.read.pending_reads import PendingRead
from hexkv.core.tiers.tier import Tier
from hexkv.ports import (
    ChunkKey,
    Deadline,
    DeviceKV,
    InvalidRequest,
    Lease,
    PoolExhausted,
    Reason,
    Retrieved,
    Span,
)

_GROUPS_AHEAD = 4
"""Groups of layers that are read ahead of the one that the model computes. One is copied."""

_AT_FIRST = 2
"""The same for the first groups: the copy that the host waits for shares CPUs with the readers."""


class LayeredRetrieve:
    """A retrieve under way: iterates over the layers' numbers, each once its KV is in the device.

    A chunk that turns out to be damaged shortens :attr:`hit_tokens` at any layer. The layers
    returned before hold KV of the longer prefix; the host recomputes the lost tokens in all layers.
    """

    def __init__(  # noqa: PLR0913
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
        self._prefix = Prefix(prompt, prompt, ())
        self._encoded: frozenset[str] = frozenset()
        """Serdes that the device decodes, layer by layer."""

        self._reader = RangeReader(stack.runtime, prompt)
        self._found: Sequence[Tier] = ()
        self._claims: dict[int, PendingRead] = {}
        self._leases: dict[int, Lease] = {}
        self._tiers: dict[int, str] = {}
        self._hit = 0
        self._why: Reason | None = Reason.ABSENT
        self._groups: Sequence[range] = ()
        """The layers that are read and copied together."""

        self._next = 0
        """The number of the next group to return."""

        self._held: tuple[list[Lease], list[Span]] | None = None
        """The blocks and spans of the chunks that are hit, until one is lost."""

        self._beside = False
        self._ahead: Copy | None = None
        """The copy of the next group, by a worker."""

        self._layer = 0
        self._closed = False
        self._result: Retrieved | None = None

    @property
    def hit_tokens(self) -> int:
        """The device gets the KV of tokens ``[0, hit_tokens)``, as far as known by now."""
        return max(self._skip, self._prompt.ends[self._hit - 1]) if self._hit else self._skip

    def begin(self) -> None:
        """Find the chunks, hold their blocks and begin to read. Once, before anything else."""
        with self._patience.step() as deadline:
            self._prefix = match_prefix(self._stack, self._prompt, deadline)
            self._prompt, self._found = self._prefix.found, self._prefix.tiers
            self._encoded = decoded_by(self._stack.runtime, self._device, by_layers=True)
            self._reader = RangeReader(self._stack.runtime, self._prompt, self._encoded)
            keys = self._prompt.keys
            self._stack.touch(keys)
            # Making room for one chunk must not evict another one of the same prompt.
            self._stack.pins.pin(self._owner, keys)
            self._hit = self._hold(deadline)
            if self._hit < len(self._found):
                self._why = Reason.REFUSED
            elif (missing := self._prefix.missing) is not None:
                self._why = why_absent(self._stack.tiers, self._stack.runtime, missing)
            layout, tokens = self._prompt.layout, sum(map(self._prompt.tokens, range(self._hit)))
            self._groups = layer_groups(layout, tokens)
            self._reader.divide(part_groups(layout, tokens))
            self._reader.read_ahead(0, deadline)
            self._beside = self._hit > 0 and in_background(self._device)
            if self._beside:
                open_lane(self._stack.runtime.executor)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> int:
        layer, layout = self._layer, self._prompt.layout
        if layer == layout.layers:
            raise StopIteration
        if self._closed:
            raise InvalidRequest("the context of the retrieve was left")
        try:
            with self._patience.step() as deadline:
                if self._next == 0 or layer == self._groups[self._next - 1].stop:
                    self._bring(self._next, deadline)
        except BaseException:
            self.close()  # the content of the device is unknown
            raise
        self._layer += 1
        if self._layer == layout.layers:
            self._finish()
        return layer

    def result(self) -> Retrieved:
        """Return the result of the load, after the last layer.

        Raises:
            InvalidRequest: not all layers have been returned.
        """
        if self._result is None:
            raise InvalidRequest(f"layer {self._layer} and those after it are still to come")
        return self._result

    def close(self) -> None:
        """Release everything; reads and copies that have begun keep their blocks until they end."""
        self._closed = True
        self._ahead = None
        self._copier.left(self._owner, self._patience.end())
        self._reader.drop()
        for claim in (*self._claims.values(), *self._ready.values()):
            claim.drop()
        self._claims.clear()
        self._ready.clear()
        for lease in self._leases.values():
            lease.release()
        self._leases.clear()
        self._held = None
        self._hosts.leave(self)
        self._stack.pins.unpin(self._owner)

    def _hold(self, deadline: Deadline) -> int:
        """Hold blocks for the chunks, in order. Return how many chunks have blocks."""
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
        """Begin to read chunks part by part, as many as there are blocks for."""
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
        """Begin to read whole chunks, as many as there is room for."""
        begun = start
        while begun < end:
            stop = min(end, begun + self._pace.step)
            specs, tiers = self._prompt.specs(begun, stop), [tier] * (stop - begun)
            claims = self._stack.begin(
                specs, tiers, self._owner, deadline, wait=wait, keeps=True, encoded=self._encoded
            )
            wait = None
            self._claims.update(enumerate(claims, begun))
            begun += len(claims)
            if begun < stop:
                break
        return begun - start

    def _bring(self, group: int, deadline: Deadline) -> None:
        """Bring one group of layers into the device, and begin with the next ones."""
        ahead, self._ahead = self._ahead, None
        mine = ahead is None or self._copier.withdraw(ahead)
        self._load(group, deadline)
        if ahead is None or mine:
            self._copy(group, deadline)
        elif not self._copier.finish(ahead, self._patience.end()):
            self._shorten(0, Reason.DEVICE)
        self._next = group + 1
        ahead_of_host = _AT_FIRST if group < FIRST else _GROUPS_AHEAD
        self._reader.read_ahead(group + ahead_of_host, deadline)
        self._copy_ahead()

    def _copy_ahead(self) -> None:
        """Have a worker copy the next group as soon as all of it is there, while the host computes.

        A missing part may shorten the hit; the host learns of that with the group.
        """
        group = self._next
        if not (self._beside and self._hit and group < len(self._groups)):
            return
        leases, spans = self._spans()
        if not all(map(is_raw, leases)):
            return  # a worker only copies bytes
        self._ahead = self._copier.begin_beside(
            self._stack.runtime.executor,
            self._device,
            spans,
            leases,
            gather=False,
            layers=self._groups[group],
            when=partial(self._reader.once_whole, group),
        )

    def _load(self, group: int, deadline: Deadline) -> None:
        """Bring one group of parts of every chunk into its block."""
        self._settle(deadline)
        for run in runs(sorted(self._reader.take(group, deadline))):
            if run[0] < self._hit:
                self._read_again(run[0], min(run[-1] + 1, self._hit), deadline)
        self._settle(deadline)
        if not group:
            self._reader.read_ahead(1, deadline)  # while the first is copied
            if self._encoded:
                self._reader.name_encoded()

    def _read_again(self, start: int, end: int, deadline: Deadline) -> None:
        """Read the whole chunks of which a part did not arrive, which finds out why.

        All together, so that damaged chunks are set aside once the first of them is settled:
        the host may store the prompt anew right after that.
        """
        self._reader.leave(start, end)
        self._held = None
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
        """Wait for the chunks that are read whole; slower tiers replace failed ones."""
        for number in sorted(self._claims):
            claim = self._claims.pop(number, None)
            if claim is None:
                continue  # it was dropped with its prefix
            lease = claim.settle(self._owner, deadline, self._encoded)
            if lease is None:
                lease = self._stack.stand_in(claim, self._owner, deadline)
            if lease is None:
                self._shorten(number, claim.why)
            else:
                self._leases[number] = lease
                self._tiers[number] = claim.tier

    def _shorten(self, hit: int, why: Reason | None) -> None:
        """Load only the first *hit* chunks from now on."""
        for number in range(hit, self._hit):
            if number in self._claims:
                self._claims.pop(number).drop()
            if number in self._leases:
                self._leases.pop(number).release()
        self._reader.leave(hit, self._hit)
        self._hit, self._why, self._held = hit, why, None

    def _spans(self) -> tuple[list[Lease], list[Span]]:
        """Return the blocks and spans of the chunks that are hit."""
        if self._held is None:
            leases = [self._leases[number] for number in range(self._hit)]
            self._held = leases, self._prompt.spans(leases)
        return self._held

    def _copy(self, group: int, deadline: Deadline) -> None:
        leases, spans = self._spans()
        if not spans:
            return
        layers, device = self._groups[group], self._device
        if all(map(is_raw, leases)):
            copied = self._copier.copy(device, spans, leases, deadline, gather=False, layers=layers)
        else:
            runtime, part = self._stack.runtime, self._prompt.part(0, self._hit)
            copied = load(runtime, self._copier, device, part, leases, deadline, layers)
        if not copied:
            self._shorten(0, Reason.DEVICE)

    def _fitted(
        self, leases: Sequence[Lease], tiers: Sequence[str]
    ) -> AbstractContextManager[Sequence[Lease]]:
        """Return the blocks to offer to faster tiers, each as long as the frame in it."""
        fastest = self._stack.tiers[0].name
        if tiers.count(fastest) == len(tiers) or all(map(is_raw, leases)):
            return nullcontext(leases)
        return fitted(self._stack.runtime, leases, self._owner)

    def _finish(self) -> None:
        """Offer the blocks, now whole chunks, to faster tiers; then count and release them."""
        part = self._prompt.part(0, self._hit)
        leases = [self._leases[number] for number in range(self._hit)]
        tiers = [self._tiers[number] for number in range(self._hit)]
        with self._patience.step() as deadline, self._fitted(leases, tiers) as kept:
            batch = Batch(part.keys[: len(kept)], kept, part.after)
            self._stack.promote(batch, tiers[: len(kept)], deadline)
        arrived = Arrived()
        arrived.add(part, tiers)
        arrived.end(self._prefix.asked.bounds, self._why, short=self._prefix.short)
        self._result = self._report(arrived)
        self.close()
