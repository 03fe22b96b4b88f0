"""Handing a served cache's memory over to another process.

The process that has it *freezes*, reports the blocks that it *holds*, and once the other one has
all of them *gives* it: from then on it touches nothing of the memory. Until then it may *thaw*, and
continue unchanged. The other process *adopts* the blocks while it is frozen itself, and thaws after
the memory was given to it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from hexkv.core.engine.calls import Calls
from hexkv.core.tiers.cache import TierStack
from hexkv.core.tiers.tier import Tier
from hexkv.peers.service import PeerService
from hexkv.peers.serving.addresses import Addresses
from hexkv.peers.serving.inheriting import give_up, keep, kept
from hexkv.ports import (
    ChunkKey,
    ChunkSpec,
    Deadline,
    FrameFile,
    Lease,
    SupportsHandOver,
    release_all,
)

_OWNER = "inheritance"


class Place(NamedTuple):
    """A block of the pool, and its content."""

    offset: int
    size: int
    """Bytes of the block."""

    payload_bytes: int
    spec: ChunkSpec | None
    """``None``: no usable chunk; the block is only not free."""


class Pin(NamedTuple):
    """The chunks that one owner keeps from eviction."""

    owner: str
    keys: Sequence[ChunkKey]
    seconds: float
    """The remaining time, from now on."""


class Inheritance:
    """Hands a served cache over. Called by one thread, while no other uses the cache."""

    def __init__(
        self,
        stack: TierStack,
        calls: Calls,
        place: Callable[[Lease], int | None],
        peers: PeerService | None = None,
        addresses: Addresses | None = None,
    ) -> None:
        self.given = False
        """True once another process has the memory."""

        self._stack = stack
        self._calls = calls
        self._offset = place
        self._peers = peers
        self._addresses = addresses or Addresses()

    def freeze(self, deadline: Deadline) -> Mapping[int, tuple[int, int]]:
        """Write the queue up to *deadline*; then lend nothing, and write to no block.

        Calls are paused, of every caller: chunks that one deleted would be there again. Peers find
        no server at the address, which the other process may take now.

        Reads and writes still under way then keep their blocks. Return, by the offset of each held
        block, its bytes and its number of holders.
        """
        self._calls.pause(deadline)
        if self._peers is not None:
            self._peers.pause(deadline)
        self._addresses.leave()
        for tier in self._stack.tiers:
            tier.drain(deadline)
        return self._stack.pool.freeze()

    def freeze_now(self) -> None:
        """Lend nothing, and write to no block: the memory is not this process's yet."""
        if self._peers is not None:
            self._peers.pause(Deadline(self._stack.runtime.clock, 0.0))
        self._stack.pool.freeze()

    def thaw(self) -> None:
        """Use the memory again: it is this process's."""
        self._stack.pool.thaw()
        for _, store in self._passing_on():
            store.thaw()
        if self._peers is not None:
            self._peers.resume()
        self._addresses.take_back()
        self._calls.resume()

    def give(self) -> None:
        """Leave the memory to the other process, and close everything else."""
        self.given = True  # first: closing its stores would write to its memory
        self._addresses.close()
        if self._peers is not None:
            self._peers.close()
        give_up(self._stack)

    def place(self, lease: Lease) -> Place | None:
        """Return the place of a lease; ``None`` if that is no memory of the pool."""
        offset = self._offset(lease)
        if offset is None:
            return None
        return Place(offset, lease.size, len(lease.payload), lease.spec)

    def chunks(self) -> list[tuple[str, Place]]:
        """Return, by tier, all chunks in the pool; those that are worth least come first."""
        leases = list(kept(self._stack, _OWNER))
        try:
            placed = [(tier, self.place(lease)) for tier, lease in leases]
            return [(tier, place) for tier, place in placed if place is not None]
        finally:
            release_all([lease for _, lease in leases])

    def stores(self) -> list[tuple[str, FrameFile]]:
        """Return, by tier, the memory of stores that can be passed on. Frozen from now on.

        The descriptors stay the stores'.
        """
        found = [(tier, store.hand_over(tier.index.ranked())) for tier, store in self._passing_on()]
        return [(tier.name, file) for tier, file in found if file is not None]

    def counted(self, seconds: float) -> dict[str, int]:
        """Return, by tier with such memory, the number of its chunks, once the tier knows them.

        It waits *seconds* for that.
        """
        deadline = Deadline.after(self._stack.runtime.clock, seconds)
        found = {}
        for tier, _ in self._passing_on():
            tier.flush(deadline)
            found[tier.name] = len(tier.index)
        return found

    def _passing_on(self) -> list[tuple[Tier, SupportsHandOver]]:
        return [
            (tier, tier.store)
            for tier in self._stack.tiers
            if isinstance(tier.store, SupportsHandOver)
        ]

    def pins(self) -> list[Pin]:
        """Return all pins."""
        lasting = self._stack.pins.lasting()
        return [Pin(owner, keys, seconds) for owner, (keys, seconds) in lasting.items()]

    @staticmethod
    def busy(blocks: Mapping[int, tuple[int, int]], places: Iterable[Place]) -> list[Place]:
        """Return those of *blocks*, from :meth:`freeze`, that have more holders than *places* have.

        Reads or writes of them are under way: they must not be used before this process is gone.
        """
        known = Counter(place.offset for place in places)
        return [
            Place(offset, size, 0, None)
            for offset, (size, holds) in blocks.items()
            if holds > known[offset]
        ]

    def adopt(self, places: Sequence[Place], owner: str) -> list[Lease]:
        """Return leases of *owner* on blocks of the former process. Before anything else is leased.

        Raises:
            InvalidRequest: these are no blocks of this pool, or they overlap.
        """
        leases = self._stack.pool.adopt([place[:3] for place in places], owner)
        for lease, place in zip(leases, places, strict=True):
            lease.spec = place.spec
        return list(leases)

    def keep(self, tier: str, leases: Sequence[Lease]) -> int:
        """Let *tier* keep chunks, in the order of :meth:`chunks`. Return how many it keeps."""
        return keep(self._stack, tier, leases)

    def pin(self, pins: Sequence[Pin]) -> None:
        """Restore *pins*, on the tiers whose indexes already have the chunks."""
        clock = self._stack.runtime.clock
        for pin in pins:
            self._stack.pins.pin(pin.owner, pin.keys, Deadline.after(clock, pin.seconds))
