"""Promises about reading: the bytes of that key, or none."""

from __future__ import annotations

import threading
from functools import partial

import pytest

from hexkv.contracts.channel._base import (
    SIZE,
    ChannelCase,
    End,
    Make,
    Open,
    past,
    soon,
)
from hexkv.contracts.channel.blocks import BlockSink, frame_of
from hexkv.contracts.doubles import chunk_key
from hexkv.contracts.kit.promise import promise
from hexkv.contracts.kit.waiting import UnderWay, promptly, still_running
from hexkv.ports import (
    MAX_QUESTION,
    PAGE,
    Hit,
    InvalidRequest,
    Miss,
    Part,
    Reason,
    StoreError,
    StoreUnreachable,
    TimedOut,
    TransferChannel,
)

_LONG = 24
"""Chunks that a channel may lend a few at a time."""


class Reads(ChannelCase):
    """The frames and answers that a peer returns."""

    @promise(
        "channel.1",
        "opens, serves and closes without a trace, and raises StoreError once it is closed",
        level="L0",
        clause="TransferChannel.close",
        why="each engine that ends would leave a thread and a port behind",
    )
    def test_a_channel_comes_and_goes(self, make: Make, near: End) -> None:
        """Closing twice is allowed; afterwards calls to it, and its own calls, raise."""
        before = threading.enumerate()
        channel, asking = make(), make()
        end = End(channel, near.blocks)
        end.serve()
        assert asking.ask(end.peer, b"there?", soon()) == b"?ereht"
        promptly(channel.close, 10)
        channel.close()
        with pytest.raises(StoreUnreachable):
            asking.ask(end.peer, b"there?", soon())
        asking.close()
        sink = BlockSink(near.blocks)
        for call in (
            lambda: asking.read(end.peer, [Part(chunk_key("a"))], sink, soon()),
            lambda: asking.offer(end.peer, [], soon()),
            lambda: asking.ask(end.peer, b"", soon()),
        ):
            with pytest.raises(StoreError):
                call()
        left = [it for it in threading.enumerate() if it not in before]
        assert not still_running(left, 30), "a thread outlives its channel"

    @promise(
        "channel.2",
        "gives each whole frame under its key, in the order of the request",
        level="L1",
        clause="TransferChannel.read",
        why="a prompt would be continued with the KV of another one",
    )
    def test_frames_arrive_under_their_keys(self, near: End, far: End) -> None:
        """Absent keys are misses between the hits; a key may occur twice in a request."""
        sizes = {"a": SIZE, "b": PAGE, "c": 2 * PAGE}
        keys = {name: far.source.put(name, size) for name, size in sizes.items()}
        names = ["c", "absent", "a", "b", "a"]
        outcomes, data = near.read(far.peer, [keys.get(name, chunk_key(name)) for name in names])
        assert outcomes == [Hit(sizes[name]) if name in sizes else Miss() for name in names]
        frames = [frame_of(name, sizes[name]) if name in sizes else None for name in names]
        assert data == frames
        assert near.read(far.peer, []) == ([], [])

    @promise(
        "channel.3",
        "gives any range of a frame, and none that goes beyond its end",
        level="L1",
        clause="TransferChannel.read",
        why="a layer would be another layer's bytes, or another chunk's",
    )
    def test_ranges_are_those_of_the_frame(self, near: End, far: End) -> None:
        """One byte, some in the middle, the last ones, all; and whole frames between them."""
        key, other = far.source.put("a"), far.source.put("b")
        whole = frame_of("a", SIZE)
        spans = [(0, 1), (1, 4097), (SIZE - 1, 1), (0, SIZE), (PAGE, 3 * PAGE)]
        wanted = [Part(key, start, size) for start, size in spans]
        outcomes, data = near.read(far.peer, [*wanted, other])
        assert outcomes == [*(Hit(size) for _, size in spans), Hit(SIZE)]
        assert data == [*(whole[a : a + n] for a, n in spans), frame_of("b", SIZE)]
        beyond = [Part(key, SIZE, 1), Part(key, 0, SIZE + 1), Part(key, 1 << 62, 4096)]
        outcomes, _ = near.read(far.peer, [*beyond, Part(chunk_key("absent"), 0, 1), key])
        assert outcomes == [*[Miss()] * 4, Hit(SIZE)]

    @pytest.mark.thorough
    @promise(
        "channel.4",
        "gives large batches and large frames",
        level="L1",
        clause="TransferChannel.read",
        why="long prompts, and models with large chunks, would never hit",
    )
    def test_any_number_and_any_size(self, open_end: Open) -> None:
        """More keys than a message may have; a frame that no socket's buffer holds."""
        large = (8 << 20) + PAGE
        near, far = open_end(2, large), open_end(1, large)
        far.serve()
        key = far.source.put("large")
        keys = [chunk_key(f"absent{i}") for i in range(9000)]
        outcomes, data = near.read(far.peer, [*keys, key])
        assert outcomes == [*[Miss()] * 9000, Hit(large)]
        assert data[-1] == frame_of("large", large)

    @promise(
        "channel.5",
        "leaves out what the sink has no room for, and gives the rest",
        level="L1",
        clause="LeaseSink.room",
        why="one chunk without memory would cost the whole prompt",
    )
    def test_what_there_is_no_room_for_is_refused(self, near: End, far: End) -> None:
        """The parts after it arrive complete, and nothing outside their buffers is written."""
        keys = [far.source.put(f"c{i}") for i in range(4)]
        sink = BlockSink(near.blocks, refuse={0, 2})
        outcomes = near.channel.read(far.peer, [Part(key) for key in keys], sink, soon())
        refused = Miss(Reason.REFUSED)
        assert list(outcomes) == [refused, Hit(SIZE), refused, Hit(SIZE)]
        assert [sink.data(i) for i in (1, 3)] == [frame_of(f"c{i}", SIZE) for i in (1, 3)]
        fills = [upto for index, upto in sink.fills if index == 1]
        assert fills == sorted(set(fills)), "the reported progress of one part does not grow"
        sink.release()

    @promise(
        "channel.29",
        "keeps leased what a peer is given of a long prompt, though the source lets go of it",
        level="L3",
        clause="PeerSource.lend",
        why="a block that was used again would be read as a layer of the chunk it held before",
    )
    def test_what_is_read_stays_leased(self, open_end: Open) -> None:
        """Reads ranges, which do not name their chunk. A block without a lease is poisoned."""
        near, far = open_end(_LONG), open_end(_LONG)
        far.serve()
        keys = [far.source.put(f"c{i}") for i in range(_LONG)]
        sink = BlockSink(near.blocks, during=far.source.clear)
        outcomes = near.channel.read(
            far.peer, [Part(key, PAGE, PAGE) for key in keys], sink, soon()
        )
        assert outcomes[0] == Hit(PAGE)
        for i, outcome in enumerate(outcomes):
            if isinstance(outcome, Hit):
                assert sink.data(i) == frame_of(f"c{i}", SIZE)[PAGE : 2 * PAGE]
        sink.release()

    @promise(
        "channel.6",
        "answers questions with the answers of the peer's source",
        level="L1",
        clause="TransferChannel.ask",
        why="controllers would act on another node's state",
    )
    def test_questions_are_answered(self, near: End, far: End) -> None:
        """The empty question and the longest one; a longer one is refused before it is sent."""
        for question in (b"", b"who?", bytes(range(256)) * (MAX_QUESTION // 256)):
            assert near.channel.ask(far.peer, question, soon()) == question[::-1]
        before = len(far.source.asked)
        with pytest.raises(InvalidRequest):
            near.channel.ask(far.peer, bytes(MAX_QUESTION + 1), soon())
        assert len(far.source.asked) == before

    @promise(
        "channel.7",
        "takes no frame that names another chunk, however it came to be served",
        level="L2",
        clause="TransferChannel.read",
        why="a block that was used again would be served as the chunk that it held before",
    )
    def test_a_frame_of_another_key_is_no_hit(self, near: End, far: End) -> None:
        """Bytes that are no frame, or not whole pages, are no hit; frames beside them arrive."""
        right = far.source.put("right")
        wrong = [
            far.source.put("mixed up", frame=frame_of("another")),
            far.source.put("none", frame=bytes(SIZE)),
            far.source.put("torn", frame=frame_of("torn", SIZE)[:-1]),
            far.source.put("short", frame=frame_of("short", PAGE)[:100]),
        ]
        for key in wrong:
            outcomes, data = near.read(far.peer, [key, right])
            assert not isinstance(outcomes[0], Hit)
            assert outcomes[1] == Hit(SIZE)
            assert data[1] == frame_of("right", SIZE)
        outcomes, _ = near.read(far.peer, [Part(wrong[0], PAGE, PAGE)])
        assert not isinstance(outcomes[0], Hit)
        far.settle()

    @promise(
        "channel.8",
        "asks that life of a peer that was meant, and no other",
        level="L2",
        clause="Peer.generation",
        why="what a directory knew of a dead node would be believed of the next one",
    )
    def test_another_life_is_not_asked(self, near: End, far: End) -> None:
        """Before and after the right one was asked; generation 0 matches any life."""
        key = far.source.put("a")
        other = far.peer._replace(generation=far.peer.generation + 1)
        anyone = far.peer._replace(generation=0)
        for peer, right in ((other, False), (far.peer, True), (other, False), (anyone, True)):
            (outcome,), _ = near.read(peer, [key])
            assert isinstance(outcome, Hit) == right
        with pytest.raises(StoreUnreachable):
            near.channel.ask(other, b"who?", soon())

    @promise(
        "channel.9",
        "serves many threads at once, each with its own chunks",
        level="L3",
        clause="TransferChannel",
        why="answers of one request would be taken for those of another",
    )
    def test_many_at_once(self, open_end: Open) -> None:
        """Threads that read, one that offers and one that asks; at the end nothing is leased."""
        near, far = open_end(), open_end()
        far.serve()
        keys = [far.source.put(f"c{i}") for i in range(8)]
        mine = [near.source.put(f"mine{i}") for i in range(2)]

        def read(turn: int) -> None:
            for step in range(8):
                i = (turn * 3 + step) % 8
                outcomes, data = near.read(far.peer, [keys[i], chunk_key(f"absent{i}")])
                assert outcomes == [Hit(SIZE), Miss()]
                assert data[0] == frame_of(f"c{i}", SIZE)

        def rest() -> None:
            for step in range(8):
                question = f"{step}".encode()
                assert near.channel.ask(far.peer, question, soon()) == question[::-1]
                near.offer(far.peer, mine)

        works = {f"reader {turn}": partial(read, turn) for turn in range(4)}
        with UnderWay({**works, "rest": rest}, patience=60):
            pass
        near.settle()
        far.settle()
        assert [far.source.frame(key) for key in mine] == [
            frame_of(f"mine{i}", SIZE) for i in range(2)
        ]

    @promise(
        "channel.10",
        "answers at once when the deadline has passed, or no peer is there",
        level="L1",
        clause="TransferChannel.read",
        why="the engine would wait for a peer that it no longer needs",
    )
    def test_nothing_is_waited_for_in_vain(self, near: End, far: End, open_end: Open) -> None:
        """An expired deadline times out; a peer that is gone, or never was, fails."""
        key = far.source.put("a")
        outcomes, _ = near.read(far.peer, [key, key], past())
        assert outcomes == [TimedOut()] * 2
        near.source.put("b")
        assert near.offer(far.peer, [chunk_key("b")], past()) == [TimedOut()]
        gone = open_end()
        gone.serve()
        gone.channel.close()
        for peer in (gone.peer, far.peer._replace(address="nothing/is.there at all")):
            (outcome,), _ = promptly(partial(near.read, peer, [key]), 30)
            assert not isinstance(outcome, Hit | Miss)
        near.settle()

    @promise(
        "channel.11",
        "serves no peer that does not know the secret, and asks no peer that does not",
        level="L5",
        clause="TransferChannel.serve",
        why="a stranger that reaches the port would read all prompts, or plant KV",
    )
    def test_strangers_get_nothing(self, near: End, far: End, stranger: TransferChannel) -> None:
        """Their calls never reach the source; frames that a stranger serves are refused."""
        key = far.source.put("a")
        outside = End(stranger, near.blocks)
        (outcome,), _ = outside.read(far.peer, [key])
        assert not isinstance(outcome, Hit | Miss)
        with pytest.raises(StoreUnreachable):
            stranger.ask(far.peer, b"who?", soon())
        assert far.source.asked == []
        outside.source.put("b")
        outside.serve()
        (outcome,), _ = near.read(outside.peer, [chunk_key("b")])
        assert not isinstance(outcome, Hit | Miss)
        stranger.close()
