"""L1, continued: lengths of more than 32 bits, on a medium that need not be that large."""

from __future__ import annotations

from hexkv.contracts.doubles import ListSink, chunk_key, deadline
from hexkv.contracts.kit.promise import not_offered, promise
from hexkv.contracts.store._base import Huge, Reopen, StoreCase, read, same, write
from hexkv.ports import ChunkStore, Hit, Miss, Reason, SupportsRangeRead, SupportsScan

A = chunk_key("a")
SIZE = (4 << 30) + 17


class Lengths(StoreCase):
    """A frame of 4 GiB and some bytes, none of which is written or read whole."""

    @promise(
        "L1.29",
        "takes lengths and places beyond 4 GiB for what they are",
        clause="Sink.room, Entry.size, SupportsRangeRead.read_range",
        why="of a frame of 4 GiB and some bytes these few would be read, and counted as all of it",
        hint="64 bits for lengths, in what you write, in what you ask and in what you hand to C",
    )
    def test_lengths_beyond_32_bits_are_right(
        self, store: ChunkStore, reopen: Reopen, huge: Huge | None
    ) -> None:
        if huge is None:
            not_offered("huge")
        huge(A, SIZE)
        if reopen is not None and list(store.contains([A], deadline())) == [False]:
            store = reopen()
        sink = ListSink(refuse={0})
        assert list(store.read([A], sink, deadline())) == [Miss(Reason.REFUSED)]
        assert set(sink.calls) == {(0, SIZE)}
        if isinstance(store, SupportsScan):
            assert [(entry.key, entry.size) for entry in store.scan()] == [(A, SIZE)]
        if isinstance(store, SupportsRangeRead):
            for start in (SIZE - 10, 4 << 30):
                into = bytearray(b"\xff" * 10)
                assert store.read_range(A, start, memoryview(into), deadline()) == Hit(10)
                assert into == bytes(10)
            into = bytearray(10)
            outcome = store.read_range(A, SIZE - 9, memoryview(into), deadline())
            assert not isinstance(outcome, Hit)
        assert list(store.delete([A], deadline())) == [True]
        write(store, {A: b"small"})
        same(read(store, A), [b"small"])
