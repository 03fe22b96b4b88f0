"""Batches: neighbouring chunks on their way to tiers, and the result of their writes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from operator import and_
from typing import Protocol

from hexkv.core.io.ticket import Ticket
from hexkv.core.memory.pool import Give
from hexkv.core.tiers.index.indexes import Index
from hexkv.core.tiers.stores.answers import shares
from hexkv.ports import ChunkKey, Deadline, Lease, release_all


class Batch:
    """Neighbouring chunks of one prompt, in leased blocks, on their way to tiers."""

    __slots__ = ("after", "beside", "give", "keys", "leases", "patience")

    def __init__(
        self,
        keys: Sequence[ChunkKey],
        leases: Sequence[Lease],
        after: ChunkKey | None,
        give: Give | None = None,
        patience: Deadline | None = None,
        *,
        beside: bool = False,
    ) -> None:
        """Combine chunks with their blocks.

        Args:
            keys: the chunks.
            leases: of their blocks.
            after: the chunk before them.
            give: transfers the leases to another owner; without it they stay with the caller.
            patience: until when a full queue is waited for, by these chunks and by those evicted
                for them; ``None``: chunks that find no room in a queue are dropped.
            beside: they are written beside a host's work, with pauses.
        """
        self.keys = keys
        self.leases = leases
        self.after = after
        self.give = give
        self.patience = patience
        self.beside = beside

    def share(self, owner: str) -> Batch:
        """Return the same chunks, held by *owner*, without patience: a worker does not wait.

        Raises:
            StoreError: a foreign lease fails.
        """
        if self.give is not None:
            self.give(self.leases, owner)
            return Batch(self.keys, self.leases, self.after, self.give, beside=self.beside)
        held = shares(self.leases, owner)
        return Batch(self.keys, held, self.after, beside=self.beside)

    def part(self, start: int, end: int) -> Batch:
        """Return the chunks ``[start, end)``, held by the same leases."""
        after = self.keys[start - 1] if start else self.after
        return self.of(self.keys[start:end], self.leases[start:end], after)

    def of(
        self, keys: Sequence[ChunkKey], leases: Sequence[Lease], after: ChunkKey | None
    ) -> Batch:
        """Return other chunks, to be written in the same way."""
        return Batch(keys, leases, after, self.give, self.patience, beside=self.beside)

    def kept(self) -> Batch:
        """Return the same chunks, in leases that stay with the caller."""
        patience, beside = self.patience, self.beside
        return Batch(self.keys, self.leases, self.after, None, patience, beside=beside)

    def some(self, which: Sequence[int]) -> Batch:
        """Return the chunks at the indexes *which*, in leases that stay with the caller."""
        return Batch([self.keys[i] for i in which], [self.leases[i] for i in which], self.after)

    def release(self) -> None:
        """Release the blocks."""
        release_all(self.leases)

    def shorter(self, tokens: int) -> set[int]:
        """Return the indexes of the chunks with fewer than *tokens*."""
        specs = [lease.spec for lease in self.leases]
        return {i for i, spec in enumerate(specs) if spec is not None and spec.tokens < tokens}

    @property
    def size(self) -> int:
        """Bytes of the frames."""
        return sum(len(lease.frame) for lease in self.leases)


class Pending:
    """A batch on its way to one tier, in pieces for several workers."""

    __slots__ = ("parts",)

    def __init__(self, parts: Sequence[tuple[int, Ticket[list[bool]] | None]]) -> None:
        self.parts = parts

    @property
    def done(self) -> bool:
        """True if every piece was written or refused."""
        return all(ticket is None or ticket.done for _, ticket in self.parts)

    def wait(self, deadline: Deadline) -> bool:
        """Wait for every piece. Return False if *deadline* passes first."""
        done = True
        for _, ticket in self.parts:
            done = (ticket is None or ticket.wait(deadline)) and done
        return done

    @property
    def result(self) -> list[bool]:
        """True for each chunk that is known to be on the tier by now."""
        found: list[bool] = []
        for count, ticket in self.parts:
            found += (ticket.result if ticket else None) or [False] * count
        return found


class WrittenTier(Protocol):
    """A tier, as far as the result of a write needs it."""

    @property
    def name(self) -> str: ...
    @property
    def index(self) -> Index: ...


class Published:
    """Chunks being written to the tiers; see :class:`hexkv.ports.ServicePublishing`."""

    def __init__(
        self,
        tiers: Sequence[WrittenTier] = (),
        keys: Sequence[ChunkKey] = (),
        written: Mapping[str, Pending] | None = None,
    ) -> None:
        """Report *keys*, *written* to *tiers*; by default nothing is."""
        self._tiers = tiers
        self._keys = keys
        self._written = written or {}

    @property
    def targets(self) -> Collection[str]:
        return self._written

    @property
    def done(self) -> bool:
        return all(pending.done for pending in self._written.values())

    def wait(self, deadline: Deadline, tier: str | None = None) -> bool:
        if tier is not None:
            return self._written[tier].wait(deadline)
        waits = [pending.wait(deadline) for pending in self._written.values()]
        return all(waits)

    @property
    def tiers(self) -> Mapping[str, Sequence[bool]]:
        on: dict[str, Sequence[bool]] = {}
        for name, written in self._written.items():
            on[name] = written.result
        for tier in self._tiers:
            row = on.get(tier.name, ())
            if tier.index.decides and True in row:
                # A concurrent clear may have deleted it.
                on[tier.name] = list(map(and_, row, tier.index.contains(self._keys)))
        return on
