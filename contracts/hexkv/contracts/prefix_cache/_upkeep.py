"""Promises about pinning, eviction, clearing and closing."""

from __future__ import annotations

import pytest

from hexkv.contracts.doubles.heap_kv import HeapKV
from hexkv.contracts.kit.promise import not_offered, promise
from hexkv.contracts.prefix_cache._base import (
    CHUNKS,
    PrefixCacheCase,
    computed,
    hit,
    promptly,
    put,
)
from hexkv.ports import EngineClosed, PrefixCache


class Upkeep(PrefixCacheCase):
    """Pins, clearing, freezing and closing."""

    @promise(
        "prefix.15",
        "keeps pinned chunks until their owner unpins them",
        level="L1",
        clause="PrefixCache.pin",
        why="a prompt that the scheduler counts on would be evicted before it is loaded",
    )
    def test_what_is_pinned_stays(self, cache: PrefixCache) -> None:
        """While other chunks come and go; unpinned, it is evicted as well."""
        if self.most is None:
            not_offered("most")
        tokens, plain = self.prompt(1), self.prompt(2)
        put(cache, tokens)
        put(cache, plain)
        assert cache.pin(tokens, "owner") == CHUNKS * self.chunk
        assert cache.pin(self.prompt(3), "nobody") == 0
        assert cache.lookup(tokens, pin="another").hit_tokens == CHUNKS * self.chunk
        assert set(cache.health().pins) == {"owner", "another"}
        assert cache.unpin("another") >= CHUNKS
        self._crowd(cache, 10)
        assert hit(cache, plain) < CHUNKS * self.chunk, "`most` is more than the cache holds"
        assert hit(cache, tokens) == CHUNKS * self.chunk
        assert cache.unpin("owner") >= CHUNKS
        assert cache.unpin("owner") == 0
        assert not cache.health().pins
        self._crowd(cache, 1_000)
        assert cache.lookup(tokens).hit_tokens < CHUNKS * self.chunk

    @promise(
        "prefix.16",
        "clears a prompt and nothing beside it, or everything, pinned or not",
        level="L1",
        clause="PrefixCache.clear",
        why="KV of weights that were replaced would still be served",
    )
    def test_what_is_cleared_is_gone(self, cache: PrefixCache) -> None:
        """One of two prompts, then all."""
        one, other = self.prompt(1), self.prompt(2)
        put(cache, one)
        put(cache, other)
        cache.pin(one, "owner")
        cache.clear(one)
        assert hit(cache, one) == 0
        assert hit(cache, other) == CHUNKS * self.chunk
        assert put(cache, one) == CHUNKS * self.chunk, "cleared chunks cannot be stored again"
        cache.clear()
        assert hit(cache, one) == hit(cache, other) == 0

    @promise(
        "prefix.17",
        "stores nothing while it is frozen, and reports that",
        level="L1",
        clause="CacheLifecycle.freeze",
        why="an operator would lose cached chunks that are worth keeping",
    )
    def test_a_frozen_cache_stores_nothing(self, cache: PrefixCache) -> None:
        """In bulk and layer by layer; stored chunks are still loaded."""
        kept, new = self.prompt(1), self.prompt(2)
        put(cache, kept)
        cache.freeze()
        assert cache.health().frozen
        assert cache.store(new, computed(cache, new)).frozen
        with cache.store_layers(new, computed(cache, new)) as storing:
            for layer in range(cache.namespace.layout.layers):
                storing.layer_done(layer)
            assert storing.result().frozen
        assert hit(cache, new) == 0
        assert hit(cache, kept) == CHUNKS * self.chunk
        cache.freeze(False)
        assert put(cache, new) == CHUNKS * self.chunk

    @promise(
        "prefix.18",
        "writes queued chunks after the call, and knows when that is done",
        level="L1",
        clause="CacheLifecycle.flush",
        why="a server that ends would lose chunks that were just reported as queued",
    )
    def test_a_flush_writes_what_is_queued(self, cache: PrefixCache) -> None:
        """Afterwards every accepted chunk is a hit, and nothing is queued."""
        tokens = self.prompt()
        report = cache.store(tokens, computed(cache, tokens), wait=False)
        assert report.stored_tokens + report.queued_tokens == CHUNKS * self.chunk
        assert cache.flush()
        assert [tier.queued_bytes for tier in cache.health().tiers if tier.queued_bytes] == []
        assert hit(cache, tokens) == CHUNKS * self.chunk

    @promise(
        "prefix.19",
        "refuses every call once it is closed, but reports its health, and may be closed twice",
        level="L0",
        clause="CacheLifecycle.close",
        why="a late request would hang, or use memory that has another owner",
    )
    def test_a_closed_cache_refuses_calls(self, cache: PrefixCache) -> None:
        """With ``EngineClosed``, at once."""
        tokens = self.prompt()
        put(cache, tokens)
        kv = HeapKV(cache.namespace.layout, len(tokens))
        assert cache.health().state == "open"
        promptly(cache.close)
        promptly(cache.close)
        assert cache.health().state == "closed"
        calls = [
            lambda: cache.lookup(tokens),
            lambda: cache.prefetch("request", tokens),
            lambda: cache.cancel("request"),
            lambda: cache.retrieve(tokens, kv),
            lambda: cache.store(tokens, kv),
            lambda: cache.retrieve_layers(tokens, kv).__enter__(),
            lambda: cache.store_layers(tokens, kv).__enter__(),
            lambda: cache.pin(tokens, "owner"),
            lambda: cache.unpin("owner"),
            lambda: cache.clear(),
            lambda: cache.chunk_keys(tokens),
            lambda: cache.freeze(),
            lambda: cache.flush(),
        ]
        for call in calls:
            with pytest.raises(EngineClosed):
                promptly(call)

    def _crowd(self, cache: PrefixCache, seed: int) -> None:
        """Store more prompts than there is room for."""
        for number in range(-(-(self.most or 0) // CHUNKS) + 1):
            tokens = self.prompt(seed + number)
            cache.store(tokens, computed(cache, tokens))
        cache.flush()
