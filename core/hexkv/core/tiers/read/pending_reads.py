"""Pending reads: a caller's side of reads in progress, until the chunks have arrived."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from threading import Lock

from hexkv.core.io.ticket import Ticket
from hexkv.core.memory.pool import BlockLease
from hexkv.core.tiers.stores.answers import shares
from hexkv.core.tiers.tier import Tier
from hexkv.ports import ChunkSpec, Deadline, Lease, Reason, StoreError, release_all

log = logging.getLogger(__name__)

_NOBODY = -1


class Fetch:
    """One read in progress, with its own leases on the blocks that it fills."""

    def __init__(
        self,
        tier: Tier,
        blocks: list[BlockLease],
        wasted: Callable[[int], None],
        decode: Callable[[BlockLease, Lease], Reason | None],
    ) -> None:
        """*wasted* is called with the bytes of chunks that arrived and were not used.

        *decode* decodes a chunk that stayed encoded from its block into one for the raw chunk, or
        returns the reason why it cannot.
        """
        self.tier = tier
        self.decode = decode
        self.late = False
        """True once no new reader may join: a waiter timed out, or all have left."""

        self.ticket: Ticket[None] | None = None
        self.why: list[Reason | None] = []
        """The reason why each chunk is unusable; ``None`` once it is whole."""

        self.sizes: Sequence[int] = ()
        """Bytes read of each chunk."""

        self.encoded: frozenset[str] = frozenset()
        """Serdes whose frames stay encoded; a read that names any cannot be joined."""

        self.short: Mapping[int, int] = {}
        """Payload bytes of frames of unknown size for which no block was free."""

        self._blocks = blocks
        self._wasted = wasted
        self._joined: Counter[int] = Counter()
        """By chunk: the readers that joined, less those that left without using it. The one that
        began the read is not counted."""

        self._ended = False
        self._encoded: dict[int, BlockLease | None] = {}
        self._lock = Lock()

    def join(self, index: int, owner: str) -> BlockLease | None:
        """Return a lease on the block of a chunk, to be filled; ``None``: too late to join."""
        with self._lock:
            if self.late or self._ended:
                return None
            self._joined[index] += 1
            return self._blocks[index].share(owner)

    def keep_encoded(self, index: int, block: BlockLease) -> None:
        """Keep a chunk encoded, in *block*, which belongs to the pending read from now on.

        For reads that cannot be joined: each of their chunks has one pending read.
        """
        with self._lock:
            if index not in self._encoded:
                self._encoded[index] = block
                return
        block.release()  # the pending read was dropped

    def take_encoded(self, index: int) -> BlockLease | None:
        """Take the block of an encoded chunk, for good; one that comes later is released."""
        with self._lock:
            block, self._encoded[index] = self._encoded.get(index), None
            return block

    def leave(self, index: int) -> None:
        """Note a lease released without a use of its chunk; a read without readers is abandoned."""
        with self._lock:
            self._joined[index] -= 1
            wasted = self._size_of([index]) if self._ended else 0
            if not self._ended:
                if any(block.shared for block in self._blocks):
                    return
                self.late = True
        if wasted:
            self._wasted(wasted)
        if self.ticket is not None:
            self.ticket.abandon()

    def abandon(self, count: int) -> None:
        """Leave all *count* chunks of a read of frames of unknown size."""
        for index in range(count):
            block = self.take_encoded(index)
            if block is not None:
                block.release()
        if self.ticket is not None:
            self.ticket.abandon()

    def end(self) -> None:
        """Note that the worker is done with the blocks."""
        with self._lock:
            self._ended = True
            wasted = self._size_of(self._joined)
        # Counted first: the numbers are right once no block is leased.
        try:
            if wasted:
                self._wasted(wasted)
        finally:
            if self._blocks:
                release_all(self._blocks)

    def _size_of(self, left: Iterable[int]) -> int:
        """Return the bytes read of the chunks in *left* that all readers left without a use."""
        return sum(self.sizes[i] for i in left if self._joined[i] == _NOBODY) if self.sizes else 0


class PendingRead:
    """One chunk that a caller waits for: a block, and the read that fills it, if any does."""

    __slots__ = ("_index", "_lease", "fetch", "spec", "tier", "why")

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
        self._lease = lease
        self.fetch = fetch
        self._index = index

    def settle(self, owner: str, deadline: Deadline, encoded: Collection[str] = ()) -> Lease | None:
        """Wait for the chunk; the caller releases the lease. ``None``: see :attr:`why`.

        A chunk that stayed encoded is decoded here, unless *encoded* names its serde: the thread
        that began the read may not have known which caller would use it.
        """
        lease, self._lease = self._lease, None
        fetch, self.fetch = self.fetch, None
        if lease is None:
            return None
        if fetch is not None:
            ticket = fetch.ticket
            if ticket is not None and not (ticket.done or ticket.wait(deadline)):
                self.why = Reason.TIMED_OUT
                fetch.late = True
            else:
                self.why = fetch.why[self._index]
            kept = fetch.take_encoded(self._index) if fetch.encoded else None
            whole = self.why is None
            if whole and kept is not None:
                if kept.spec is not None and kept.spec.serde in encoded:
                    lease, kept = kept, lease
                else:
                    self.why = fetch.decode(kept, lease)
                    whole = self.why is None
            if kept is not None:
                kept.release()
            if not whole:
                lease.release()
                fetch.leave(self._index)
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
        """Leave the read, and release the block."""
        lease, self._lease = self._lease, None
        fetch, self.fetch = self.fetch, None
        if lease is not None:
            lease.release()
        if fetch is not None:
            fetch.leave(self._index)
            encoded = fetch.take_encoded(self._index)
            if encoded is not None:
                encoded.release()
