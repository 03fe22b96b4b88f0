"""Promises about loading into a device and saving out of it."""

from __future__ import annotations

import pytest

from hexkv.contracts.chunk_cache._base import (
    LAYOUT,
    TOKENS,
    ChunkCacheCase,
    Ledger,
    content,
    put,
    soon,
    specs,
)
from hexkv.contracts.doubles.heap_kv import HeapKV
from hexkv.contracts.kit.promise import promise
from hexkv.ports import ChunkCache, ChunkSpec, InvalidRequest, Span


def filled(chunks: list[ChunkSpec]) -> HeapKV:
    """A window that holds the chunks' contents one after the other."""
    window = HeapKV(LAYOUT, len(chunks) * TOKENS)
    spans = [
        Span(i * TOKENS, (i + 1) * TOKENS, memoryview(bytearray(content(chunk))))
        for i, chunk in enumerate(chunks)
    ]
    window.scatter(spans)
    return window


def read(window: HeapKV, count: int) -> list[bytes]:
    """The first chunks of a window."""
    spans = [
        Span(i * TOKENS, (i + 1) * TOKENS, memoryview(bytearray(LAYOUT.chunk_bytes(TOKENS))))
        for i in range(count)
    ]
    window.gather(spans)
    return [bytes(span.data) for span in spans]


class Windows(ChunkCacheCase):
    """Copies are of the requested chunks, to their positions."""

    @promise(
        "windows.1",
        "loads the saved KV, chunk by chunk in the window's order",
        level="L1",
        clause="ChunkCache.load",
        why="the model would attend to KV of other positions",
    )
    def test_what_was_saved_is_loaded(self, cache: ChunkCache, ledger: Ledger) -> None:
        """A chunk saved twice is stored once; a load in another order gives that order."""
        some = specs(5)
        report = cache.save(some, filled(some), soon())
        assert (report.stored_tokens, report.dropped_tokens) == (5 * TOKENS, 0)
        again = cache.save(some, filled(some), soon())
        assert (again.stored_tokens, again.present_tokens) == (0, 5 * TOKENS)
        wanted = [some[3], some[1], some[4]]
        window = HeapKV(LAYOUT, 3 * TOKENS)
        got = cache.load(wanted, window, soon())
        assert (got.hit_tokens, got.loaded_tokens) == (3 * TOKENS, 3 * TOKENS)
        assert read(window, 3) == [content(chunk) for chunk in wanted]
        assert dict(ledger()) == {}

    @promise(
        "windows.2",
        "stops at the first chunk that is missing, and touches nothing behind it",
        level="L1",
        clause="ChunkCache.load",
        why="a host would take KV behind a gap for computed",
    )
    def test_a_gap_ends_a_load(self, cache: ChunkCache) -> None:
        """Positions behind the gap keep the host's bytes."""
        some = specs(4)
        put(cache, [some[0], some[1], some[3]])
        before = specs(4, "before")
        window = filled(before)
        got = cache.load(some, window, soon())
        assert got.hit_tokens == 2 * TOKENS
        assert sum(got.misses.values()) == 2
        expected = [content(chunk) for chunk in (*some[:2], *before[2:])]
        assert read(window, 4) == expected

    @promise(
        "windows.3",
        "refuses a window that does not fit the chunks, before anything moves",
        level="L1",
        clause="ChunkCache.save",
        why="KV of one position would be stored as that of another",
    )
    def test_a_window_of_another_length_is_refused(self, cache: ChunkCache) -> None:
        """By load and by save; nothing is stored."""
        some = specs(3)
        with pytest.raises(InvalidRequest):
            cache.save(some, HeapKV(LAYOUT, 2 * TOKENS), soon())
        with pytest.raises(InvalidRequest):
            cache.load(some, HeapKV(LAYOUT, 4 * TOKENS), soon())
        assert list(cache.match([chunk.key for chunk in some], soon())) == [None] * 3
