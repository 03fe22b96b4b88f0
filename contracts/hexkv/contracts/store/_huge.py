"""L1, continued: lengths of more than 32 bits, on a medium that need not be that large."""

from __future__ import annotations

from contextlib import suppress

import pytest

from hexkv.contracts.doubles import ListSink, chunk_key, deadline
from hexkv.contracts.kit.limits import step
from hexkv.contracts.kit.promise import not_offered, promise
from hexkv.contracts.kit.sparse import folded, sparse
from hexkv.contracts.store._base import Huge, Reopen, StoreCase, content, read, same, write
from hexkv.ports import (
    ChunkStore,
    Hit,
    Item,
    Miss,
    Reason,
    Stored,
    StoreError,
    SupportsClear,
    SupportsLimit,
    SupportsRangeRead,
    SupportsScan,
    namespace_of,
)

A, B = chunk_key("a"), chunk_key("b", "other model")
SIZE = (4 << 30) + 17
VAST = (2 << 30) + 17
"""Bytes of a frame that no system call moves at a time."""

SHARED = (2 << 30) - (32 << 20)
"""Bytes at its beginning that are read into memory which other places share."""

MARKS = (0, SHARED, 0x7FFF_F000 - 4, (2 << 30) - 4, VAST - 8)
"""Places that are compared: around the limits of one system call, and of 31 bits."""

HALF = 40 << 20
"""More than a third of the bytes that a store has room for."""


class _Folded:
    """A sink for one vast frame."""

    buffer: memoryview

    def room(self, index: int, size: int) -> memoryview:
        """A buffer of *size* bytes, most of which share memory."""
        assert (index, size) == (0, VAST)
        self.buffer = folded(size, SHARED)
        return self.buffer

    def filled(self, index: int, upto: int) -> None:
        """Nothing."""


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
            step()
            write(store, {B: bytes(frame)})
            if turn:
                with suppress(StoreError):
                    store.write([Item(B, frame)], deadline(-1.0))
        for _ in range(3):
            step()
            store.delete([B], deadline())
            write(store, {B: bytes(frame)})
        for _ in range(3):
            step()
            if isinstance(store, SupportsClear):
                store.clear_prefix(namespace_of(B), deadline())
                write(store, {B: bytes(frame)})

    @pytest.mark.thorough
    @promise(
        "L1.33",
        "gives back a frame of more than 2 GiB whole",
        clause="ChunkStore.write, ChunkStore.read",
        why="a system call moves 2 GiB less a page at most: the end of a long prompt would be lost",
        hint="loop over short writes and short reads",
    )
    def test_frames_beyond_2_gib_are_whole(self, store: ChunkStore) -> None:
        """Zeros, with marks around each limit of 31 bits. The test itself takes 64 MiB."""
        if self.largest < VAST:
            not_offered("largest")
        if isinstance(store, SupportsLimit):
            store.limit(self.largest)
        frame = sparse(VAST)
        marks = {place: content(8, seed=place) for place in MARKS}
        for place, mark in marks.items():
            frame[place : place + 8] = mark
        (stored,) = store.write([Item(A, frame)], deadline())
        assert stored == Stored(VAST)
        step()
        sink = _Folded()
        assert list(store.read([A], sink, deadline())) == [Hit(VAST)]
        step()
        for place, mark in marks.items():
            if place >= SHARED:
                found = bytes(sink.buffer[place : place + 8])
                assert found == mark, f"the bytes at {place} are not those put"
            if isinstance(store, SupportsRangeRead):
                into = bytearray(8)
                assert store.read_range(A, place, memoryview(into), deadline()) == Hit(8)
                assert into == mark, f"the range at {place} is not that of the frame"
        assert list(store.delete([A], deadline())) == [True]

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
