"""Fetch chunks from a peer and send chunks to one, on command: not for reads of a request."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack

from hexkv.core.admin.moving import STEP
from hexkv.core.memory.pool import BlockLease
from hexkv.core.peers.lending import Lending
from hexkv.ports import (
    ChunkKey,
    Corrupt,
    Deadline,
    Destination,
    Failed,
    Hit,
    InvalidRequest,
    Miss,
    Offer,
    Part,
    Peer,
    PoolExhausted,
    Reason,
    Stored,
    StoreError,
    StoreFull,
    TimedOut,
    TransferChannel,
    TransferOutcome,
    release_all,
)


class _Blocks:
    """A sink that leases a block for each frame; it waits only for the first."""

    def __init__(self, lending: Lending, deadline: Deadline) -> None:
        self.leases: dict[int, BlockLease] = {}
        self.short: set[int] = set()
        """Chunks without a block, because the pool was exhausted."""

        self._lending = lending
        self._deadline = deadline

    def room(self, index: int, size: int) -> Destination | None:
        former = self.leases.pop(index, None)
        if former is not None:
            former.release()
        now = Deadline(self._deadline.clock, 0.0)
        try:
            block = self._lending.block(size, now if self.leases else self._deadline)
        except PoolExhausted:
            self.short.add(index)
            return None
        except InvalidRequest:
            return None
        self.short.discard(index)
        self.leases[index] = block
        return Destination(block, block.frame)

    def filled(self, index: int, upto: int) -> None:
        """See :class:`hexkv.ports.LeaseSink`."""

    def release(self) -> None:
        """Release every block."""
        for lease in self.leases.values():
            lease.release()


class Exchange:
    """Fetch and send chunks over *channel*, into and out of the tiers of *lending*."""

    def __init__(self, lending: Lending, channel: TransferChannel) -> None:
        self._lending = lending
        self._channel = channel

    def pull(
        self, peer: Peer, keys: Sequence[ChunkKey], deadline: Deadline
    ) -> list[TransferOutcome]:
        """See :class:`hexkv.ports.Peers`."""
        _distinct(keys)
        here = self._lending.have(keys)
        found = dict[ChunkKey, TransferOutcome]()
        found.update((key, Stored(0)) for key, there in zip(keys, here, strict=True) if there)
        todo = deque(key for key in keys if key not in found)
        while todo:
            part = [todo.popleft() for _ in range(min(STEP, len(todo)))]
            sink = _Blocks(self._lending, deadline)
            with ExitStack() as held:
                held.callback(sink.release)
                outcomes = self._channel.read(peer, list(map(Part, part)), sink, deadline)
                came: dict[ChunkKey, BlockLease] = {}
                for index, (key, outcome) in enumerate(zip(part, outcomes, strict=True)):
                    if not isinstance(outcome, Hit):
                        found[key] = outcome
                        continue
                    block = sink.leases[index]
                    wrong = self._lending.verified(block, key)
                    if wrong is None:
                        came[key] = block
                    else:
                        found[key] = _refused(wrong)
                kept = self._lending.put(came, deadline)
                for key, block in came.items():
                    full = Failed(StoreFull("no tier has room for it"))
                    found[key] = Stored(len(block.frame)) if key in kept else full
            again = [part[i] for i in sorted(sink.short)]
            if came and not deadline.expired:  # the others had taken all the memory
                todo.extendleft(reversed(again))
        return [found[key] for key in keys]

    def push(
        self, peer: Peer, keys: Sequence[ChunkKey], deadline: Deadline
    ) -> list[TransferOutcome]:
        """See :class:`hexkv.ports.Peers`."""
        _distinct(keys)
        found = dict[ChunkKey, TransferOutcome](dict.fromkeys(keys, Miss()))
        for step in range(0, len(keys), STEP):
            if deadline.expired:
                found.update(dict.fromkeys(keys[step:], TimedOut()))
                break
            offers = self._held(keys[step : step + STEP], deadline)
            try:
                outcomes = self._channel.offer(peer, offers, deadline) if offers else []
                found.update(
                    (offer.key, outcome) for offer, outcome in zip(offers, outcomes, strict=True)
                )
            finally:
                release_all([offer.lease for offer in offers])
            taken = [outcome.size for outcome in outcomes if isinstance(outcome, Stored)]
            self._lending.count_sent(sum(taken))
        return [found[key] for key in keys]

    def _held(self, keys: Sequence[ChunkKey], deadline: Deadline) -> list[Offer]:
        runs = self._lending.frames(keys, deadline)
        return [Offer(key, lease) for run in runs for key, lease in run.items()]


def _distinct(keys: Sequence[ChunkKey]) -> None:
    if len(set(keys)) < len(keys):
        raise InvalidRequest("a chunk is named twice")


def _refused(why: Reason) -> Corrupt | Failed:
    if why is Reason.CORRUPT:
        return Corrupt("the frame is not the chunk's")
    return Failed(StoreError(f"the chunk is not kept: {why.value}"))
