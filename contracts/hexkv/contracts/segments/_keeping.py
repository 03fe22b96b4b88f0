"""Promises about stored segments: damage, restarts, closing, and leftovers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import pytest

from hexkv.blending.ports import (
    BlendOutcome,
    BlendReport,
    PromptParts,
    RetrievedParts,
    SegmentedCache,
    SegmentRun,
)
from hexkv.contracts.doubles.heap_kv import HeapKV
from hexkv.contracts.kit.cases import case
from hexkv.contracts.kit.promise import promise
from hexkv.contracts.prefix_cache._base import Damaged, Stuck, computed, promptly, until
from hexkv.contracts.segments._base import (
    SEPARATOR,
    SegmentCacheCase,
    joined,
    keep,
    load,
)

CHUNKS = 4
"""Chunks of the first segment."""


class Keeping(SegmentCacheCase):
    """No wrong KV, no call past its deadline, no leftovers."""

    @promise(
        "segments.6",
        "leaves a hole where a chunk is missing, and reports it",
        level="L2",
        clause="RetrievedParts.parts",
        why="the model would read the former content of the memory",
    )
    def test_damage_is_a_hole(self, damaged: Damaged) -> None:
        """A damaged chunk is not loaded, in bulk or layer by layer; it can be stored again."""
        cache, segment = cast("SegmentedCache", damaged.cache), self.segments()[0]
        prompt, _ = joined([[1, 2], segment], SEPARATOR)

        def at_once(parts: PromptParts, window: HeapKV) -> RetrievedParts:
            return cache.segments.retrieve(prompt, window, parts=parts)

        def by_layers(parts: PromptParts, window: HeapKV) -> RetrievedParts:
            with cache.segments.retrieve_layers(prompt, window, parts=parts) as layers:
                for _ in layers:
                    pass
                return layers.result()

        for retrieve in (at_once, by_layers):
            keep(cache, segment)
            parts = cache.segments.find(prompt)
            load(cache, prompt, parts)
            damaged.spoil()
            window = HeapKV(cache.namespace.layout, len(prompt))
            with case(retrieve.__name__):
                got = retrieve(parts, window)
                assert (got.parts.reused, got.parts.holes) == (0, ((0, len(prompt)),))
                assert sum(got.misses.values()) == CHUNKS, got.misses

    @promise(
        "segments.7",
        "finds another process's segments: between separators, and elsewhere once registered",
        level="L1",
        clause="SegmentCache.register",
        why="nothing would be found after a restart",
    )
    def test_others_find_it(self, cache: SegmentedCache, other: SegmentedCache) -> None:
        segments = self.segments()
        for segment in segments:
            keep(cache, segment)
        prompt, places = joined([[1], *segments], SEPARATOR)
        parts = other.segments.find(prompt)
        assert [run.start for run in parts.segments] == places[1:]
        load(other, prompt, parts)
        anywhere, places = joined([[1], *segments], ())
        assert other.segments.find(anywhere).reused == 0
        for segment in segments:
            assert other.segments.register(segment) == len(segment)
        parts = other.segments.find(anywhere)
        assert [run.start for run in parts.segments] == places[1:]
        load(other, anywhere, parts)
        assert other.segments.register(self.segments(9)[0]) == 0

    @promise(
        "segments.8",
        "does not find a forgotten segment, and finds it again once it is stored again",
        level="L1",
        clause="SegmentCache.forget",
        why="a document that was withdrawn would go on answering",
    )
    def test_what_is_forgotten_is_gone(self, cache: SegmentedCache) -> None:
        first, second, *_ = self.segments()
        for segment in (first, second):
            keep(cache, segment)
        assert cache.segments.forget(first) == 4
        for separator in (SEPARATOR, ()):
            prompt, (_, _, at) = joined([[1], first, second], separator)
            parts = cache.segments.find(prompt)
            assert [*parts.segments] == [SegmentRun(at, at + len(second))]
        assert cache.segments.register(first) == 0
        assert cache.segments.forget(first) == 0
        keep(cache, first)
        assert cache.segments.register(first) == len(first)
        cache.clear()
        assert cache.segments.register(first) == cache.segments.register(second) == 0

    @promise(
        "segments.11",
        "answers within its deadlines where no tier does, with holes instead of an error",
        level="L4",
        clause="SegmentCache",
        why="one dead server would stand still with all the engines that use it",
    )
    def test_deadlines_hold(self, stuck: Stuck) -> None:
        cache, segment = cast("SegmentedCache", stuck.cache), self.segments()[0]
        keep(cache, segment)
        prompt, _ = joined([[1], segment], SEPARATOR)
        parts = cache.segments.find(prompt)
        stuck.hang()
        window = HeapKV(cache.namespace.layout, len(prompt))

        def by_layers() -> int:
            with cache.segments.retrieve_layers(prompt, window, parts=parts) as layers:
                for _ in layers:
                    pass
                return layers.result().parts.reused

        promptly(lambda: cache.segments.find(prompt))
        got = promptly(lambda: cache.segments.retrieve(prompt, window, parts=parts))
        assert got.parts.reused == 0
        assert promptly(by_layers) == 0
        new = self.segments(3)[0]
        report = promptly(lambda: cache.segments.store(new, computed(cache, new)))
        assert report.stored_tokens == 0
        promptly(lambda: cache.segments.register(segment))
        promptly(lambda: cache.segments.forget(segment))
        promptly(cache.close)

    @promise(
        "segments.12",
        "leaves nothing leased behind, however a call ends",
        level="L4",
        clause="Health.leases",
        why="memory would run out, a request at a time",
    )
    def test_nothing_is_left_behind(self, cache: SegmentedCache) -> None:
        segment = self.segments()[0]
        keep(cache, segment)
        prompt, _ = joined([[1], segment], SEPARATOR)
        load(cache, prompt, cache.segments.find(prompt))
        before = cache.health().leases
        window = HeapKV(cache.namespace.layout, len(prompt))
        for _ in range(3):
            with pytest.raises(ZeroDivisionError):
                self.left(cache, prompt, window)
            with cache.segments.retrieve_layers(prompt, window):
                pass
            for outcome in BlendOutcome:
                cache.segments.report(BlendReport(outcome, 1, 2, 3, 4, 0.1, 0.1, 0.1))
        assert until(lambda: cache.health().leases == before), cache.health().leases

    def left(self, cache: SegmentedCache, prompt: Sequence[int], window: HeapKV) -> None:
        """Begin to load *prompt*, and fail after the first layer."""
        with cache.segments.retrieve_layers(prompt, window) as layers:
            next(layers)
            raise ZeroDivisionError
