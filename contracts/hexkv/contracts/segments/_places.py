"""Promises about the positions of segments in prompts, and the KV loaded there."""

from __future__ import annotations

from itertools import permutations
from random import Random

import pytest

from hexkv.blending.ports import PromptParts, SegmentedCache, SegmentRun
from hexkv.contracts.doubles.heap_kv import HeapKV
from hexkv.contracts.kit.cases import case
from hexkv.contracts.kit.promise import promise
from hexkv.contracts.prefix_cache._base import hit, put
from hexkv.contracts.segments._base import (
    MINIMUM,
    SEPARATOR,
    SegmentCacheCase,
    as_plain,
    joined,
    keep,
    load,
)
from hexkv.ports import InvalidRequest, Namespace


class Places(SegmentCacheCase):
    """Each segment is found at its position, and nothing else."""

    @promise(
        "segments.1",
        "gives each segment the KV that it was stored with, wherever it stands, and its positions",
        level="L1",
        clause="SegmentCache.retrieve",
        why="the model would go on from KV of another text, or of another place in it",
    )
    def test_segments_come_in_any_order(self, cache: SegmentedCache) -> None:
        """Behind a prefix or without one, with and without separators."""
        segments, head = self.segments(), self.segments(1)[2]
        for segment in segments:
            keep(cache, segment)
        put(cache, head)
        for order in [*permutations(range(4))][::5]:
            for separator in (SEPARATOR, ()):
                with case(f"order {order}, separator {separator}"):
                    prompt, places = joined([head, *(segments[i] for i in order)], separator)
                    parts = cache.segments.find(prompt)
                    assert parts.prefix == self.chunk
                    want = [
                        SegmentRun(at, at + len(segments[i]))
                        for i, at in zip(order, places[1:], strict=True)
                    ]
                    assert [*parts.segments] == want
                    load(cache, prompt, parts)

    @promise(
        "segments.2",
        "gives layer by layer what it gives at once",
        level="L1",
        clause="SegmentCache.retrieve_layers",
        why="a layer would be computed from the KV of another one",
    )
    def test_layers_give_the_same(self, cache: SegmentedCache) -> None:
        segments = self.segments()
        for segment in segments:
            keep(cache, segment)
        prompt, _ = joined([self.segments(1)[3], *segments], SEPARATOR)
        put(cache, prompt[: 2 * self.chunk])
        parts = cache.segments.find(prompt)
        layout = cache.namespace.layout
        window, fresh = HeapKV(layout, len(prompt)), HeapKV(layout, len(prompt))
        whole = HeapKV(layout, len(prompt))
        got = cache.segments.retrieve(prompt, whole, parts=parts)
        assert got.parts == as_plain(parts)
        with cache.segments.retrieve_layers(prompt, window, parts=parts) as layers:
            for number in range(layout.layers):
                assert next(layers) == number
                assert window.memory[number] == whole.memory[number], f"layer {number}"
            assert next(layers, None) is None
            result = layers.result()
            assert result.parts == as_plain(layers.parts) == got.parts
            assert result.loaded_bytes == got.loaded_bytes
        for start, end in parts.holes:
            assert window.agrees(fresh, end, start), f"the hole [{start}, {end}) was written"

    @promise(
        "segments.3",
        "gives a prefix that is skipped as there, and does not load it",
        level="L1",
        clause="SegmentCache.retrieve",
        why="what the host has computed or loaded itself would be loaded once more",
    )
    def test_what_is_skipped_is_not_loaded(self, cache: SegmentedCache) -> None:
        segment, head = self.segments()[0], self.segments(1)[0][: 2 * self.chunk]
        keep(cache, segment)
        put(cache, head)
        prompt, (_, at) = joined([head, segment], SEPARATOR)
        layout = cache.namespace.layout
        for layered in (False, True):
            window, fresh = HeapKV(layout, len(prompt)), HeapKV(layout, len(prompt))
            if layered:
                with cache.segments.retrieve_layers(prompt, window, skip=len(head)) as layers:
                    for _ in layers:
                        pass
                    got = layers.result()
            else:
                got = cache.segments.retrieve(prompt, window, skip=len(head))
            assert got.parts == PromptParts(
                len(prompt), len(head), (SegmentRun(at, at + len(segment)),)
            )
            assert window.agrees(fresh, len(head)), "the skipped prefix was written"
            assert got.loaded_bytes == layout.chunk_bytes(len(segment))

    @promise(
        "segments.4",
        "never gives a segment as a prefix, nor a prefix as a segment",
        level="L5",
        clause="SegmentCache",
        why="approximate KV would be taken for exact KV, by any engine that shares the tiers",
        hint="the scheme of segments is part of their keys",
    )
    def test_segments_are_no_prefixes(self, cache: SegmentedCache) -> None:
        segment, prefix = self.segments()[0], self.segments(1)[0]
        keep(cache, segment)
        put(cache, prefix)
        assert hit(cache, segment) == 0
        assert cache.lookup(segment).hit_tokens == 0
        prompt, _ = joined([[1, 2, 3], prefix], SEPARATOR)
        assert cache.segments.find(prompt).reused == 0
        assert cache.segments.register(prefix) == 0
        put(cache, segment)
        assert hit(cache, segment) == 3 * self.chunk
        assert cache.segments.register(segment) == len(segment)

    @promise(
        "segments.5",
        "keeps the segments of each namespace apart",
        level="L5",
        clause="SegmentCache",
        why="one tenant's text, or one model's KV, would reach another one",
    )
    def test_namespaces_are_apart(self, cache: SegmentedCache) -> None:
        segment = self.segments()[0]
        keep(cache, segment)
        space = cache.namespace
        for name, other in {
            "salt": Namespace(space.model, space.layout, salt="hers"),
            "model": Namespace("another", space.layout),
            "lora": Namespace(space.model, space.layout, lora="one"),
        }.items():
            with case(name):
                for prompt, _ in (joined([[1], segment], SEPARATOR), joined([[1], segment], ())):
                    assert cache.segments.find(prompt, namespace=other).reused == 0
                assert cache.segments.register(segment, namespace=other) == 0
                keep(cache, segment, other)
                prompt, _ = joined([[1], segment], SEPARATOR)
                load(cache, prompt, cache.segments.find(prompt, namespace=other), other)
                cache.clear(namespace=other)
                assert cache.segments.find(prompt, namespace=other).reused == 0
        assert cache.segments.register(segment) == len(segment)

    @promise(
        "segments.9",
        "gives parts that tile the prompt, whatever is in it",
        level="L1",
        clause="PromptParts.holes",
        why="a token would be computed twice, or never",
    )
    def test_parts_tile_the_prompt(self, cache: SegmentedCache) -> None:
        """Segments of few tokens, which contain one another; separators everywhere; nothing."""
        dice = Random(4)  # noqa: S311 - nothing here is secret
        for size in (MINIMUM, self.chunk - 1, self.chunk + MINIMUM, 2 * self.chunk):
            keep(cache, dice.choices(range(2), k=size))
        keep(cache, [1] * self.chunk)
        put(cache, [1] * 2 * self.chunk)
        prompts = [[], [1], [*SEPARATOR] * 9, [1] * 7 * self.chunk, [1, *SEPARATOR] * 20]
        prompts += [dice.choices((0, 1, 1, *SEPARATOR), k=150) for _ in range(20)]
        for prompt in prompts:
            parts = cache.segments.find(prompt)
            tiles = sorted([(0, parts.prefix), *(run[:2] for run in parts.segments), *parts.holes])
            edges = [edge for tile in tiles if tile[0] < tile[1] for edge in tile]
            assert [0, *edges[1:-1:2], len(prompt)][1:-1] == edges[2::2], tiles
            assert edges == [] == prompt or (edges[0], edges[-1]) == (0, len(prompt))
            starts, ends = cache.segments.cut(prompt)
            assert all(a < b for a, b in zip(starts, ends, strict=True))
            assert all(end <= start for end, start in zip(ends, starts[1:], strict=False))
            load(cache, prompt, parts)

    @promise(
        "segments.10",
        "refuses what means nothing, before anything is moved",
        level="L1",
        clause="SegmentCache",
        why="a mistake in a host would show as wrong answers",
    )
    def test_nonsense_is_refused(self, cache: SegmentedCache) -> None:
        segment = self.segments()[1]
        keep(cache, segment)
        prompt, layout = [1, *segment], cache.namespace.layout
        short, right = HeapKV(layout, 3), HeapKV(layout, len(prompt))
        other = PromptParts(5)
        for wrong in (
            lambda: cache.segments.store(segment, short),
            lambda: cache.segments.retrieve(prompt, short),
            lambda: cache.segments.retrieve(prompt, right, parts=other),
            lambda: cache.segments.retrieve(prompt, right, skip=len(prompt) + 1),
            lambda: cache.segments.retrieve_layers(prompt, short).__enter__(),
            lambda: cache.segments.find(prompt, recomputed=1.5),
            lambda: cache.segments.find(prompt, recomputed=float("nan")),
            lambda: cache.segments.find(prompt, namespace="toy"),  # type: ignore[arg-type]
            lambda: cache.segments.find([1.5]),  # type: ignore[list-item]
        ):
            with pytest.raises(InvalidRequest):
                wrong()
        inside = PromptParts(len(prompt), 0, (SegmentRun(0, 3), SegmentRun(4, 6)))
        assert cache.segments.retrieve(prompt, right, parts=inside).parts.reused == 0
