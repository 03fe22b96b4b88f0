"""Promises about offering: a peer takes a whole frame of that key, or nothing."""

from __future__ import annotations

import pytest

from hexkv.contracts.channel._base import SIZE, ChannelCase, End, Open, soon
from hexkv.contracts.channel.blocks import frame_of
from hexkv.contracts.doubles import chunk_key
from hexkv.contracts.kit.promise import promise
from hexkv.ports import PAGE, Failed, Offer, Stored, StoreFull


class Offers(ChannelCase):
    """The frames that a peer accepts."""

    @promise(
        "channel.12",
        "gives a peer the chunks that it has not got, whole",
        level="L1",
        clause="TransferChannel.offer",
        why="a copy of a chunk would be no copy, or take a block for nothing",
    )
    def test_offered_chunks_are_kept(self, near: End, far: End) -> None:
        """Chunks that the peer has are not sent; the others can be read back."""
        names = ["a", "b", "c"]
        keys = [near.source.put(name) for name in names]
        far.source.put("b")
        assert near.offer(far.peer, keys) == [Stored(SIZE), Stored(0), Stored(SIZE)]
        assert [far.source.frame(key) for key in keys] == [frame_of(name, SIZE) for name in names]
        assert near.offer(far.peer, []) == []
        twice = near.offer(far.peer, [keys[0], keys[2], keys[0]])
        assert twice == [Stored(0)] * 3, "one outcome for each offer"
        near.settle()
        far.settle()

    @promise(
        "channel.13",
        "fails for the chunks that a peer has no room for, and for no other",
        level="L1",
        clause="TransferChannel.offer",
        why="a full peer would stop those who copy, or be written beyond its memory",
    )
    def test_a_full_peer_takes_what_it_can(self, open_end: Open, near: End) -> None:
        """The first chunks arrive; the others fail with StoreFull."""
        full = open_end(2)
        full.serve()
        keys = [near.source.put(f"c{i}") for i in range(5)]
        outcomes = near.offer(full.peer, keys)
        assert outcomes[:2] == [Stored(SIZE)] * 2
        for outcome in outcomes[2:]:
            assert isinstance(outcome, Failed)
            assert isinstance(outcome.error, StoreFull)
        full.settle()
        near.settle()

    @promise(
        "channel.14",
        "plants nothing under another chunk's key",
        level="L2",
        clause="PeerSource.keep",
        why="KV would be stored under a key that it does not belong to",
    )
    def test_a_frame_of_another_key_is_not_kept(self, near: End, far: End) -> None:
        """The channel refuses it, not the peer's source; correct frames beside it are kept."""
        right = near.source.put("right")
        wrong = chunk_key("wrong")
        odd = near.source.put("odd", frame=frame_of("odd", SIZE)[: PAGE + 1])
        lease, odd_lease = near.source.lend([right, odd], "test", soon())
        assert lease is not None
        assert odd_lease is not None
        with lease, odd_lease:
            offers = [Offer(wrong, lease), Offer(right, lease), Offer(odd, odd_lease)]
            outcomes = near.channel.offer(far.peer, offers, soon())
        assert isinstance(outcomes[0], Failed)
        assert outcomes[1] == Stored(SIZE)
        assert isinstance(outcomes[2], Failed)
        assert far.source.frame(wrong) is None
        assert far.source.frame(odd) is None
        far.settle()
        near.settle()

    @pytest.mark.thorough
    @promise(
        "channel.15",
        "gives batches of any size to a peer that takes a few at a time",
        level="L1",
        clause="TransferChannel.offer",
        why="draining a node would stop at the first full batch",
    )
    def test_large_batches_arrive(self, open_end: Open) -> None:
        """More bytes than a connection's buffers hold, and more chunks than leave at once."""
        size, count = 1 << 20, 12
        near, far = open_end(count, size), open_end(count, size)
        far.serve()
        keys = [near.source.put(f"c{i}") for i in range(count)]
        assert near.offer(far.peer, keys) == [Stored(size)] * count
        for i, key in enumerate(keys):
            assert far.source.frame(key) == frame_of(f"c{i}", size)
