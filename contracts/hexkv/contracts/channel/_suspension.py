"""Promises of channels whose address passes to another process: two never lend at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, suppress

import pytest

from hexkv.contracts.channel._base import (
    SIZE,
    ChannelCase,
    End,
    Open,
    Successor,
    brief,
    soon,
    until,
)
from hexkv.contracts.channel._faults import LARGE, LATE
from hexkv.contracts.channel.apart import PeerApart, Recipe
from hexkv.contracts.kit.promise import not_offered, promise
from hexkv.contracts.kit.waiting import promptly
from hexkv.ports import (
    ConfigError,
    Failed,
    Hit,
    Stored,
    StoreError,
    StoreUnreachable,
    SupportsSuspension,
)


class Suspension(ChannelCase):
    """A channel that is suspended, and resumed."""

    @pytest.fixture
    def leaving(self, far: End) -> tuple[End, SupportsSuspension]:
        """The end that serves, and its channel as one that can be suspended."""
        if not isinstance(far.channel, SupportsSuspension):
            not_offered("SupportsSuspension")
        return far, far.channel

    @pytest.fixture
    def started(self) -> Iterator[ExitStack]:
        """An exit stack that closes what a test has started."""
        with ExitStack() as started:
            yield started

    @promise(
        "channel.24",
        "serves no peer while it is suspended",
        level="L4",
        clause="SupportsSuspension.suspend",
        why="two processes would lend the same memory, and one of them would not know it",
    )
    def test_who_is_suspended_serves_nobody(
        self, near: End, leaving: tuple[End, SupportsSuspension]
    ) -> None:
        """Also over a connection made before. Suspending twice is allowed."""
        far, channel = leaving
        key, mine = far.source.put("a"), near.source.put("mine")
        assert near.read(far.peer, [key])[0] == [Hit(SIZE)]
        channel.suspend()
        channel.suspend()
        asked = list(far.source.asked)
        assert isinstance(near.read(far.peer, [key], brief())[0][0], Failed)
        assert isinstance(near.offer(far.peer, [mine], brief())[0], Failed)
        with pytest.raises(StoreUnreachable):
            near.channel.ask(far.peer, b"there?", brief())
        assert far.source.asked == asked
        far.settle()

    @pytest.mark.thorough
    @promise(
        "channel.25",
        "lends nothing once it is suspended, though a reader is stopped",
        level="L4",
        clause="SupportsSuspension.suspend",
        why="the process that goes on would write to what a peer is reading: wrong KV",
    )
    def test_nothing_is_lent_once_it_is_suspended(
        self, open_end: Open, recipe: Recipe, started: ExitStack
    ) -> None:
        """At once, not some time later."""
        far = open_end(1, LARGE)
        if not isinstance(far.channel, SupportsSuspension):
            not_offered("SupportsSuspension")
        reader = started.enter_context(PeerApart(recipe, LARGE))
        far.serve()
        far.source.put("a")
        reader.read_and_stop(far.peer, "a")
        assert far.source.asked
        promptly(far.channel.suspend, LATE)
        assert not far.held()
        reader.kill()

    @promise(
        "channel.26",
        "serves as before once it is resumed, at the same address",
        level="L4",
        clause="SupportsSuspension.resume",
        why="a node that is not taken over after all would be lost to its peers",
    )
    def test_who_is_resumed_is_found_where_it_was(
        self, near: End, leaving: tuple[End, SupportsSuspension]
    ) -> None:
        """Under the same generation, at the first attempt; after it is closed it is not found."""
        far, channel = leaving
        key = far.source.put("a")
        for _ in range(2):
            channel.suspend()
            channel.resume()
            channel.resume()
            assert near.read(far.peer, [key])[0] == [Hit(SIZE)]
        assert near.channel.ask(far.peer, b"there?", soon()) == b"?ereht"
        channel.suspend()
        far.channel.close()
        with suppress(StoreError):
            channel.resume()
        with pytest.raises(StoreUnreachable):
            near.channel.ask(far.peer, b"there?", brief())

    @pytest.mark.thorough
    @promise(
        "channel.27",
        "goes on reading from its peers while it is suspended",
        level="L4",
        clause="SupportsSuspension.suspend",
        why="engines would miss for as long as a node changes hands",
    )
    def test_who_is_suspended_reads_on(
        self, near: End, leaving: tuple[End, SupportsSuspension]
    ) -> None:
        """Read, offer and ask work, over new connections and over earlier ones."""
        far, channel = leaving
        near.serve()
        key, mine = near.source.put("a"), far.source.put("mine")
        assert far.read(near.peer, [key])[0] == [Hit(SIZE)]
        channel.suspend()
        assert far.read(near.peer, [key])[0] == [Hit(SIZE)]
        assert far.offer(near.peer, [mine]) == [Stored(SIZE)]
        assert far.channel.ask(near.peer, b"there?", soon()) == b"?ereht"

    @pytest.mark.thorough
    @promise(
        "channel.28",
        "leaves its address to another process, and reports an error while that one is there",
        level="L4",
        clause="SupportsSuspension.resume",
        why="an upgrade would fail, or peers would ask two lives of a node at one address",
    )
    def test_somebody_else_may_serve_there_meanwhile(
        self,
        near: End,
        leaving: tuple[End, SupportsSuspension],
        successor: Successor,
        open_end: Open,
        started: ExitStack,
    ) -> None:
        """Under another generation, which answers the reads; then the first channel resumes."""
        far, channel = leaving
        key = far.source.put("a")
        assert near.read(far.peer, [key])[0] == [Hit(SIZE)]
        channel.suspend()
        other = End(successor(far.peer), open_end().blocks)
        started.callback(other.channel.close)
        other.serve()
        other.source.put("a")
        assert other.peer.address == far.peer.address
        assert near.read(other.peer, [key])[0] == [Hit(SIZE)]
        assert isinstance(near.read(far.peer, [key], brief())[0][0], Failed)
        with pytest.raises(ConfigError):
            channel.resume()
        other.channel.close()

        def back() -> bool:
            with suppress(ConfigError):  # the other process may free its address a moment later
                channel.resume()
                return True
            return False

        until(back, "it does not come back")
        assert near.read(far.peer, [key])[0] == [Hit(SIZE)]
        near.settle()
        far.settle()
