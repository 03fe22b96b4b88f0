"""Promises about hits: of which tokens, up to where, in which namespace."""

from __future__ import annotations

from dataclasses import replace
from itertools import takewhile

from hypothesis import given
from hypothesis import strategies as st

from hexkv.contracts.doubles.heap_kv import HeapKV
from hexkv.contracts.kit.examples import examples
from hexkv.contracts.kit.promise import promise
from hexkv.contracts.prefix_cache._base import (
    CHUNKS,
    PrefixCacheCase,
    computed,
    hit,
    holds,
    put,
)
from hexkv.ports import ParallelSlice, PrefixCache


class Prefixes(PrefixCacheCase):
    """A hit is the longest stored prefix, and nothing else."""

    @promise(
        "prefix.1",
        "gives back the KV that was stored, in whole chunks",
        level="L1",
        clause="PrefixCache.retrieve",
        why="the model would continue from KV of something else",
    )
    def test_what_was_stored_is_a_hit(self, cache: PrefixCache) -> None:
        """Tokens behind the last whole chunk are not stored, and not written."""
        tokens = self.prompt()
        assert put(cache, tokens) == CHUNKS * self.chunk
        assert hit(cache, tokens) == CHUNKS * self.chunk
        assert put(cache, tokens) == 0, "it was there already"

    @promise(
        "prefix.2",
        "finds the longest prefix that was stored, whatever was stored beside it",
        level="L1",
        clause="PrefixCache.retrieve",
        why="a prompt that differs in one early token would get KV of another one",
    )
    def test_a_hit_ends_where_the_prompts_part(self, cache: PrefixCache) -> None:
        """Prompts are made of two kinds of chunks, so they share beginnings, and ends."""

        def tokens(kinds: list[int]) -> list[int]:
            return [token for kind in kinds for token in [kind] * (self.chunk - 1) + [7]]

        def part(stored: list[list[int]], asked: list[int]) -> None:
            cache.clear()
            for kinds in stored:
                put(cache, tokens(kinds))
            shared = max(_shared(one, asked) for one in stored)
            assert hit(cache, tokens(asked)) == shared * self.chunk

        prompts = given(
            stored=st.lists(st.lists(st.integers(0, 1), max_size=4), min_size=1, max_size=3),
            asked=st.lists(st.integers(0, 1), max_size=5),
        )
        examples("prefix.2", lambda chosen: chosen(prompts(part))(), 25)

    @promise(
        "prefix.3",
        "ends a hit at a gap, and goes on once the gap is closed",
        level="L1",
        clause="PrefixCache.retrieve",
        why="KV behind a gap is of no use; the window would hold a hole",
    )
    def test_a_gap_ends_a_hit(self, cache: PrefixCache) -> None:
        """A store that skips the beginning leaves one."""
        tokens, half = self.prompt(), CHUNKS // 2 * self.chunk
        kv = computed(cache, tokens)
        cache.store(tokens, kv, skip=half)
        assert cache.flush()
        assert cache.lookup(tokens).hit_tokens == 0
        assert hit(cache, tokens) == 0
        assert put(cache, tokens[:half]) == half
        assert hit(cache, tokens) == CHUNKS * self.chunk

    @promise(
        "prefix.4",
        "shares nothing between namespaces that differ in any field",
        level="L5",
        clause="Namespace",
        why="KV of another model, adapter, rank or tenant would be loaded",
    )
    def test_namespaces_share_nothing(self, cache: PrefixCache) -> None:
        """Each field alone makes the difference, and the case of a letter in it."""
        tokens, own = self.prompt(), replace(cache.namespace, lora="Adapter", salt="Tenant")
        put(cache, tokens, own)
        put(cache, tokens)
        others = [
            replace(own, lora="adapter"),
            replace(own, salt="tenant"),
            replace(own, model=own.model.swapcase()),
            replace(own, model=own.model + "x"),
            replace(own, revision=own.revision + "x"),
            replace(own, lora=own.lora + "x"),
            replace(own, salt=own.salt + "x"),
            replace(own, parallel=ParallelSlice(own.parallel.rank, own.parallel.world + 1)),
            replace(own, extra=(*own.extra, ("~", "x"))),
        ]
        for other in others:
            assert cache.lookup(tokens, namespace=other).hit_tokens == 0, other
            assert hit(cache, tokens, other) == 0, other
        put(cache, tokens, others[0])
        assert hit(cache, tokens, others[0]) == hit(cache, tokens, own) == CHUNKS * self.chunk
        assert hit(cache, tokens) == CHUNKS * self.chunk

    @promise(
        "prefix.5",
        "leaves out skipped tokens",
        level="L1",
        clause="PrefixCache.retrieve",
        why="KV that the engine shares with another request would be written over",
    )
    def test_what_is_skipped_is_not_moved(self, cache: PrefixCache) -> None:
        """The skipped beginning is rounded down to a chunk; the hit includes it."""
        tokens, half = self.prompt(), CHUNKS // 2 * self.chunk
        put(cache, tokens)
        window = self._fresh(cache)
        got = cache.retrieve(tokens, window, skip=half + 1)
        assert got.hit_tokens == CHUNKS * self.chunk
        assert got.loaded_tokens == CHUNKS * self.chunk - half
        holds(cache, tokens, window, got, start=half)
        assert window.agrees(self._fresh(cache), half), "skipped tokens were written"
        all_of_it = cache.retrieve(tokens, self._fresh(cache), skip=len(tokens))
        assert (all_of_it.hit_tokens, all_of_it.loaded_tokens) == (len(tokens), 0)

    @promise(
        "prefix.6",
        "names chunks by namespace and prefix, always alike",
        level="L1",
        clause="PrefixCache.chunk_keys",
        why="a reader of the events could not tell which chunks they speak of",
    )
    def test_keys_of_a_prefix_are_a_prefix_of_the_keys(self, cache: PrefixCache) -> None:
        """One for each whole chunk; another token or namespace changes all from there on."""
        tokens = self.prompt()
        keys = list(cache.chunk_keys(tokens))
        assert len(set(keys)) == CHUNKS
        assert list(cache.chunk_keys(tokens[: 2 * self.chunk])) == keys[:2]
        changed = [*tokens[: self.chunk], tokens[self.chunk] + 1, *tokens[self.chunk + 1 :]]
        others = list(cache.chunk_keys(changed))
        assert others[0] == keys[0]
        assert not set(others[1:]) & set(keys)
        salted = replace(cache.namespace, salt="another tenant")
        assert not set(cache.chunk_keys(tokens, namespace=salted)) & set(keys)

    def _fresh(self, cache: PrefixCache) -> HeapKV:
        return HeapKV(cache.namespace.layout, len(self.prompt()))


def _shared(one: list[int], other: list[int]) -> int:
    """How many items are the same at the front of both."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
