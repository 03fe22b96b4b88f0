"""Promises about peers that are stopped, killed, slow or send garbage: no late memory access."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from threading import Event

import pytest

from hexkv.contracts.channel._base import (
    SIZE,
    ChannelCase,
    End,
    Open,
    Proxied,
    brief,
    soon,
    until,
)
from hexkv.contracts.channel.apart import PeerApart, Recipe
from hexkv.contracts.channel.blocks import BlockSink, frame_of
from hexkv.contracts.doubles import chunk_key
from hexkv.contracts.kit.promise import promise
from hexkv.contracts.kit.waiting import UnderWay, promptly
from hexkv.ports import Failed, Hit, Miss, Outcome, Part, Stored, StoreUnreachable, TimedOut

LARGE = 32 << 20
"""Bytes of a frame larger than any socket's buffer: a stopped peer has not sent all of it."""

LATE = 30.0
"""Seconds of this process's time after which a brief deadline counts as missed."""

_POISON = 0x5A

_TRICKLE = 8.0
"""Bytes of a reply per second: each comes in time, and all of them never."""

StartPeer = Callable[..., PeerApart]


class NetworkFaults(ChannelCase):
    """Peers in processes of their own, and a network that fails."""

    @pytest.fixture
    def apart(self, recipe: Recipe) -> Iterator[StartPeer]:
        with ExitStack() as started:
            yield lambda size, *names: started.enter_context(PeerApart(recipe, size, *names))

    @promise(
        "channel.16",
        "writes nothing into memory that was given up, whenever a stopped peer goes on",
        level="L4",
        clause="TransferChannel.read",
        why="a block that was leased anew would change under its owner: wrong KV without an error",
        hint="keep a share of the lease until the transfer can no longer write",
    )
    def test_no_byte_is_written_late(self, open_end: Open, apart: StartPeer) -> None:
        """Give up, poison the block, wake the peer: no byte changes in a block leased anew."""
        near, peer = open_end(2, LARGE), apart(LARGE, "a")
        # A library that connects with its first transfer would not have begun when it is stopped.
        assert near.read(peer.peer, [Part(chunk_key("a"), 0, 10)])[0] == [Hit(10)]
        sink = BlockSink(near.blocks, during=peer.stop)
        (outcome,) = _read(near, peer, sink)
        assert isinstance(outcome, TimedOut | Failed | Hit)
        sink.release()
        # The block that was given up, or the other one, where the channel still has that.
        anew = near.blocks.lease("anew")
        assert anew is not None
        anew.frame[:] = bytes([_POISON]) * LARGE
        peer.resume()
        until(lambda: set(near.held()) <= {"anew"}, "the channel keeps a lease")

        def answered() -> bool:
            return near.read(peer.peer, [Part(chunk_key("a"))])[0] == [Hit(LARGE)]

        # A complete read through the same library: its earlier transfers have arrived by then.
        until(answered, "the peer stays away")
        changed = LARGE - bytes(anew.frame).count(_POISON)
        assert not changed, f"{changed} bytes of a block changed after it was given up"
        anew.release()

    @pytest.mark.thorough
    @promise(
        "channel.17",
        "keeps a share of the memory of a transfer, even if its caller releases during it",
        level="L4",
        clause="Destination.lease",
        why="a caller that is interrupted would have its block written to by the transfer",
    )
    def test_memory_under_a_transfer_stays_leased(self, open_end: Open, apart: StartPeer) -> None:
        """While the call waits for a stopped peer, its block cannot be leased again."""
        near, peer = open_end(1, LARGE), apart(LARGE, "a")
        asked = Event()

        def stop() -> None:
            peer.stop()
            asked.set()

        sink = BlockSink(near.blocks, during=stop)
        outcomes: list[Outcome] = []

        def read() -> None:
            outcomes.extend(near.channel.read(peer.peer, [Part(chunk_key("a"))], sink, soon()))

        with UnderWay({"read": read}, patience=60):
            try:
                assert asked.wait(60)
                shared = "the channel has no share of its own"
                until(lambda: len(near.held()) > 1 or outcomes, shared)
                sink.release()
                anew, ended = near.blocks.lease("anew"), [*outcomes]
            finally:
                peer.resume()  # the call ends soon, and not before
        assert anew is None or (ended and isinstance(ended[0], Hit))

    @pytest.mark.thorough
    @promise(
        "channel.18",
        "keeps its deadline with a peer that is stopped, and goes on with it afterwards",
        level="L4",
        clause="TransferChannel.read",
        why="every prompt would wait for a frozen machine",
    )
    def test_a_stopped_peer_costs_the_deadline(self, near: End, apart: StartPeer) -> None:
        """For each of read, offer and ask; then the peer resumes and answers again."""
        peer = apart(SIZE, "a")
        mine = near.source.put("mine")
        (outcome,), _ = near.read(peer.peer, [chunk_key("a")])
        assert outcome == Hit(SIZE)
        peer.stop()
        for call in (
            lambda: near.read(peer.peer, [chunk_key("a")], brief())[0][0],
            lambda: near.offer(peer.peer, [mine], brief())[0],
        ):
            assert isinstance(promptly(call, LATE), TimedOut | Failed)
        with pytest.raises(StoreUnreachable):
            promptly(lambda: near.channel.ask(peer.peer, b"who?", brief()), LATE)
        peer.resume()
        until(lambda: near.read(peer.peer, [chunk_key("a")])[0] == [Hit(SIZE)], "it stays away")
        near.settle()

    @promise(
        "channel.19",
        "notices a peer that is killed, at once, and goes on with others",
        level="L4",
        clause="TransferChannel.read",
        why="every prompt would wait for the deadline, once for each dead node",
    )
    def test_a_killed_peer_is_noticed(self, open_end: Open, apart: StartPeer) -> None:
        """In the middle of a frame, and before one; every hit is complete."""
        near, peer = open_end(2, LARGE), apart(LARGE, "a")
        mine = near.source.put("mine")
        sink = BlockSink(near.blocks, during=peer.kill)
        wanted = [Part(chunk_key("a"))]
        outcomes = promptly(lambda: near.channel.read(peer.peer, wanted, sink, soon()), LATE)
        outcome: Outcome = outcomes[0]
        assert isinstance(outcome, Failed | Hit)
        if isinstance(outcome, Hit):
            assert sink.data(0) == frame_of("a", LARGE)
        sink.release()
        (outcome,), _ = promptly(lambda: near.read(peer.peer, [chunk_key("a")]), LATE)
        assert isinstance(outcome, Failed)
        (outcome,) = promptly(lambda: near.offer(peer.peer, [mine]), LATE)
        assert isinstance(outcome, Failed)
        near.settle()
        other = apart(SIZE, "b")
        (outcome,), _ = near.read(other.peer, [chunk_key("b")])
        assert outcome == Hit(SIZE)

    @pytest.mark.thorough
    @promise(
        "channel.20",
        "takes back what it lent to a peer that dies in the middle of reading it",
        level="L4",
        clause="PeerSource.lend",
        why="each engine that crashes would take a piece of its peers' memory with it",
    )
    def test_a_dead_reader_leaves_nothing_leased(self, open_end: Open, apart: StartPeer) -> None:
        """A stopped reader may keep its leases; once it is dead, none remain."""
        far, reader = open_end(1, LARGE), apart(LARGE)
        far.serve()
        far.source.put("a")
        reader.read_and_stop(far.peer, "a")
        assert far.source.asked
        reader.kill()
        far.settle()

    @pytest.mark.thorough
    @promise(
        "channel.21",
        "keeps what it offered leased while a stopped peer may read it, and not longer",
        level="L4",
        clause="TransferChannel.offer",
        why="a peer would keep another chunk's bytes, or each one that crashes would cost a block",
    )
    def test_an_offer_to_a_stopped_peer_ends(self, open_end: Open, apart: StartPeer) -> None:
        """The call ends with its deadline; once the peer is dead nothing is leased."""
        near, peer = open_end(2, LARGE), apart(LARGE)
        mine = near.source.put("mine")
        near.channel.ask(peer.peer, b"there?", soon())
        peer.stop()
        (outcome,) = promptly(lambda: near.offer(peer.peer, [mine], brief()), LATE)
        assert not isinstance(outcome, Stored)
        near.source.clear()
        peer.kill()
        until(lambda: near.blocks.ledger() == {}, "the channel keeps a lease of a dead peer")

    @pytest.mark.thorough
    @promise(
        "channel.22",
        "keeps its deadline with a peer that sends a few bytes a second",
        level="L4",
        clause="TransferChannel.read",
        why="a byte now and then would buy any time",
    )
    def test_a_slow_peer_costs_the_deadline(self, near: End, far: End, proxied: Proxied) -> None:
        """Requests too, or replies alone. Nothing stays leased; the next call finds another way."""
        key = far.source.put("a")
        with proxied(far.peer) as (proxy, peer):
            assert near.read(peer, [key])[0] == [Hit(SIZE)]
            for slow, rate in ((proxy.bandwidth, 1.0), (proxy.trickle, _TRICKLE)):
                slow(rate)
                (outcome,), _ = promptly(lambda: near.read(peer, [key], brief()), LATE)
                assert isinstance(outcome, TimedOut | Failed)
                near.settle()
                proxy.mend()
                until(lambda: near.read(peer, [key])[0] == [Hit(SIZE)], "it does not come back")

    @promise(
        "channel.23",
        "takes no nonsense for an answer, and breaks with the peer that sends it",
        level="L4",
        clause="TransferChannel.read",
        why="garbage would be KV, or a length that takes all memory",
    )
    def test_nonsense_is_no_answer(self, near: End, far: End, proxied: Proxied) -> None:
        """Before an answer or in place of one; and an answer cut off in the middle of a frame."""
        key = far.source.put("a")
        with proxied(far.peer) as (proxy, peer):
            for size in (1, 60, 4096):
                proxy.garbage(size)
                (outcome,), _ = promptly(lambda: near.read(peer, [key], brief()), LATE)
                assert not isinstance(outcome, Hit | Miss)
                proxy.mend()
            for size in (10, 300, 6000):
                proxy.cut_after(size)
                (outcome,), _ = promptly(lambda: near.read(peer, [key], brief()), LATE)
                assert not isinstance(outcome, Hit | Miss)
                proxy.mend()
            near.settle()
            until(lambda: near.read(peer, [key])[0] == [Hit(SIZE)], "it does not come back")


def _read(near: End, peer: PeerApart, sink: BlockSink) -> list[Outcome]:
    wanted = [Part(chunk_key("a"))]
    return list(promptly(lambda: near.channel.read(peer.peer, wanted, sink, brief()), LATE))
