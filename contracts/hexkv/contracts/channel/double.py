"""A channel within one process: the port's meaning in as few lines as possible."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock

from hexkv.ports import (
    MAX_QUESTION,
    PAGE,
    ChunkKey,
    ConfigError,
    Corrupt,
    CorruptFrame,
    Deadline,
    Failed,
    Hit,
    InvalidRequest,
    LeaseSink,
    Miss,
    Offer,
    Part,
    Peer,
    PeerSource,
    ReadOutcome,
    Reason,
    Stored,
    StoreError,
    StoreFull,
    StoreUnreachable,
    SupportsSuspension,
    TimedOut,
    TransferChannel,
    WriteOutcome,
    names_key,
)

OWNER = "channel"


class Exchange:
    """The registry of channels in one process: a network without a wire."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._served: dict[str, tuple[int, PeerSource]] = {}
        self._count = 0

    def enter(self, source: PeerSource, generation: int, address: str = "") -> Peer:
        """Register *source* at *address*, or at a generated one.

        Raises:
            ConfigError: the address is taken.
        """
        with self._lock:
            if not address:
                self._count += 1
                address = f"local:{self._count}"
            if address in self._served:
                raise ConfigError(f"the address {address} is in use")
            self._served[address] = generation, source
        return Peer(address, generation)

    def leave(self, peer: Peer) -> None:
        """Unregister *peer*."""
        with self._lock:
            self._served.pop(peer.address, None)

    def find(self, peer: Peer) -> PeerSource:
        """The source that *peer* serves.

        Raises:
            StoreUnreachable: it is gone, or runs under another generation.
        """
        generation, source = self._served.get(peer.address, (0, None))
        if source is None or peer.generation not in (0, generation):
            raise StoreUnreachable(f"{peer.address} is gone")
        return source


class LocalChannel:
    """Copies frames between leases of one process, in the caller's thread.

    Args:
        exchange: of all channels that reach each other.
        name: of this peer, for the others.
        address: where it serves; empty for a generated one.
    """

    def __init__(self, exchange: Exchange, name: str = "", address: str = "") -> None:
        self._exchange = exchange
        self._name = name
        self._address = address
        self._served: tuple[PeerSource, int] | None = None
        self._me: Peer | None = None
        self._closed = False

    def serve(self, source: PeerSource, generation: int) -> Peer:
        self._must_be_open()
        if self._served is not None:
            raise ConfigError("a channel serves once")
        self._me = self._exchange.enter(source, generation, self._address)
        self._served, self._address = (source, generation), self._me.address
        return self._me

    def suspend(self) -> None:
        me, self._me = self._me, None
        if me is not None:
            self._exchange.leave(me)

    def resume(self) -> None:
        self._must_be_open()
        if self._served is not None and self._me is None:
            self._me = self._exchange.enter(*self._served, self._address)

    def read(
        self, peer: Peer, wanted: Sequence[Part], sink: LeaseSink, deadline: Deadline
    ) -> Sequence[ReadOutcome]:
        self._must_be_open()
        if deadline.expired:
            return [TimedOut()] * len(wanted)
        try:
            source = self._exchange.find(peer)
        except StoreUnreachable as error:
            return [Failed(error)] * len(wanted)
        return [
            self._read(source, index, part, sink, deadline) for index, part in enumerate(wanted)
        ]

    def offer(
        self, peer: Peer, offers: Sequence[Offer], deadline: Deadline
    ) -> Sequence[WriteOutcome]:
        self._must_be_open()
        if deadline.expired:
            return [TimedOut()] * len(offers)
        try:
            source = self._exchange.find(peer)
        except StoreUnreachable as error:
            return [Failed(error)] * len(offers)
        return [self._offer(source, offer, deadline) for offer in offers]

    def ask(self, peer: Peer, question: bytes, deadline: Deadline) -> bytes:
        self._must_be_open()
        if len(question) > MAX_QUESTION:
            raise InvalidRequest(f"a question of {len(question)} bytes")
        if deadline.expired:
            raise StoreUnreachable("the deadline has passed")
        return self._exchange.find(peer).answer(question, self._name, deadline)

    def close(self) -> None:
        self._closed = True
        self.suspend()

    def _read(
        self, source: PeerSource, index: int, part: Part, sink: LeaseSink, deadline: Deadline
    ) -> ReadOutcome:
        (lent,) = source.lend([part.key], self._name, deadline)
        if lent is None:
            return Miss()
        with lent:
            frame = lent.frame
            if not is_frame(frame, part.key):
                return Corrupt("the frame is of another chunk")
            end = len(frame) if part.size is None else part.start + part.size
            if end > len(frame) or (part.size is None and part.start):
                return Miss()
            there = sink.room(index, end - part.start)
            if there is None:
                return Miss(Reason.REFUSED)
            with there.lease.share(OWNER):
                there.into[:] = frame[part.start : end]
        return Hit(end - part.start)

    def _offer(self, source: PeerSource, offer: Offer, deadline: Deadline) -> WriteOutcome:
        frame = offer.lease.frame
        if not is_frame(frame, offer.key):
            return Failed(CorruptFrame("that is no frame of this chunk"))
        (room,) = source.room([(offer.key, len(frame))], self._name, deadline)
        if room is Reason.PRESENT:
            return Stored(0)
        if isinstance(room, Reason):
            return Failed(StoreFull("the peer has no room for it"))
        with room, offer.lease.share(OWNER):
            room.frame[:] = frame
            (kept,) = source.keep([Offer(offer.key, room)], self._name, deadline)
        return Stored(len(frame)) if kept else Failed(StoreError("the peer does not keep it"))

    def _must_be_open(self) -> None:
        if self._closed:
            raise StoreError("the channel is closed")


def is_frame(frame: memoryview, key: ChunkKey) -> bool:
    """True if *frame* is made of whole pages, and names *key*."""
    return len(frame) > 0 and not len(frame) % PAGE and names_key(frame, key)


def _may_be_suspended(channel: LocalChannel) -> SupportsSuspension:
    return channel  # a type checker checks here that it has the ability's methods


def _is_a_channel(channel: LocalChannel) -> TransferChannel:
    return channel  # a type checker checks here that it has the port's methods
