"""The optional abilities: listing, quarantine and reading a range."""

from __future__ import annotations

import pytest

from hexkv.contracts.cases import each
from hexkv.contracts.doubles import ListSink, chunk_key, deadline
from hexkv.contracts.promise import not_offered, promise
from hexkv.contracts.store._base import RawAccess, StoreCase, content, read, same, write
from hexkv.ports import (
    ChunkStore,
    Hit,
    SupportsQuarantine,
    SupportsRangeRead,
    SupportsScan,
)

A, B, C = (chunk_key(name) for name in "abc")


class Listing(StoreCase):
    """``SupportsScan``."""

    @pytest.fixture
    def listing(self, store: ChunkStore) -> SupportsScan:
        """The store, seen as one that can list what it holds."""
        if not isinstance(store, SupportsScan):
            not_offered("SupportsScan")
        return store

    @promise(
        "scan.1",
        "lists every chunk it holds once, with its size, and nothing else",
        clause="SupportsScan.scan",
        why="the index that is rebuilt from it would exceed the budget, or miss chunks",
    )
    def test_scan_lists_exactly_what_is_stored(
        self, store: ChunkStore, listing: SupportsScan
    ) -> None:
        assert list(listing.scan()) == []
        frames = {chunk_key(f"chunk {i}"): content(i * 1000) for i in range(20)}
        write(store, frames)
        assert sorted((entry.key, entry.size) for entry in listing.scan()) == sorted(
            (key, len(frame)) for key, frame in frames.items()
        )

    @promise(
        "scan.2",
        "lists a chunk by its last write, and no deleted one",
        clause="SupportsScan.scan",
        why="the budget would count what was replaced or is gone",
    )
    def test_scan_follows_overwriting_and_deleting(
        self, store: ChunkStore, listing: SupportsScan
    ) -> None:
        write(store, {A: content(100), B: content(200), C: content(300)})
        write(store, {A: content(7000)})
        store.delete([B], deadline())
        assert {entry.key: entry.size for entry in listing.scan()} == {A: 7000, C: 300}

    @promise(
        "scan.3",
        "says of each chunk when it was stored, in wall-clock seconds",
        clause="Entry.stored",
        why="the rebuilt index would evict the newest chunks first",
    )
    def test_scan_tells_when_a_chunk_was_stored(
        self, store: ChunkStore, listing: SupportsScan
    ) -> None:
        write(store, {A: b"a"})
        (entry,) = listing.scan()
        assert entry.stored > 1_000_000_000, "that was before 2001: not wall-clock seconds"

    @promise(
        "scan.4",
        "goes on with a scan while chunks come and go",
        clause="SupportsScan.scan",
        why="an engine that starts beside busy ones could never rebuild its index",
    )
    def test_scan_bears_changes_meanwhile(self, store: ChunkStore, listing: SupportsScan) -> None:
        old = {chunk_key(f"old {i}"): b"old" for i in range(8)}
        new = {chunk_key(f"new {i}"): b"new" for i in range(8)}
        write(store, old)
        entries = listing.scan()
        first = next(entries)
        store.delete([key for key in old if key != first.key], deadline())
        write(store, new)
        rest = [entry.key for entry in entries]
        assert first.key not in rest
        assert len(set(rest)) == len(rest)
        assert set(rest) <= {*old, *new}


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
        write(store, {A: content(5000), B: b"b"})
        raw.put(A, b"damaged")
        warden.quarantine([A], deadline())
        same(read(store, A, B), [None, b"b"])
        assert list(store.contains([A, B], deadline())) == [False, True]
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
    @each(("start", "size"), [(0, 1), (0, 9000), (1, 4096), (4096, 4096), (8999, 1), (17, 0)])
    def test_a_range_is_a_slice(
        self, store: ChunkStore, ranged: SupportsRangeRead, start: int, size: int
    ) -> None:
        frame = content(9000)
        write(store, {A: frame})
        into = _room(size)
        assert ranged.read_range(A, start, into, deadline()) == Hit(size)
        same([bytes(into)], [frame[start : start + size]])

    @promise(
        "range.2",
        "gives no hit for a range that the frame does not have",
        clause="SupportsRangeRead.read_range",
        why="what was in the memory before would be taken for a layer",
    )
    @each(("start", "size"), [(0, 101), (100, 1), (50, 51), (10_000, 1)])
    def test_a_range_beyond_the_end_is_no_hit(
        self, store: ChunkStore, ranged: SupportsRangeRead, start: int, size: int
    ) -> None:
        write(store, {A: content(100)})
        outcome = ranged.read_range(A, start, _room(size), deadline())
        assert not isinstance(outcome, Hit)

    @promise(
        "range.3",
        "gives no hit for a range of what it does not have",
        clause="SupportsRangeRead.read_range",
        why="a chunk that was evicted meanwhile would be a hit",
    )
    def test_a_range_of_the_absent_is_no_hit(
        self, store: ChunkStore, ranged: SupportsRangeRead
    ) -> None:
        write(store, {B: content(100)})
        assert not isinstance(ranged.read_range(A, 0, _room(10), deadline()), Hit)


def _room(size: int) -> memoryview:
    room = ListSink(offset=1).room(0, size)
    assert room is not None
    return room
