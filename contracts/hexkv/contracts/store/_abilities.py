"""Promises about optional abilities: quarantine, and reading a range."""

from __future__ import annotations

import pytest

from hexkv.contracts.doubles import ListSink, chunk_key, deadline
from hexkv.contracts.kit.cases import case, each
from hexkv.contracts.kit.promise import not_offered, promise
from hexkv.contracts.store._base import (
    Aside,
    RawAccess,
    StoreCase,
    content,
    read,
    same,
    write,
)
from hexkv.ports import (
    ChunkStore,
    Hit,
    SupportsClear,
    SupportsQuarantine,
    SupportsRangeRead,
    SupportsScan,
)

A, B, C, D = (chunk_key(name) for name in "abcd")

ASIDE = 150
"""More chunks than a person would inspect."""

LARGE = (4 << 20) + 5000
RANGES = [
    *[(0, 1), (0, 9000), (1, 4096), (4096, 4096), (8999, 1), (17, 0)],
    *[(1 << 16, 4096), ((1 << 16) - 1, 2), (70_001, 100_000), (LARGE - 1, 1)],
    *[(1 << 20, 1 << 16), ((3 << 20) + 4097, 8191), (4 << 20, 5000), (1 << 12, 2 << 20)],
]
"""Starts and lengths of ranges: on both sides of 2**16 and 2**20."""


class Quarantine(StoreCase):
    """``SupportsQuarantine``."""

    @pytest.fixture
    def warden(self, store: ChunkStore) -> SupportsQuarantine:
        """The store, seen as one that can set chunks aside."""
        if not isinstance(store, SupportsQuarantine):
            not_offered("SupportsQuarantine")
        return store

    @promise(
        "quarantine.1",
        "makes a quarantined chunk unreadable, and no other",
        clause="SupportsQuarantine.quarantine",
        why="each request would read the damaged chunk again, and fail again",
    )
    def test_a_quarantined_chunk_is_unreadable(
        self, store: ChunkStore, warden: SupportsQuarantine, raw: RawAccess
    ) -> None:
        write(store, {A: content(5000), B: b"b", C: b"c"})
        raw.put(A, b"damaged")
        warden.quarantine([A, D, C], deadline())
        same(read(store, A, B, C), [None, b"b", None])
        assert list(store.contains([A, B, C], deadline())) == [False, True, False]
        if isinstance(store, SupportsScan):
            assert [entry.key for entry in store.scan()] == [B]

    @promise(
        "quarantine.2",
        "takes a new frame under a quarantined key",
        clause="SupportsQuarantine.quarantine",
        why="a prompt whose chunk was damaged once could never be cached again",
    )
    def test_a_quarantined_key_can_be_written_again(
        self, store: ChunkStore, warden: SupportsQuarantine
    ) -> None:
        for turn in range(3):
            write(store, {A: content(100, seed=turn)})
            same(read(store, A), [content(100, seed=turn)])
            warden.quarantine([A], deadline())
            same(read(store, A), [None])

    @promise(
        "quarantine.3",
        "takes it lightly when there is nothing to set aside",
        clause="SupportsQuarantine.quarantine",
        why="two readers that find the same damage at once are the rule",
    )
    def test_quarantine_of_the_absent_is_no_error(
        self, store: ChunkStore, warden: SupportsQuarantine
    ) -> None:
        write(store, {B: b"b"})
        warden.quarantine([A, A, C], deadline())
        warden.quarantine([], deadline())
        same(read(store, A, B), [None, b"b"])
        write(store, {A: b"a"})
        warden.quarantine([A, C, A], deadline())
        same(read(store, A, B), [None, b"b"])

    @promise(
        "quarantine.4",
        "keeps a bounded number of chunks aside",
        clause="SupportsQuarantine.quarantine",
        why="a medium that goes bad would fill with unreadable frames",
        hint="let the oldest go when another comes",
    )
    def test_a_quarantine_is_bounded(
        self, store: ChunkStore, warden: SupportsQuarantine, aside: Aside | None
    ) -> None:
        if aside is None:
            not_offered("aside")
        for i in range(ASIDE):
            key = chunk_key(f"damaged {i}")
            write(store, {key: b"damaged"})
            warden.quarantine([key], deadline())
        assert aside() < ASIDE, f"all {ASIDE} chunks that were set aside are kept"


class RangeRead(StoreCase):
    """``SupportsRangeRead``."""

    @pytest.fixture
    def ranged(self, store: ChunkStore) -> SupportsRangeRead:
        """The store, seen as one that can read a part of a frame."""
        if not isinstance(store, SupportsRangeRead):
            not_offered("SupportsRangeRead")
        return store

    @promise(
        "range.1",
        "reads a range as the same slice of the frame",
        clause="SupportsRangeRead.read_range",
        why="one layer would be loaded with the bytes of another",
    )
    def test_a_range_is_a_slice(self, store: ChunkStore, ranged: SupportsRangeRead) -> None:
        for turn, frame in enumerate([content(LARGE), content(LARGE, seed=1)]):
            write(store, {A: frame})
            for start, size in RANGES:
                with case((turn, start, size)):
                    into = _room(size)
                    assert ranged.read_range(A, start, into, deadline()) == Hit(size)
                    same([bytes(into)], [frame[start : start + size]])

    @promise(
        "range.2",
        "gives no hit for a range that the frame does not have",
        clause="SupportsRangeRead.read_range",
        why="the former content of the memory would be taken for a layer",
    )
    @each(
        ("start", "size"),
        [(0, 101), (100, 1), (50, 51), (10_000, 1), (1 << 16, 1), (1 << 32, 1), (1 << 32 | 50, 10)],
    )
    def test_a_range_beyond_the_end_is_no_hit(
        self, store: ChunkStore, ranged: SupportsRangeRead, start: int, size: int
    ) -> None:
        write(store, {A: content(100)})
        write(store, {B: content(300, seed=1)})  # right behind it, where frames are in one file
        outcome = ranged.read_range(A, start, _room(size), deadline())
        assert not isinstance(outcome, Hit)

    @promise(
        "range.3",
        "gives no hit for a range of what it does not have",
        clause="SupportsRangeRead.read_range",
        why="a chunk that was evicted since the lookup would be a hit",
    )
    def test_a_range_of_the_absent_is_no_hit(
        self, store: ChunkStore, ranged: SupportsRangeRead
    ) -> None:
        write(store, {key: content(100) for key in (B, C, D)})
        store.delete([B], deadline())
        if isinstance(store, SupportsQuarantine):
            store.quarantine([C], deadline())
        else:
            store.delete([C], deadline())
        if isinstance(store, SupportsClear):
            store.clear_prefix(D, deadline())
        else:
            write(store, {D: b""})
        for key, size in ((A, 10), (B, 10), (C, 10), (D, 10), (A, 0), (B, 0), (C, 0)):
            outcome = ranged.read_range(key, 0, _room(size), deadline())
            assert not isinstance(outcome, Hit), f"{size} bytes of nothing are {outcome}"


def _room(size: int) -> memoryview:
    room = ListSink(offset=1).room(0, size)
    assert room is not None
    return room
