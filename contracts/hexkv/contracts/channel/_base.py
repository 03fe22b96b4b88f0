"""The common part of the channel contract: two ends, their blocks, and a subclass's fixtures."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from itertools import count
from threading import Event

import pytest

from hexkv.contracts.channel.apart import Recipe
from hexkv.contracts.channel.blocks import Blocks, BlockSink
from hexkv.contracts.channel.source import HeldFrames
from hexkv.contracts.faults.proxy import FaultProxy
from hexkv.contracts.kit.promise import not_offered
from hexkv.plugins.clock import SystemClock
from hexkv.ports import (
    PAGE,
    ChunkKey,
    Deadline,
    MemoryRegion,
    Offer,
    Outcome,
    Part,
    Peer,
    SupportsRegistration,
    TransferChannel,
)

SIZE = 4 * PAGE
"""Bytes of most frames."""

BLOCKS = 24

SECONDS = 60.0
"""A deadline that only a hang reaches."""

BRIEF = 1.0
"""A deadline that passes."""

PATIENCE = 30.0
"""Seconds after which waiting for other threads and processes fails."""

_POLL = 0.01
"""Seconds between two polls."""

Make = Callable[[], TransferChannel]
Memory = Callable[[int], MemoryRegion]
Proxied = Callable[[Peer], AbstractContextManager[tuple[FaultProxy, Peer]]]

_GENERATIONS = count(1)


def soon() -> Deadline:
    """A deadline that only a hang reaches."""
    return Deadline.after(SystemClock(), SECONDS)


def brief() -> Deadline:
    """A deadline that passes while a peer does not answer."""
    return Deadline.after(SystemClock(), BRIEF)


def past() -> Deadline:
    """A deadline that has passed."""
    return Deadline(SystemClock(), 0.0)


def until(reached: Callable[[], object], what: str) -> None:
    """Poll until *reached* returns a true value: other threads and processes do not notify.

    Raises:
        AssertionError: it never did; the message is *what*.
    """
    pause = Event()
    for _ in range(round(PATIENCE / _POLL)):
        if reached():
            return
        pause.wait(_POLL)
    raise AssertionError(what)


@dataclass
class End:
    """One end: a channel, and blocks in memory that it may use."""

    channel: TransferChannel
    blocks: Blocks
    source: HeldFrames = field(init=False)
    peer: Peer = field(init=False)

    def __post_init__(self) -> None:
        self.source = HeldFrames(self.blocks)

    def serve(self) -> None:
        """Serve the frames of the source."""
        self.peer = self.channel.serve(self.source, next(_GENERATIONS))

    def read(
        self, peer: Peer, wanted: Sequence[ChunkKey | Part], deadline: Deadline | None = None
    ) -> tuple[list[Outcome], list[bytes | None]]:
        """Return the outcomes of one read and the bytes that arrived; release all leases."""
        sink = BlockSink(self.blocks)
        parts = [it if isinstance(it, Part) else Part(it) for it in wanted]
        outcomes = self.channel.read(peer, parts, sink, deadline or soon())
        data = [sink.data(index) for index in range(len(parts))]
        sink.release()
        return list(outcomes), data

    def offer(
        self, peer: Peer, keys: Sequence[ChunkKey], deadline: Deadline | None = None
    ) -> list[Outcome]:
        """The outcomes of offering frames of the source."""
        leases = self.source.lend(keys, "test", soon())
        offers = [
            Offer(key, lease) for key, lease in zip(keys, leases, strict=True) if lease is not None
        ]
        outcomes = self.channel.offer(peer, offers, deadline or soon())
        for offer in offers:
            offer.lease.release()
        return list(outcomes)

    def held(self) -> dict[str, int]:
        """The number of leases by owner, without those of the source's own frames."""
        ledger = self.blocks.ledger()
        ledger.pop("source", None)
        return ledger

    def settle(self) -> None:
        """Wait until only the source's own frames are leased."""
        until(lambda: not self.held(), "leases are held after their last use")


Successor = Callable[[Peer], TransferChannel]
Open = Callable[..., End]


class ChannelCase:
    """The fixtures of a subclass, and those derived from them."""

    @pytest.fixture
    def make(self) -> Make:
        """A function that opens a new channel of the kind. The contract closes the channels."""
        raise NotImplementedError("give the subclass a `make` fixture")

    @pytest.fixture
    def memory(self) -> Memory | None:
        """A function that allocates memory for blocks; None if the channel can use any memory."""
        return None

    @pytest.fixture
    def recipe(self) -> Recipe:
        """How another process opens a channel that can reach those of this process."""
        not_offered("recipe")

    @pytest.fixture
    def stranger(self) -> TransferChannel:
        """A channel that is not authorized by those that *make* opens."""
        not_offered("stranger")

    @pytest.fixture
    def proxied(self) -> Proxied:
        """A context with a fault proxy before a peer, and the peer's address through that proxy."""
        not_offered("proxied")

    @pytest.fixture
    def successor(self) -> Successor:
        """A function that opens a channel at *peer*'s former address. The contract closes it."""
        not_offered("successor")

    @pytest.fixture
    def open_end(self, make: Make, memory: Memory | None) -> Iterator[Open]:
        with ExitStack() as opened:

            def open_end(blocks: int = BLOCKS, size: int = SIZE) -> End:
                if memory is None:
                    channel = make()
                    opened.callback(channel.close)
                    return End(channel, Blocks.on_heap(blocks, size))
                region = memory(blocks * size)
                opened.callback(region.close)  # last, for the channel may touch it until it closes
                channel = make()
                opened.callback(channel.close)
                if isinstance(channel, SupportsRegistration):
                    channel.register(region)
                return End(channel, Blocks(region.buffer, size))

            yield open_end

    @pytest.fixture
    def near(self, open_end: Open) -> End:
        """The end that makes the requests."""
        return open_end()

    @pytest.fixture
    def far(self, open_end: Open) -> End:
        """The end that serves."""
        end = open_end()
        end.serve()
        return end
