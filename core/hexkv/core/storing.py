"""Storing: what no tier holds is copied from the device, once, and written to all of them."""

from __future__ import annotations

from collections import Counter as Tally
from collections import deque
from dataclasses import dataclass, field

from hexkv.core.copying import Copier
from hexkv.core.loading import Pace
from hexkv.core.pool import BlockLease
from hexkv.core.prompts import Prompt
from hexkv.core.stack import TierStack, Written
from hexkv.core.writing import Batch
from hexkv.ports import Deadline, DeviceKV, PoolExhausted


@dataclass(slots=True)
class Kept:
    """What a store kept so far, in tokens."""

    present: int = 0
    present_chunks: int = 0
    stored: int = 0
    size: int = 0
    queued: int = 0
    dropped: int = 0
    tiers: Tally[str] = field(default_factory=Tally)


class Storing:
    """One store under way: copies ahead of the writes, as far as there are blocks."""

    def __init__(
        self,
        stack: TierStack,
        copier: Copier,
        device: DeviceKV,
        *,
        pace: Pace,
        owner: str,
        deadline: Deadline,
        wait: bool,
    ) -> None:
        self.kept = Kept()
        self._stack = stack
        self._copier = copier
        self._device = device
        self._pace = pace
        self._owner = owner
        self._deadline = deadline
        self._wait = wait
        self._writing: deque[tuple[Prompt, Written]] = deque()

    def run(self, prompt: Prompt) -> Kept:
        """Gather and write the chunks of *prompt* that no tier holds.

        Raises:
            InvalidRequest: the device says so.
        """
        where = self._stack.where(prompt.keys, self._deadline)
        present = [i for i, tier in enumerate(where) if tier is not None]
        self.kept.present = sum(prompt.tokens(i) for i in present)
        self.kept.present_chunks = len(present)
        # New chunks must not look younger than the beginning of their prompt.
        self._stack.touch([prompt.keys[i] for i in present])
        missing = [i for i, tier in enumerate(where) if tier is None]
        try:
            while missing:
                count = 1
                while (
                    count < min(self._pace.step, len(missing))
                    and missing[count] == missing[0] + count
                ):
                    count += 1
                taken = self._some(prompt.part(missing[0], missing[0] + count))
                if not taken:
                    break
                missing = missing[taken:]
            while self._writing:
                self._settle()
        finally:
            self._stack.unpin(self._owner)
        self.kept.dropped += sum(prompt.tokens(i) for i in missing)
        self._stack.drop([prompt.keys[i] for i in missing], "not copied")
        return self.kept

    def _some(self, part: Prompt) -> int:
        """Copy as many chunks of *part*, from its beginning, as there are blocks for."""
        leases = self._blocks(part)
        if not leases:
            return 0
        part = part.part(0, len(leases))
        batch = Batch(part.keys, leases, part.after)
        try:
            spans = [part.span(i, lease.payload) for i, lease in enumerate(leases)]
            if not self._copier.copy(self._device, spans, leases, self._deadline, gather=True):
                return 0
            for i, lease in enumerate(leases):
                lease.label = part.label(i)
            written = self._stack.put(batch, self._deadline)
        finally:
            batch.release()
        # Until the call ends, so that the end of a long prompt never pushes out its beginning.
        self._stack.pin(self._owner, part.keys)
        self._writing.append((part, written))
        return len(part)

    def _blocks(self, part: Prompt) -> list[BlockLease]:
        leases: list[BlockLease] = []
        for i in range(len(part)):
            while True:
                # A write of our own that ends frees a block sooner than anybody else would.
                patient = not leases and not self._writing
                wait = self._deadline if patient else Deadline(self._deadline.clock, 0.0)
                try:
                    leases.append(self._stack.pool.lease(part.raw_bytes(i), self._owner, wait))
                except PoolExhausted:
                    if leases or not self._writing:
                        return leases
                    self._settle()
                else:
                    break
        return leases

    def _settle(self) -> None:
        """Count what became of the oldest batch; its writes are waited for, if they are at all."""
        part, written = self._writing.popleft()
        on = dict(written.on)
        queued = False
        for name, ticket in written.pending.items():
            if (self._wait or ticket.done) and ticket.wait(self._deadline):
                on[name] = ticket.result or [False] * len(part)
            else:
                queued = True
        self._stack.pin(self._owner, part.keys)
        for i in range(len(part)):
            tokens = part.tokens(i)
            tiers = [name for name, here in on.items() if here[i]]
            self.kept.tiers.update(dict.fromkeys(tiers, tokens))
            if tiers:
                self.kept.stored += tokens
                self.kept.size += part.raw_bytes(i)
            elif queued:
                self.kept.queued += tokens
            else:
                self.kept.dropped += tokens
