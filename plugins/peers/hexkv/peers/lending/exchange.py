"""Fetch chunks from a peer and send chunks to one, on command: not for reads of a request."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from functools import partial

from hexkv.core.tiers.read.block_sink import BlockSink
from hexkv.core.tiers.read.pieces import STEP, Obtained, in_pieces
from hexkv.peers.lending.lending import OWNER, Lending
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
    Reason,
    Stored,
    StoreError,
    StoreFull,
    TimedOut,
    TransferChannel,
    TransferOutcome,
)


class _Places:
    """A channel's sink: the blocks of a :class:`BlockSink` as places that it writes to."""

    def __init__(self, sink: BlockSink) -> None:
        self._sink = sink

    def room(self, index: int, size: int) -> Destination | None:
        """See :class:`hexkv.ports.LeaseSink`."""
        frame = self._sink.room(index, size)
        return None if frame is None else Destination(self._sink.own[index], frame)

    def filled(self, index: int, upto: int) -> None:
        """See :class:`hexkv.ports.LeaseSink`."""


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
        missing = [key for key in keys if key not in found]
        obtain = partial(self._obtain, peer, deadline, found)
        pieces = in_pieces(self._lending.pool, missing, STEP, obtain, OWNER, deadline)
        with closing(pieces):  # a failure releases its blocks at once
            for got in pieces:
                kept = self._lending.put(got.leases, deadline)
                for key, block in got.leases.items():
                    full = Failed(StoreFull("no tier has room for it"))
                    found[key] = Stored(len(block.frame)) if key in kept else full
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
            with closing(self._lending.frames(keys[step : step + STEP], deadline)) as pieces:
                for got in pieces:
                    offers = [Offer(key, lease) for key, lease in got.leases.items()]
                    outcomes = self._channel.offer(peer, offers, deadline) if offers else []
                    found.update(zip(got.leases, outcomes, strict=True))
                    taken = [it.size for it in outcomes if isinstance(it, Stored)]
                    self._lending.count_sent(sum(taken))
        return [found[key] for key in keys]

    def _obtain(
        self,
        peer: Peer,
        deadline: Deadline,
        found: dict[ChunkKey, TransferOutcome],
        keys: Sequence[ChunkKey],
    ) -> Obtained:
        """Read whole frames from *peer*, as far as blocks are free; the others go into *found*."""
        got = Obtained()
        sink = BlockSink([None] * len(keys), self._lending.free_block)
        try:
            parts = list(map(Part, keys))
            outcomes = self._channel.read(peer, parts, _Places(sink), deadline)
            for index, (key, outcome) in enumerate(zip(keys, outcomes, strict=True)):
                if not isinstance(outcome, Hit):
                    found[key] = outcome
                elif (why := self._lending.verified(sink.own[index], key)) is not None:
                    found[key] = _refused(why)
                else:
                    got.leases[key] = sink.own.pop(index)
        finally:
            sink.release()
        got.again = [keys[i] for i in sorted(sink.short)]
        got.short = max(sink.short.values(), default=0)
        return got


def _distinct(keys: Sequence[ChunkKey]) -> None:
    if len(set(keys)) < len(keys):
        raise InvalidRequest("a chunk is named twice")


def _refused(why: Reason) -> Corrupt | Failed:
    if why is Reason.CORRUPT:
        return Corrupt("the frame is not the chunk's")
    return Failed(StoreError(f"the chunk is not kept: {why.value}"))
