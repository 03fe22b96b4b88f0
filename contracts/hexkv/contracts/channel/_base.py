"""What the promises of channels share: two ends, their blocks, and the fixtures of a subclass."""

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
from hexkv.contracts.promise import not_offered
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
"""A deadline that only a hang meets."""

BRIEF = 1.0
"""A deadline that passes."""

PATIENCE = 30.0
"""Seconds after which what others are about to do does not happen any more."""

_POLL = 0.01
"""Seconds between two looks at it."""

Make = Callable[[], TransferChannel]
Memory = Callable[[int], MemoryRegion]
Proxied = Callable[[Peer], AbstractContextManager[tuple[FaultProxy, Peer]]]

_GENERATIONS = count(1)


def soon() -> Deadline:
    """A deadline that only a hang meets."""
    return Deadline.after(SystemClock(), SECONDS)


def brief() -> Deadline:
    """A deadline that passes while a peer does not answer."""
    return Deadline.after(SystemClock(), BRIEF)


def past() -> Deadline:
    """A deadline that has passed."""
    return Deadline(SystemClock(), 0.0)


def until(reached: Callable[[], object], what: str) -> None:
    """Ask again and again: what other threads and processes are about to do can only be polled.

    Raises:
        AssertionError: says *what* is wrong, for it did not come to that.
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
        """Serve what the source holds."""
        self.peer = self.channel.serve(self.source, next(_GENERATIONS))

    def read(
        self, peer: Peer, wanted: Sequence[ChunkKey | Part], deadline: Deadline | None = None
    ) -> tuple[list[Outcome], list[bytes | None]]:
        """The outcomes of one read, and what arrived; nothing is leased afterwards."""
        sink = BlockSink(self.blocks)
        parts = [it if isinstance(it, Part) else Part(it) for it in wanted]
        outcomes = self.channel.read(peer, parts, sink, deadline or soon())
        data = [sink.data(index) for index in range(len(parts))]
        sink.release()
        return list(outcomes), data

    def offer(
        self, peer: Peer, keys: Sequence[ChunkKey], deadline: Deadline | None = None
    ) -> list[Outcome]:
        """The outcomes of offering what the source holds."""
        leases = self.source.lend(keys, "test", soon())
        offers = [
            Offer(key, lease) for key, lease in zip(keys, leases, strict=True) if lease is not None
        ]
        outcomes = self.channel.offer(peer, offers, deadline or soon())
        for offer in offers:
            offer.lease.release()
        return list(outcomes)

    def held(self) -> dict[str, int]:
        """How many leases there are, beside those of the source's own frames."""
        ledger = self.blocks.ledger()
        ledger.pop("source", None)
        return ledger

    def settle(self) -> None:
        """Wait until nothing is leased beside the source's own frames: it is about to be so."""
        until(lambda: not self.held(), "leases are held that nobody needs any more")


Successor = Callable[[Peer], TransferChannel]
Open = Callable[..., End]


class ChannelCase:
    """The fixtures of a subclass, and what is made of them."""

    @pytest.fixture
    def make(self) -> Make:
        """Opens a channel of the kind, each time another one. They are closed by the contract."""
        raise NotImplementedError("give the subclass a `make` fixture")

    @pytest.fixture
    def memory(self) -> Memory | None:
        """Allocates the memory that blocks lie in; by default any memory does."""
        return None

    @pytest.fixture
    def recipe(self) -> Recipe:
        """How another process opens such a channel, which can reach those of this process."""
        not_offered("recipe")

    @pytest.fixture
    def stranger(self) -> TransferChannel:
        """A channel that may not ask those that *make* opens."""
        not_offered("stranger")

    @pytest.fixture
    def proxied(self) -> Proxied:
        """A fault proxy before a peer, and the peer that stands for it."""
        not_offered("proxied")

    @pytest.fixture
    def successor(self) -> Successor:
        """Opens a channel that serves where *peer* did. The contract closes it."""
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
        """The end that asks."""
        return open_end()

    @pytest.fixture
    def far(self, open_end: Open) -> End:
        """The end that serves."""
        end = open_end()
        end.serve()
        return end
