"""Lend chunks of a cache to its peers, and keep chunks that they offer: the tiers' side of it.

Only the own tiers of a process are lent from. A tier that reads from peers is not one of them, so a
request never goes in a circle.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from hexkv.core.frames.opening import Opening, opened
from hexkv.core.memory.pool import BlockLease
from hexkv.core.tiers.batches import Batch
from hexkv.core.tiers.cache import TierStack
from hexkv.core.tiers.read.block_sink import label
from hexkv.core.tiers.read.pieces import STEP, Obtained
from hexkv.core.tiers.tier import Tier
from hexkv.peers.lending.allowance import Allowance
from hexkv.peers.lending.copies import Copies
from hexkv.peers.lending.lent import LentLease, lent
from hexkv.ports import (
    PAGE,
    ChunkKey,
    CounterName,
    Deadline,
    FrameHeader,
    InvalidRequest,
    Lease,
    Offer,
    PoolExhausted,
    Reason,
    release_all,
)

OWNER = "peers"
"""The owner of the leases that peers use."""

_READING = 5.0
"""The least number of seconds for a tier that does I/O, even if the peer's deadline is shorter: its
breaker must not open because a peer is in a hurry."""


@dataclass(frozen=True, slots=True)
class LendingRules:
    """The limits on lending to peers."""

    bytes: int
    """Bytes lent at a time; also the limit for bytes on their way in."""

    rate: int | None = None
    """Bytes per second that may be sent; ``None``: no limit."""

    copies: int | None = 2
    """Peers that receive a chunk at a time, before others pass it on; ``None``: no limit."""

    settle: float = 2.0
    """Seconds after a transfer for which its receiver still counts."""

    accepts: bool = True
    """False: offers of peers are refused."""


class Lending:
    """Lends chunks of own tiers, and keeps chunks that peers offer. Safe from any thread.

    Args:
        stack: the tiers.
        own: names of the tiers that are lent from.
        rules: the limits.
        may_keep: called with the header of each verified frame that is offered; False refuses it.
    """

    def __init__(
        self,
        stack: TierStack,
        own: Collection[str],
        rules: LendingRules,
        may_keep: Callable[[FrameHeader], bool] = lambda _: True,
    ) -> None:
        runtime = stack.runtime
        self.pool = stack.pool
        """The pool of blocks."""

        self._stack = stack
        self._own = frozenset(own)
        self._accepts = rules.accepts
        self._may_keep = may_keep
        self._out = Allowance(rules.bytes, rules.rate, runtime.clock, runtime.executor)
        self._in = Allowance(rules.bytes, None, runtime.clock, runtime.executor)
        self._copies = Copies(rules.copies, runtime.clock, rules.settle)
        self._now = Deadline(runtime.clock, 0.0)

    @property
    def lent_bytes(self) -> int:
        """Bytes being sent to peers now."""
        return self._out.taken

    def have(self, keys: Sequence[ChunkKey]) -> list[bool]:
        """True for each chunk that an own tier holds, according to its index."""
        here = [False] * len(keys)
        for tier in self._tiers():
            here = [a or b for a, b in zip(here, tier.known(keys), strict=True)]
        return here

    def busy(self, keys: Sequence[ChunkKey]) -> list[bool]:
        """True for each chunk that is here, but not lent because enough peers receive it."""
        busy = list(map(self._copies.busy, keys))
        return [a and b for a, b in zip(busy, self.have(keys), strict=True)] if any(busy) else busy

    def lend(self, keys: Sequence[ChunkKey], who: str, deadline: Deadline) -> list[Lease | None]:
        """Return a lease on the sealed frame of each chunk, for a channel to release.

        Waits until the limits allow it. Chunks beyond what may be lent at a time get ``None``, and
        so do chunks that no own tier holds, and those that enough other peers receive.
        """
        chosen = self._chosen(keys, who)
        total = sum(chosen.values())
        found: dict[ChunkKey, Lease] = {}
        try:
            if chosen and self._out.take(total, deadline):
                try:
                    self._obtain(chosen, who, deadline, found)
                finally:
                    self._out.give_back(total - sum([chosen[key] for key in found]))
        except BaseException:
            release_all(list(found.values()))
            raise
        finally:
            self._copies.end(chosen.keys() - found.keys(), who, given=False)
        return self._in_order(keys, found)

    def frames(
        self, keys: Sequence[ChunkKey], deadline: Deadline
    ) -> Generator[Obtained, None, None]:
        """Yield sealed frames, a few at a time, from the first own tier that brings each.

        They are released when the next are requested, unless the caller keeps them.
        """
        seconds = max(deadline.remaining(), _READING)
        todo, held = list(keys), False
        for tier in self._tiers():
            here = [key for key, there in zip(todo, tier.known(todo), strict=True) if there]
            if not here:
                continue
            until = deadline if tier.lends else Deadline.after(deadline.clock, seconds)
            step = len(here) if tier.lends else STEP
            for got in self._stack.fetcher.frames(tier, here, OWNER, until, step, held=held):
                todo = [key for key in todo if key not in got.leases]
                # Otherwise it is a copy of a read-only block, and not leased.
                loose = [
                    key
                    for key, lease in got.leases.items()
                    if self._stack.writer.sealed(key, lease) is not lease.frame
                ]
                release_all([got.leases.pop(key) for key in loose])
                yield got
                held = held or (got.kept and bool(got.leases))

    def room(
        self, wanted: Sequence[tuple[ChunkKey, int]], deadline: Deadline
    ) -> list[Lease | Reason]:
        """Return an empty lease for each offered frame, or the reason for none; never waits."""
        del deadline
        here = self.have([key for key, _ in wanted])
        return [
            Reason.PRESENT if present else self._room(key, size)
            for (key, size), present in zip(wanted, here, strict=True)
        ]

    def keep(self, arrived: Sequence[Offer], deadline: Deadline) -> list[bool]:
        """Verify frames that arrived in leases of :meth:`room`, and put them on the tiers."""
        blocks: dict[ChunkKey, BlockLease] = {}
        for key, lease in arrived:
            room = lease.lease if isinstance(lease, LentLease) else lease
            block = self._stack.pool.own(room)
            if block is not None and self.verified(block, key) is None:
                blocks[key] = block
        kept = self.put(blocks, deadline)
        return [key in kept for key, _ in arrived]

    def verified(self, block: BlockLease, key: ChunkKey) -> Reason | None:
        """Return why the frame in a block is unusable for *key*; ``None``: it is labelled."""
        found = opened(Opening(self._stack.runtime.codec, block.frame), key)
        if isinstance(found, Reason):
            return found
        return Reason.REFUSED if not self._may_keep(found) else label(block, found)

    def put(self, blocks: Mapping[ChunkKey, Lease], deadline: Deadline) -> set[ChunkKey]:
        """Put verified chunks on the tiers that take new ones. Return those that one holds."""
        if not blocks:
            return set()
        keys = list(blocks)
        written = self._stack.put(Batch(keys, list(blocks.values()), None), deadline)
        kept: set[ChunkKey] = set()
        # Memory first, which holds them at once: then no wait for a disk is needed.
        for name, pending in sorted(written.items(), key=lambda one: not one[1].done):
            if len(kept) == len(keys):
                break
            pending.wait(deadline)
            del name
            kept.update(key for key, here in zip(keys, pending.result, strict=True) if here)
        return kept

    def free_block(self, payload_bytes: int) -> BlockLease:
        """Return a block for a frame that is not here yet, without waiting for one.

        Raises:
            PoolExhausted: none is free.
            InvalidRequest: no block is that large.
        """
        return self.pool.lease(payload_bytes, OWNER, self._now)

    def count_sent(self, size: int) -> None:
        """Count *size* bytes of frames that were sent to a peer."""
        self._stack.runtime.telemetry.count(CounterName.LENT_BYTES, size)

    def limit_rate(self, rate: int | None) -> None:
        """Send at most *rate* bytes per second from now on; ``None``: any number."""
        self._out.rate = rate

    def close(self) -> None:
        """Stop lending and accepting."""
        self._out.close()
        self._in.close()

    def drain(self, deadline: Deadline) -> bool:
        """Wait until no lease is lent. False if *deadline* passes first."""
        return self._out.drain(deadline) and self._in.drain(deadline)

    def _tiers(self) -> list[Tier]:
        """The tiers that are lent from and usable now."""
        return [
            tier
            for tier in self._stack.tiers
            if tier.name in self._own and tier.rules.reads and not tier.off and not tier.indexing
        ]

    def _sizes(self, keys: Sequence[ChunkKey]) -> list[int | None]:
        """The bytes that each chunk counts on the first own tier that holds it."""
        sizes: list[int | None] = [None] * len(keys)
        for tier in self._tiers():
            size = tier.index.size
            sizes = [
                size(key) if known is None else known
                for key, known in zip(keys, sizes, strict=True)
            ]
        return sizes

    def _chosen(self, keys: Sequence[ChunkKey], who: str) -> dict[ChunkKey, int]:
        """Return the chunks to lend to *who*, of those that are here, and their sizes at most."""
        once = list(dict.fromkeys(keys))
        sizes = zip(once, self._sizes(once), strict=True)
        here = {key: size for key, size in sizes if size is not None}
        return self._copies.begin(here, who, self._out.most)

    def _obtain(
        self,
        chosen: dict[ChunkKey, int],
        who: str,
        deadline: Deadline,
        found: dict[ChunkKey, Lease],
    ) -> None:
        """Lease *chosen* into *found*."""
        over = partial(self._over, who, chosen)
        for got in self.frames(list(chosen), deadline):
            run = got.keep()
            larger = [key for key, lease in run.items() if len(lease.frame) > chosen[key]]
            release_all([run.pop(key) for key in larger])  # replaced by a larger frame
            found.update(lent(run, over))

    def _over(self, who: str, sizes: Mapping[ChunkKey, int], moved: Mapping[ChunkKey, int]) -> None:
        """End the loan of chunks of *sizes* to *who*; *moved* are the bytes sent of each."""
        left = sum(moved.values())
        self._out.give_back(sum([sizes[key] for key in moved]), left)
        self._copies.end(moved, who)
        self.count_sent(left)

    def _in_order(
        self, keys: Sequence[ChunkKey], found: dict[ChunkKey, Lease]
    ) -> list[Lease | None]:
        """Return a lease for each of *keys*, which may contain duplicates."""
        first = set[ChunkKey]()
        given: list[Lease | None] = []
        for key in keys:
            lease = found.get(key)
            given.append(lease.share(OWNER) if lease is not None and key in first else lease)
            first.add(key)
        return given

    def _room(self, key: ChunkKey, size: int) -> Lease | Reason:
        if not self._accepts:
            return Reason.REFUSED
        if not self._in.take(size, self._now):
            return Reason.QUEUE_FULL
        try:
            block = self.free_block(size - PAGE)
        except (PoolExhausted, InvalidRequest):
            self._in.give_back(size)
            return Reason.NO_ROOM
        return lent({key: block}, lambda _: self._in.give_back(size))[key]
