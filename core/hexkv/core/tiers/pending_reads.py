"""Claims: what callers have of reads under way until the chunks have arrived."""

from __future__ import annotations

import logging
from threading import Lock

from hexkv.core.io.scheduler import Ticket
from hexkv.core.memory.pool import BlockLease
from hexkv.core.tiers.answers import shares
from hexkv.core.tiers.tier import Tier
from hexkv.ports import ChunkSpec, Deadline, Lease, Reason, StoreError, release_all

log = logging.getLogger("hexkv")


class Fetch:
    """One read under way, with leases of its own on the blocks that it fills."""

    def __init__(self, tier: Tier, blocks: list[BlockLease]) -> None:
        self.tier = tier
        self.late = False
        """True once nobody may join any more: a wait timed out, or all have left."""

        self.ticket: Ticket[None] | None = None
        self.why: list[Reason | None] = []
        """Why each chunk is not to be used; ``None`` once it is whole."""

        self._blocks = blocks
        self._ended = False
        self._lock = Lock()

    def join(self, index: int, owner: str) -> BlockLease | None:
        """A lease on the block of a chunk, to be filled; ``None``: too late, it is given up."""
        with self._lock:
            return None if self.late or self._ended else self._blocks[index].share(owner)

    def arrived(self, index: int) -> bool:
        """True if a chunk is whole, once the ticket is done."""
        return self.why[index] is None

    def leave(self) -> None:
        """A lease from :meth:`join` was released: what has not begun and nobody wants ends."""
        with self._lock:
            if self._ended or any(block.shared for block in self._blocks):
                return
            self.late = True
        if self.ticket is not None:
            self.ticket.abandon()

    def end(self) -> None:
        """The worker does not touch the blocks any more."""
        with self._lock:
            self._ended = True
        if self._blocks:
            release_all(self._blocks)


class PendingRead:
    """One chunk that a caller waits for: a block, and the read that fills it, if any does."""

    __slots__ = ("_fetch", "_index", "_lease", "crowded", "spec", "tier", "why")

    def __init__(
        self,
        spec: ChunkSpec,
        tier: str,
        lease: Lease | None,
        fetch: Fetch | None = None,
        index: int = 0,
        why: Reason | None = Reason.ABSENT,
    ) -> None:
        self.spec = spec
        self.tier = tier
        self.why = why
        self.crowded = False
        """True if a tier that may have the chunk had no room for a read when it was asked."""

        self._lease = lease
        self._fetch = fetch
        self._index = index

    def ready(self, deadline: Deadline, *, final: bool) -> bool:
        """Wait for the read. False if *deadline* passed first.

        Args:
            deadline: until when.
            final: True if the read is late then; otherwise the caller may ask again.
        """
        ticket = None if self._fetch is None else self._fetch.ticket
        if ticket is None:
            return True
        return ticket.wait(deadline) if final else ticket.peek(deadline)

    def settle(self, owner: str, deadline: Deadline) -> Lease | None:
        """Wait for the chunk; the caller releases the lease. ``None``: see :attr:`why`."""
        lease, self._lease = self._lease, None
        fetch, self._fetch = self._fetch, None
        if lease is None:
            return None
        if fetch is not None:
            ticket = fetch.ticket
            if ticket is not None and not (ticket.done or ticket.wait(deadline)):
                self.why = Reason.TIMED_OUT
                fetch.late = True
            else:
                self.why = fetch.why[self._index]
            if self.why is Reason.TIMED_OUT or not fetch.arrived(self._index):
                lease.release()
                fetch.leave()
                return None
        if lease.owner == owner:
            return lease
        with lease:
            try:
                (mine,) = shares([lease], owner)
            except StoreError as error:
                log.warning("tier %s: %s", self.tier, error)
                self.why = Reason.FAILED
                return None
            return mine

    def drop(self) -> None:
        """Want it no more."""
        lease, self._lease = self._lease, None
        fetch, self._fetch = self._fetch, None
        if lease is not None:
            lease.release()
        if fetch is not None:
            fetch.leave()
