"""Promises about faults: damage, tiers that hang, many threads, and leftovers."""

from __future__ import annotations

import pytest

from hexkv.contracts.doubles.heap_kv import HeapKV
from hexkv.contracts.kit.promise import promise
from hexkv.contracts.kit.waiting import UnderWay
from hexkv.contracts.prefix_cache._base import (
    CHUNKS,
    PATIENCE,
    Damaged,
    Faulty,
    PrefixCacheCase,
    Stuck,
    computed,
    hit,
    holds,
    promptly,
    put,
    until,
)
from hexkv.ports import PrefixCache

ROUNDS = 8


class Faults(PrefixCacheCase):
    """No wrong KV, no call past its deadline, no leftovers."""

    @promise(
        "prefix.20",
        "loads nothing that was damaged on its medium",
        level="L2",
        clause="PrefixCache.retrieve",
        why="the model would continue from noise",
    )
    def test_damage_is_a_miss(self, damaged: Damaged) -> None:
        """In bulk and layer by layer; the prompt can be stored again."""
        cache, tokens = damaged.cache, self.prompt()
        put(cache, tokens)
        assert hit(cache, tokens) == CHUNKS * self.chunk
        damaged.spoil()
        window = HeapKV(cache.namespace.layout, len(tokens))
        with cache.retrieve_layers(tokens, window) as layers:
            for _ in layers:
                pass
            got = layers.result()
        assert got.hit_tokens == 0
        assert sum(got.misses.values()) == CHUNKS
        assert hit(cache, tokens) == 0
        put(cache, tokens)
        assert hit(cache, tokens) == CHUNKS * self.chunk

    @promise(
        "prefix.24",
        "promises no chunk of which two reads failed, and keeps it when it is stored again",
        level="L2",
        clause="PrefixCache.lookup",
        why="a host that counts on it would fail each request for its prompt",
    )
    def test_a_chunk_that_cannot_be_read_is_not_promised(self, faulty: Faulty) -> None:
        """The chunks before it are, and other prompts."""
        cache, tokens, other = faulty.cache, self.prompt(), self.prompt(1)
        put(cache, tokens)
        put(cache, other)
        faulty.fail()
        for _ in range(2):
            assert hit(cache, tokens) == self.chunk
            assert hit(cache, other) == CHUNKS * self.chunk
        assert cache.lookup(tokens).hit_tokens == self.chunk
        assert put(cache, tokens) == self.chunk, "what cannot be read is not stored anew"
        assert cache.lookup(tokens).hit_tokens == CHUNKS * self.chunk
        assert hit(cache, tokens) == CHUNKS * self.chunk

    @promise(
        "prefix.21",
        "answers within its deadlines where no tier does, with less instead of an error",
        level="L4",
        clause="PrefixCache",
        why="one dead server would stand still with all the engines that use it",
    )
    def test_deadlines_hold(self, stuck: Stuck) -> None:
        """Of each call, one after the other, and of closing."""
        cache, tokens = stuck.cache, self.prompt()
        put(cache, tokens)
        stuck.hang()

        def by_layers() -> int:
            window = HeapKV(cache.namespace.layout, len(tokens))
            with cache.retrieve_layers(tokens, window) as layers:
                for _ in layers:
                    pass
                return layers.result().hit_tokens

        promptly(lambda: cache.lookup(tokens))
        promptly(lambda: cache.prefetch("request", tokens))
        assert promptly(lambda: hit(cache, tokens)) == 0
        assert promptly(by_layers) == 0
        new = self.prompt(1)
        report = promptly(lambda: cache.store(new, computed(cache, new)))
        assert report.stored_tokens == 0
        promptly(lambda: cache.cancel("request"))
        promptly(lambda: cache.pin(tokens, "owner"))
        promptly(lambda: cache.unpin("owner"))
        promptly(lambda: cache.clear(tokens))
        promptly(lambda: cache.flush(0.1))
        promptly(cache.health)
        promptly(cache.close)

    @promise(
        "prefix.22",
        "gives many threads at once the KV of their own prompts",
        level="L3",
        clause="PrefixCache",
        why="requests run side by side in every server",
    )
    def test_threads_do_not_mix(self, cache: PrefixCache) -> None:
        """Prompts that share their beginnings, stored and loaded at the same time."""
        shared = self.prompt(0, 1)[: self.chunk]

        def work(number: int) -> None:
            tokens = [*shared, *self.prompt(100 + number, 2)]
            for _ in range(ROUNDS):
                cache.store(tokens, computed(cache, tokens))
                hit(cache, tokens)
                found = cache.lookup(tokens, pin=f"thread {number}").hit_tokens
                assert found in (0, self.chunk, 2 * self.chunk, 3 * self.chunk)
                cache.unpin(f"thread {number}")

        works = {f"request {n}": (lambda n=n: work(n)) for n in range(4)}
        with UnderWay(works, patience=6 * PATIENCE):
            pass
        assert not cache.health().pins

    @promise(
        "prefix.23",
        "leaves nothing leased or pinned behind, however a call ends",
        level="L4",
        clause="Health.leases",
        why="memory would run out, a request at a time",
    )
    def test_nothing_is_left_behind(self, cache: PrefixCache) -> None:
        """Contexts that were left by an error, prefetches, refused and empty requests."""
        tokens = self.prompt()
        put(cache, tokens)
        assert hit(cache, tokens)
        before = cache.health().leases
        kv = computed(cache, tokens)
        for _ in range(3):
            for context in (cache.retrieve_layers, cache.store_layers):
                with pytest.raises(ZeroDivisionError), context(tokens, kv):
                    _ = 1 / 0
            cache.prefetch("request", tokens)
            window = HeapKV(cache.namespace.layout, len(tokens))
            holds(cache, tokens, window, cache.retrieve(tokens, window, lookup_id="request"))
            cache.prefetch("given up", tokens)
            cache.cancel("given up")
            cache.retrieve([], HeapKV(cache.namespace.layout, 0))
        # Abandoned reads run to their end.
        assert until(lambda: cache.health().leases == before), cache.health().leases
        health = cache.health()
        assert not health.pins
        assert health.prefetches == 0
