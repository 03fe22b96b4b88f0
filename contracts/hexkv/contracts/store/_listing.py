"""``SupportsScan``: the chunks of a store, listed page by page while it changes."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Event
from time import time

import pytest

from hexkv.contracts.doubles import chunk_key, deadline
from hexkv.contracts.kit.limits import step
from hexkv.contracts.kit.promise import not_offered, promise
from hexkv.contracts.store._base import StoreCase, content, write
from hexkv.plugins.clock import SystemClock
from hexkv.ports import ChunkKey, ChunkStore, Deadline, Entry, SupportsScan

A, B, C = (chunk_key(name) for name in "abc")

PAGE = 1000
"""Chunks that services list at a time."""

MANY = PAGE + 200

DAY = 86_400.0
"""Seconds by which the clocks of two machines may differ."""

TICK = 3.0
"""Seconds in which a store's clock advances, if it does: some count seconds, some stand still."""


class Listing(StoreCase):
    """``SupportsScan``."""

    @pytest.fixture
    def listing(self, store: ChunkStore) -> SupportsScan:
        """The store, seen as one that can list its chunks."""
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
        why="the budget would count chunks that were replaced or are gone",
    )
    def test_scan_follows_overwriting_and_deleting(
        self, store: ChunkStore, listing: SupportsScan
    ) -> None:
        write(store, {A: content(100), B: content(200), C: content(300)})
        assert sorted(entry.size for entry in listing.scan()) == [100, 200, 300]
        write(store, {A: content(7000)})
        store.delete([B], deadline())
        assert {entry.key: entry.size for entry in listing.scan()} == {A: 7000, C: 300}

    @promise(
        "scan.3",
        "lists each chunk's time of storing, in wall-clock seconds",
        clause="Entry.stored",
        why="the rebuilt index would evict the newest chunks first",
    )
    def test_scan_tells_when_a_chunk_was_stored(
        self, store: ChunkStore, listing: SupportsScan
    ) -> None:
        write(store, {A: b"a"})
        (entry,) = listing.scan()
        assert entry.stored > 1_000_000_000, "that was before 2001: not wall-clock seconds"
        assert entry.stored < time() + DAY, "that is to come: not wall-clock seconds"

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

    @pytest.mark.thorough
    @promise(
        "scan.5",
        "lists more chunks than fit a page, none twice, and none that stays is left out",
        clause="SupportsScan.scan",
        why="an index without some of the chunks lets the tier grow beyond its budget",
        hint="go on after the last key of a page: a number of chunks means others once some went",
    )
    def test_scan_goes_on_after_a_page(self, store: ChunkStore, listing: SupportsScan) -> None:
        keys = {chunk_key(f"chunk {i}") for i in range(MANY)}
        write(store, dict.fromkeys(keys, b"frame"))
        step()
        _listed(list(listing.scan()), keys)
        step()
        entries = listing.scan()
        first = [next(entries) for _ in range(MANY - PAGE // 2)]
        store.delete([entry.key for entry in first], deadline())
        _listed([*first, *entries], keys)

    @pytest.mark.thorough
    @promise(
        "scan.6",
        "lists a chunk that was overwritten as new, and none as newer than it is",
        clause="Entry.stored",
        why="the rebuilt index would evict the newest chunks, or keep unused ones",
    )
    def test_scan_follows_the_time_of_overwriting(
        self, store: ChunkStore, listing: SupportsScan
    ) -> None:
        def times() -> dict[ChunkKey, float]:
            return {entry.key: entry.stored for entry in listing.scan()}

        write(store, {A: content(100), B: content(100)})
        old, limit, pause = times(), Deadline.after(SystemClock(), TICK), Event()
        while True:  # until the store's clock has advanced, if it does
            write(store, {C: content(100)})
            now = times()
            if now[C] > max(old.values()) or limit.expired:
                break
            pause.wait(0.01)
        assert now[B] <= now[C], "an earlier chunk is listed as stored later"
        write(store, {A: content(100, seed=1)})
        after = times()
        assert after[C] <= after[A], "an overwritten chunk is listed as old"
        assert after[B] <= after[C], "an earlier chunk is listed as stored later"


def _listed(entries: Sequence[Entry], keys: set[ChunkKey]) -> None:
    """Compare listed entries with *keys*: pytest takes long to show how large sets differ."""
    __tracebackhide__ = True
    found = {entry.key for entry in entries}
    assert len(found) == len(entries), f"{len(entries) - len(found)} chunks are listed twice"
    assert not (keys - found), f"{len(keys - found)} of {len(keys)} chunks are left out"
    assert not (found - keys), f"{len(found - keys)} chunks are listed that were never stored"
