"""Promises about layerwise requests: the same results as in bulk, one layer at a time."""

from __future__ import annotations

import pytest

from hexkv.contracts.doubles.heap_kv import HeapKV
from hexkv.contracts.kit.promise import promise
from hexkv.contracts.prefix_cache._base import CHUNKS, PrefixCacheCase, computed, hit, holds, put
from hexkv.ports import InvalidRequest, PrefixCache


class Layers(PrefixCacheCase):
    """Layer by layer, in order."""

    @promise(
        "prefix.12",
        "loads layer by layer what it loads in bulk, each layer before it is given",
        level="L1",
        clause="LayerwiseCache.retrieve_layers",
        why="the model would compute a layer from KV that is not there yet",
    )
    def test_layers_hold_what_a_retrieve_brings(self, cache: PrefixCache) -> None:
        """For a whole hit, a part, one with a skipped beginning, and none.

        Into windows restricted to the caller's thread, and into others.
        """
        tokens = self.prompt()
        put(cache, tokens)
        half = CHUNKS // 2 * self.chunk
        for asked, skip, background in (
            (tokens, 0, False),
            (tokens, 0, True),
            (tokens, half, True),
            (tokens[:half] + self.prompt(1), 0, True),
            (self.prompt(2), 0, True),
        ):
            bulk = cache.retrieve(asked, HeapKV(cache.namespace.layout, len(asked)), skip=skip)
            window, expected = HeapKV(cache.namespace.layout, len(asked)), computed(cache, asked)
            window.background = background
            with cache.retrieve_layers(asked, window, skip=skip) as layers:
                with pytest.raises(InvalidRequest):
                    layers.result()
                given = []
                for layer in layers:
                    given.append(layer)
                    for plane, memory in enumerate(window.memory[layer]):
                        row = len(memory) // len(asked)
                        part = slice(skip * row, max(skip, layers.hit_tokens) * row)
                        assert memory[part] == expected.memory[layer][plane][part]
                got = layers.result()
            assert given == list(range(cache.namespace.layout.layers))
            holds(cache, asked, window, got, start=skip)
            assert (got.hit_tokens, got.loaded_tokens) == (bulk.hit_tokens, bulk.loaded_tokens)
            assert got.misses == bulk.misses

    @promise(
        "prefix.13",
        "stores layer by layer what it stores in bulk, and nothing before the result is asked for",
        level="L1",
        clause="LayerwiseCache.store_layers",
        why="chunks of which layers are missing would be loaded",
    )
    def test_layers_store_what_a_store_keeps(self, cache: PrefixCache) -> None:
        """In any order of layers, after an attempt that was abandoned."""
        tokens = self.prompt()
        kv, layers = computed(cache, tokens), range(cache.namespace.layout.layers)
        kv.background = True
        with cache.store_layers(tokens, kv) as storing:
            for layer in layers:
                storing.layer_done(layer)
        assert hit(cache, tokens) == 0, "the result was never asked for"
        with cache.store_layers(tokens, kv) as storing:
            for layer in reversed(layers):
                with pytest.raises(InvalidRequest):
                    storing.result()
                storing.layer_done(layer)
            report = storing.result()
        assert report.stored_tokens + report.queued_tokens == CHUNKS * self.chunk
        assert cache.flush()
        assert hit(cache, tokens) == CHUNKS * self.chunk

    @promise(
        "prefix.14",
        "refuses layers out of place, and calls after the context was left",
        level="L1",
        clause="LayeredWrite.layer_done",
        why="a host that counts its layers wrongly would store a chunk with a hole",
    )
    def test_layers_out_of_place_are_refused(self, cache: PrefixCache) -> None:
        """Layers given twice, beyond the last, and too late."""
        tokens = self.prompt()
        with cache.store_layers(tokens, computed(cache, tokens)) as storing:
            storing.layer_done(0)
            for layer in (0, -1, cache.namespace.layout.layers):
                with pytest.raises(InvalidRequest):
                    storing.layer_done(layer)
        with pytest.raises(InvalidRequest):
            storing.layer_done(1)
        with pytest.raises(InvalidRequest):
            storing.result()
        assert hit(cache, tokens) == 0
        put(cache, tokens)
        with cache.retrieve_layers(tokens, HeapKV(cache.namespace.layout, len(tokens))) as loading:
            next(loading)
        with pytest.raises(InvalidRequest):
            next(loading)
