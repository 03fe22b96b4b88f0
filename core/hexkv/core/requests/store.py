"""Stores: copy the chunks that no tier holds from the device, once, and write them to all tiers."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import compress
from operator import sub

from hexkv.core.keys.prompts import Prompt
from hexkv.core.memory.copying import Copier
from hexkv.core.memory.pipelining import Pipelining
from hexkv.core.memory.pool import BlockLease, Give
from hexkv.core.requests.prefix import find_chunks
from hexkv.core.steps import Laps
from hexkv.core.tiers.batches import Batch, Pending
from hexkv.core.tiers.cache import TierStack
from hexkv.core.tiers.evicting import background_deadline
from hexkv.core.tiers.matching import runs
from hexkv.core.tiers.tier import Tier
from hexkv.ports import (
    ChunkKey,
    Deadline,
    DeviceKV,
    Lease,
    PoolExhausted,
    Reason,
    release_all,
)


@dataclass(slots=True)
class Kept:
    """The results of a store so far, in tokens."""

    asked: int = 0
    present: int = 0
    present_chunks: int = 0
    stored: int = 0
    size: int = 0
    queued: int = 0
    tiers: dict[str, int] = field(default_factory=dict)


class Storing:
    """One store under way: copies ahead of the writes, as far as blocks are free."""

    def __init__(
        self,
        stack: TierStack,
        copier: Copier,
        device: DeviceKV,
        *,
        pace: Pipelining,
        owner: str,
        deadline: Deadline,
        wait: bool,
        laps: Laps,
    ) -> None:
        self.kept = Kept()
        self._laps = laps
        self._stack = stack
        self._copier = copier
        self._device = device
        # Small steps, so that writing begins after the first.
        self._step = min([pace.run, *[tier.step for tier in stack.tiers if tier.step]])
        self._owner = owner
        self.deadline = deadline
        self._wait = wait
        self._writing: deque[tuple[Prompt, Mapping[str, Pending]]] = deque()

    def run(self, prompt: Prompt) -> Kept:
        """Gather and write the chunks of *prompt* that no tier holds.

        Raises:
            InvalidRequest: the device raised it.
        """
        missing = self.find(prompt)
        self._laps.mark(("match", "", self._laps.now()))
        while missing:
            count = 1
            while count < min(self._step, len(missing)) and missing[count] == missing[0] + count:
                count += 1
            part = prompt.part(missing[0], missing[0] + count)
            taken = self._some(part, last=count == len(missing))
            if not taken:
                break
            missing = missing[taken:]
        self.end(prompt, missing)
        return self.kept

    def find(self, prompt: Prompt) -> list[int]:
        """Return the numbers of the chunks of *prompt* that no tier holds; count the others."""
        self.kept.asked = prompt.ends[-1] - prompt.starts[0] if prompt.keys else 0
        # Without *wait*, do not query stores: use the indexes only.
        where = find_chunks(self._stack, prompt, self.deadline, asks=self._wait)
        retry_backlog(self._stack, prompt, self._owner)
        if None not in where:  # nothing to store: this must cost little beside the keys
            self.kept.present = self.kept.asked
            self.kept.present_chunks = len(where)
            self._stack.touch(prompt.keys)
            return []
        present = [i for i, tier in enumerate(where) if tier is not None]
        if not present:
            return [*range(len(where))]
        self.kept.present = sum(prompt.tokens(i) for i in present)
        self.kept.present_chunks = len(present)
        # New chunks must not look younger than the beginning of their prompt.
        self._stack.touch([prompt.keys[i] for i in present])
        return [i for i, tier in enumerate(where) if tier is None]

    def write(
        self,
        part: Prompt,
        leases: Sequence[BlockLease],
        give: Give | None = None,
        *,
        last: bool = False,
    ) -> None:
        """Write neighbouring chunks that were copied into *leases*.

        The leases stay the caller's; with *give*, only those still in its name. The *last* chunks
        are not pinned: no later write of this store could evict them.
        """
        full = 0 if part.tails is None else part.full
        if (
            0 < full < len(part.keys)
        ):  # not every tier keeps a tail: write it separately, with a result of its own
            self.write(part.part(0, full), leases[:full], give)
            part, leases = part.part(full, len(part)), leases[full:]
        if not last:
            self._stack.pins.begin(self._owner)
        if self._wait and self._writing:
            size = sum(len(lease.frame) for lease in leases)
            while self._writing and not self._stack.takes(size):
                self._settle()  # rather wait for running writes than have this one dropped
        for lease, spec in zip(leases, part.specs(), strict=True):
            lease.spec = spec
        batch = Batch(part.keys, leases, part.after, give)
        written = self._stack.put(batch, self.deadline, None if last else self._pin)
        self._writing.append((part, written))

    def end(self, prompt: Prompt, dropped: Sequence[int]) -> None:
        """Count the results of all writes. The chunks *dropped* were not copied."""
        while self._writing:
            self._settle()
        if dropped:
            self._stack.drop([prompt.spec(i) for i in dropped], Reason.NOT_COPIED)

    def _pin(self, tier: Tier, keys: Sequence[ChunkKey]) -> None:
        self._stack.pins.land(self._owner, tier, keys)

    def _some(self, part: Prompt, *, last: bool) -> int:
        """Copy and write the first chunks of *part* for which blocks are free. Return how many."""
        leases = self._blocks(part)
        self._laps.mark(("room", "", self._laps.now()))
        try:
            if len(leases) < len(part.keys):
                part, last = part.part(0, len(leases)), False
            if not leases or not self._copier.copy(
                self._device, part.spans(leases), leases, self.deadline, gather=True
            ):
                return 0
            self._laps.mark(("copy", "", self._laps.now()))
            self.write(part, leases, self._stack.pool.hand_over, last=last)
            self._laps.mark(("put", "", self._laps.now()))
        finally:
            if mine := [lease for lease in leases if lease.owner == self._owner]:
                release_all(mine)
        return len(part.keys)

    def _blocks(self, part: Prompt) -> list[BlockLease]:
        tokens = list(map(sub, part.ends, part.starts))
        size = {count: part.layout.chunk_bytes(count) for count in set(tokens)}
        sizes = [size[count] for count in tokens]
        while True:
            # The end of an own write frees a block sooner than other holders would.
            wait = Deadline(self.deadline.clock, 0.0) if self._writing else self.deadline
            try:
                return self._stack.pool.lease_run(sizes, self._owner, wait)
            except PoolExhausted:
                if not self._writing:
                    return []
                self._settle()

    def _settle(self) -> None:
        """Count the result of the oldest batch; wait for its writes if this store waits."""
        part, written = self._writing.popleft()
        on: dict[str, Sequence[bool]] = {}
        queued = False
        for name, pending in written.items():
            if (self._wait or pending.done) and pending.wait(self.deadline):
                on[name] = pending.result
            else:
                queued = True
            self._laps.mark(("write", name, self._laps.now()))
        for tier in self._stack.tiers:
            if tier.index.decides and tier.name in on:
                # A concurrent clear may have deleted it.
                here = tier.index.contains(part.keys)
                on[tier.name] = [a and b for a, b in zip(on[tier.name], here, strict=True)]
        tokens = list(map(sub, part.ends, part.starts))
        for name, row in on.items():
            if any(row):
                kept = self.kept.tiers.get(name, 0)
                self.kept.tiers[name] = kept + sum(compress(tokens, row))
        stored = sum(compress(tokens, map(any, zip(*on.values(), strict=True))))
        self.kept.stored += stored
        self.kept.size += part.layout.chunk_bytes(stored)
        if queued:
            self.kept.queued += sum(tokens) - stored


def retry_backlog(stack: TierStack, prompt: Prompt, owner: str) -> None:
    """Queue writes of a tier's backlog, of the chunks of *prompt* that memory still holds.

    Does not wait for them; chunks that the tier refuses again are offered the next time.
    """
    for tier in stack.tiers:
        if tier.lends or tier.refuses:
            continue
        owed = set(tier.backlog.take(prompt.keys))
        if not owed:
            continue
        with ExitStack() as held:
            leases = {
                i: held.enter_context(lease)
                for i, key in enumerate(prompt.keys)
                if key in owed and (lease := _lent(stack, key, owner)) is not None
            }
            for run in runs(list(leases)):
                part = prompt.part(run[0], run[-1] + 1)
                batch = Batch(part.keys, [leases[i] for i in run], part.after)
                stack.writer.put(tier, batch, background_deadline(stack.runtime))


def _lent(stack: TierStack, key: ChunkKey, owner: str) -> Lease | None:
    """Return a share of the block in which memory keeps a chunk, or ``None``."""
    for tier in stack.tiers:
        for lease in tier.calls.get_lease([key], owner):
            if lease is not None:
                return lease
    return None
