"""Claims: what callers have of reads under way until the chunks have arrived."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from threading import Lock

from hexkv.core.io.ticket import Ticket
from hexkv.core.memory.pool import BlockLease
from hexkv.core.tiers.answers import shares
from hexkv.core.tiers.tier import Tier
from hexkv.ports import ChunkSpec, Deadline, Lease, Reason, StoreError, release_all

log = logging.getLogger("hexkv")

_NOBODY = -1


class Fetch:
    """One read under way, with leases of its own on the blocks that it fills."""

    def __init__(
        self,
        tier: Tier,
        blocks: list[BlockLease],
        wasted: Callable[[int], None],
        decode: Callable[[BlockLease, Lease], Reason | None],
    ) -> None:
        """*wasted* is told the bytes of chunks that arrived and that nobody took.

        *decode* brings a chunk that stayed encoded out of its block into one for the raw chunk, or
        says why not.
        """
        self.tier = tier
        self.decode = decode
        self.late = False
        """True once nobody may join any more: a wait timed out, or all have left."""

        self.ticket: Ticket[None] | None = None
        self.why: list[Reason | None] = []
        """Why each chunk is not to be used; ``None`` once it is whole."""

        self.sizes: Sequence[int] = ()
        """Bytes that were read of each."""

        self.encoded: frozenset[str] = frozenset()
        """Serdes whose frames stay as they are; nobody joins a read that names any."""

        self._blocks = blocks
        self._wasted = wasted
        self._joined: Counter[int] = Counter()
        """By chunk: who joined, less who left without it. One more began the read."""

        self._ended = False
        self._encoded: dict[int, BlockLease | None] = {}
        self._lock = Lock()

    def join(self, index: int, owner: str) -> BlockLease | None:
        """A lease on the block of a chunk, to be filled; ``None``: too late, it is given up."""
        with self._lock:
            if self.late or self._ended:
                return None
            self._joined[index] += 1
            return self._blocks[index].share(owner)

    def keep_encoded(self, index: int, block: BlockLease) -> None:
        """A chunk stays encoded, in *block*, which is the claim's from now on.

        For reads that nobody may join: each of their chunks has one claim.
        """
        with self._lock:
            if index not in self._encoded:
                self._encoded[index] = block
                return
        block.release()  # the claim was dropped

    def take_encoded(self, index: int) -> BlockLease | None:
        """The block of a chunk that stayed encoded, for good; what comes later is released."""
        with self._lock:
            block, self._encoded[index] = self._encoded.get(index), None
            return block

    def leave(self, index: int) -> None:
        """A lease was released without a use of its chunk: what nobody wants any more ends."""
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

    def end(self) -> None:
        """The worker does not touch the blocks any more."""
        with self._lock:
            self._ended = True
            wasted = self._size_of(self._joined)
        if self._blocks:
            release_all(self._blocks)
        if wasted:
            self._wasted(wasted)

    def _size_of(self, left: Iterable[int]) -> int:
        """Bytes that were read of those chunks that everybody has *left* without a use."""
        return sum(self.sizes[i] for i in left if self._joined[i] == _NOBODY) if self.sizes else 0


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

    def settle(self, owner: str, deadline: Deadline, encoded: Collection[str] = ()) -> Lease | None:
        """Wait for the chunk; the caller releases the lease. ``None``: see :attr:`why`.

        What stayed encoded is decoded here, unless *encoded* names its serde: whoever began the
        read may not have known who would take it.
        """
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
        """Want it no more."""
        lease, self._lease = self._lease, None
        fetch, self._fetch = self._fetch, None
        if lease is not None:
            lease.release()
        if fetch is not None:
            fetch.leave(self._index)
            encoded = fetch.take_encoded(self._index)
            if encoded is not None:
                encoded.release()
