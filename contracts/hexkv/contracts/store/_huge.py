"""L1, continued: lengths of more than 32 bits, on a medium that need not be that large."""

from __future__ import annotations

from contextlib import suppress

import pytest

from hexkv.contracts.doubles import ListSink, chunk_key, deadline
from hexkv.contracts.kit.promise import not_offered, promise
from hexkv.contracts.store._base import Huge, Reopen, StoreCase, read, same, write
from hexkv.ports import (
    ChunkStore,
    Hit,
    Item,
    Miss,
    Reason,
    StoreError,
    SupportsClear,
    SupportsRangeRead,
    SupportsScan,
    namespace_of,
)

A, B = chunk_key("a"), chunk_key("b", "other model")
SIZE = (4 << 30) + 17
HALF = 40 << 20
"""More than a third of the bytes that a store has room for."""


class Lengths(StoreCase):
    """Frames whose lengths take more bits than usual, and room that comes back."""

    @pytest.mark.thorough
    @promise(
        "L1.32",
        "has room again after it has overwritten, deleted, cleared or refused a frame",
        clause="ChunkStore.write, ChunkStore.delete",
        why="a tier would be full for ever after it has written its size once",
        hint="take the bytes of the frame that goes from what you count, in each way that it goes",
    )
    def test_room_comes_back(self, store: ChunkStore) -> None:
        frame = memoryview(bytes(HALF))
        for turn in range(4):
            write(store, {B: bytes(frame)})
            if turn:
                with suppress(StoreError):
                    store.write([Item(B, frame)], deadline(-1.0))
        for _ in range(3):
            store.delete([B], deadline())
            write(store, {B: bytes(frame)})
        for _ in range(3):
            if isinstance(store, SupportsClear):
                store.clear_prefix(namespace_of(B), deadline())
                write(store, {B: bytes(frame)})

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
