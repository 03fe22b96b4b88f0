"""Promises about single calls: refusals, reports, and predictions."""

from __future__ import annotations

from typing import Any

import pytest

from hexkv.contracts.doubles.heap_kv import HeapKV
from hexkv.contracts.kit.promise import promise
from hexkv.contracts.prefix_cache._base import (
    CHUNKS,
    PrefixCacheCase,
    computed,
    hit,
    holds,
    put,
    until,
)
from hexkv.ports import DType, InvalidRequest, InvalidTokens, KVLayout, LayoutMismatch, PrefixCache


class _ReadOnce:
    """A window that lacks a method."""

    def __init__(self, layout: KVLayout, tokens: int) -> None:
        self.layout, self.tokens = layout, tokens

    gather = HeapKV.gather


class Requests(PrefixCacheCase):
    """Requests are checked before anything moves, and reported correctly."""

    @promise(
        "prefix.7",
        "has every method of the port",
        level="L0",
        clause="PrefixCache",
        why="a host would fail at the first request that needs the method",
    )
    def test_is_a_cache(self, cache: PrefixCache) -> None:
        """It has every method and property of the port."""
        assert isinstance(cache, PrefixCache)

    @promise(
        "prefix.8",
        "refuses what means nothing, before anything moves",
        level="L1",
        clause="InvalidRequest",
        why="a mistake of the host would be stored, and served to others",
    )
    def test_nonsense_is_refused(self, cache: PrefixCache) -> None:
        """Each with its error class; nothing is stored or loaded."""
        tokens = self.prompt()
        put(cache, tokens)
        kv, size = computed(cache, tokens), len(tokens)
        other = KVLayout.attention(DType.UINT8, layers=1, heads=1, key_width=3)
        wrong: list[tuple[type[Exception], Any, Any, dict[str, Any]]] = [
            (InvalidTokens, [-1, *tokens[1:]], kv, {}),
            (InvalidTokens, [1 << 32, *tokens[1:]], kv, {}),
            (InvalidTokens, ["token"] * size, kv, {}),
            (LayoutMismatch, tokens, HeapKV(other, size), {}),
            (InvalidRequest, tokens, HeapKV(kv.layout, size - 1), {}),
            (InvalidRequest, tokens, object(), {}),
            (InvalidRequest, tokens, _ReadOnce(kv.layout, size), {}),
            (InvalidRequest, tokens, kv, {"timeout": -1.0}),
            (InvalidRequest, tokens, kv, {"skip": size + 1}),
            (InvalidRequest, tokens, kv, {"skip": -1}),
        ]
        for error, given, window, options in wrong:
            for call in (cache.store, cache.retrieve):
                with pytest.raises(error):
                    call(given, window, **options)
            for context in (cache.store_layers, cache.retrieve_layers):
                with pytest.raises(error), context(given, window, **options):
                    pass
        assert kv.agrees(computed(cache, tokens), size), "a refused call wrote to the window"
        with pytest.raises(InvalidRequest):
            cache.clear(tiers=["no such tier"])
        assert hit(cache, tokens) == CHUNKS * self.chunk

    @promise(
        "prefix.9",
        "foretells by a lookup what a retrieve then brings, and loads nothing for it",
        level="L1",
        clause="PrefixCache.lookup",
        why="the scheduler would plan with a hit that never comes",
        hint="while no other caller uses the cache a hint is exact",
    )
    def test_a_lookup_foretells_a_retrieve(self, cache: PrefixCache) -> None:
        """For a prompt, its beginning, a longer one, an unknown one; and for all at once."""
        tokens = self.prompt()
        put(cache, tokens)
        prompts = (tokens, tokens[: self.chunk], tokens[:-1] + self.prompt(1), self.prompt(2))
        for asked, found in zip(prompts, cache.lookup_many(prompts, timeout=60), strict=True):
            assert found == cache.lookup(asked)
            assert found.tokens == len(asked)
            assert sum(found.tiers.values()) == found.hit_tokens
            assert set(found.tiers) <= {tier.name for tier in cache.health().tiers}
            assert hit(cache, asked) == found.hit_tokens

    @promise(
        "prefix.10",
        "reports numbers that add up",
        level="L1",
        clause="Retrieved, StoreReport",
        why="how much the cache saves, or why it misses, could not be known",
    )
    def test_numbers_add_up(self, cache: PrefixCache) -> None:
        """Each requested chunk is loaded or a miss; each offered one is present or dropped."""
        tokens, longer = self.prompt(), self.prompt(0, 1) + self.prompt(3, 5)
        chunks = len(longer) // self.chunk
        shared = self.chunk
        put(cache, tokens)
        report = cache.store(longer, computed(cache, longer))
        new = report.stored_tokens + report.queued_tokens
        assert report.tokens == len(longer)
        assert new + report.present_tokens + report.dropped_tokens == chunks * self.chunk
        assert sum(report.drops.values()) == report.dropped_tokens
        assert report.present_tokens == shared
        assert report.stored_bytes == new * cache.namespace.layout.token_bytes
        assert not report.frozen
        window = HeapKV(cache.namespace.layout, len(longer) + 3 * self.chunk)
        asked = [*longer, *self.prompt(4, 3)[: 3 * self.chunk]]
        got = cache.retrieve(asked, window)
        assert got.tokens == len(asked)
        assert sum(got.tiers.values()) == got.loaded_tokens
        assert got.loaded_bytes == got.loaded_tokens * cache.namespace.layout.token_bytes
        loaded = got.loaded_tokens // self.chunk
        assert loaded + sum(got.misses.values()) == len(asked) // self.chunk
        assert all(count > 0 for count in got.misses.values())

    @promise(
        "prefix.11",
        "loads prefetched chunks for a retrieve, and frees those of a cancelled prefetch",
        level="L1",
        clause="PrefixCache.prefetch",
        why="memory would be held for requests that are long gone",
    )
    def test_a_prefetch_is_for_one_retrieve(self, cache: PrefixCache) -> None:
        """A retrieve with an unknown id works as usual; a repeated prefetch starts nothing new."""
        tokens = self.prompt()
        put(cache, tokens)
        # A store that must be queried may answer later.
        assert until(lambda: cache.prefetch("first", tokens) is not None)
        assert cache.prefetch("first", tokens) == CHUNKS * self.chunk
        for name in ("first", "first", "unknown"):
            window = HeapKV(cache.namespace.layout, len(tokens))
            got = cache.retrieve(tokens, window, lookup_id=name)
            assert got.hit_tokens == CHUNKS * self.chunk
            holds(cache, tokens, window, got)
        assert not cache.cancel("first"), "a retrieve took it"
        cache.prefetch("second", tokens)
        assert cache.cancel("second")
        assert not cache.cancel("second")
        assert not cache.cancel("unknown")
        assert cache.health().prefetches == 0
