"""The common part of the contract of segment caches: segments, their prompts, and their KV."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import ClassVar

import pytest

from hexkv.blending.ports import PromptParts, SegmentedCache
from hexkv.contracts.doubles.heap_kv import HeapKV
from hexkv.contracts.kit.promise import not_offered
from hexkv.contracts.prefix_cache._base import Damaged, Stuck, computed
from hexkv.ports import Namespace

SEPARATOR = (60_001, 60_002)
"""The tokens between segments: ``segments.separator`` of the caches under test."""

MINIMUM = 4
"""Tokens of the shortest chunk of a segment that they keep: ``segments.minimum``."""


class SegmentCacheCase:
    """The fixtures of a subclass."""

    chunk: ClassVar[int] = 16
    """Tokens of a chunk; a prefix ends with a full one."""

    @pytest.fixture
    def cache(self) -> SegmentedCache:
        """An empty, open cache with room for 48 chunks, which cuts at :data:`SEPARATOR`."""
        raise NotImplementedError(f"give {type(self).__name__} a `cache` fixture")

    @pytest.fixture
    def other(self, cache: SegmentedCache) -> SegmentedCache:
        """Another cache on the same tiers, like that of a second process."""
        del cache
        not_offered("other")

    @pytest.fixture
    def damaged(self) -> Damaged:
        """A cache whose medium can be damaged."""
        not_offered("damaged")

    @pytest.fixture
    def stuck(self) -> Stuck:
        """A cache whose tiers do not answer."""
        not_offered("stuck")

    def segments(self, seed: int = 0) -> list[list[int]]:
        """Some segments: of several chunks and a rest, of one chunk, and shorter."""
        sizes = 3 * self.chunk + 5, self.chunk, 2 * self.chunk - 1, self.chunk // 2
        dice = Random(seed)  # noqa: S311 - nothing here is secret
        return [dice.choices(range(50_000), k=size) for size in sizes]


def joined(
    pieces: Sequence[Sequence[int]], separator: Sequence[int]
) -> tuple[list[int], list[int]]:
    """A prompt of *pieces*, and the position of each."""
    prompt: list[int] = []
    places = []
    for piece in pieces:
        prompt += separator if prompt else ()
        places.append(len(prompt))
        prompt += piece
    return prompt, places


def keep(cache: SegmentedCache, segment: Sequence[int], namespace: Namespace | None = None) -> None:
    """Store a segment as computed alone, and wait until it is written."""
    __tracebackhide__ = True
    report = cache.segments.store(segment, computed(cache, segment, namespace), namespace=namespace)
    assert not report.dropped_tokens, report
    assert cache.flush(), "the stored chunks are not written in time"


def load(
    cache: SegmentedCache,
    prompt: Sequence[int],
    parts: PromptParts,
    namespace: Namespace | None = None,
) -> None:
    """Retrieve *parts*, and check that all came, each as it was stored, and nothing else."""
    __tracebackhide__ = True
    layout = (namespace or cache.namespace).layout
    window, fresh = HeapKV(layout, len(prompt)), HeapKV(layout, len(prompt))
    got = cache.segments.retrieve(prompt, window, parts=parts, namespace=namespace)
    assert got.parts == as_plain(parts)
    assert got.loaded_bytes == layout.chunk_bytes(parts.prefix + parts.reused)
    assert sum(got.tiers.values()) == parts.prefix + parts.reused
    assert window.agrees(computed(cache, prompt, namespace), parts.prefix), "another prefix"
    for start, end in parts.holes:
        assert window.agrees(fresh, end, start), f"the hole [{start}, {end}) was written"
    for start, end, position in parts.segments:
        begin = start - position
        alone = computed(cache, prompt[begin:end], namespace)
        for layer, planes in enumerate(alone.memory):
            for plane, kept in enumerate(planes):
                row = len(kept) // alone.tokens
                there = window.memory[layer][plane][start * row : end * row]
                assert there == kept[position * row :], f"another KV at [{start}, {end})"


def as_plain(parts: PromptParts) -> PromptParts:
    """*parts* without data that a cache may attach to them."""
    return PromptParts(parts.tokens, parts.prefix, parts.segments)
