"""The common part of the contract of caches by tokens: prompts, their KV, and fixtures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from threading import Event
from typing import ClassVar, NamedTuple, TypeVar

import pytest

from hexkv.contracts.doubles.heap_kv import HeapKV
from hexkv.contracts.kit import waiting
from hexkv.contracts.kit.promise import not_offered
from hexkv.ports import Namespace, PrefixCache, Retrieved

T = TypeVar("T")

CHUNKS = 4
"""The default number of chunks of a prompt; a few more tokens follow them."""

PATIENCE = 10.0
"""Seconds of this process's time after which a call counts as hanging."""


class Damaged(NamedTuple):
    """A cache that has to read a medium for every hit, and a way to damage that medium."""

    cache: PrefixCache
    spoil: Callable[[], None]
    """Change bytes of every chunk on the medium, by no method of the cache."""


class Faulty(NamedTuple):
    """A cache that has to read a medium for every hit, and a way to break one chunk of it."""

    cache: PrefixCache
    fail: Callable[[], None]
    """Make each read of the second chunk stored fail, until it is written again."""


class Stuck(NamedTuple):
    """A cache whose tiers stop answering."""

    cache: PrefixCache
    hang: Callable[[], None]
    """Make no tier answer, with deadlines of fractions of a second. The fixture ends that."""


class PrefixCacheCase:
    """The fixtures of a subclass."""

    chunk: ClassVar[int] = 16
    """Tokens of a chunk. A shorter rest at the end of a prompt is not kept."""

    most: ClassVar[int | None] = None
    """The number of chunks that ``cache`` holds at most; ``None``: it evicts nothing."""

    @pytest.fixture
    def cache(self) -> PrefixCache:
        """An empty, open cache with room for 24 chunks; closed after the test."""
        raise NotImplementedError(f"give {type(self).__name__} a `cache` fixture")

    @pytest.fixture
    def damaged(self) -> Damaged:
        """See :class:`Damaged`."""
        not_offered("damaged")

    @pytest.fixture
    def faulty(self) -> Faulty:
        """See :class:`Faulty`."""
        not_offered("faulty")

    @pytest.fixture
    def stuck(self) -> Stuck:
        """See :class:`Stuck`."""
        not_offered("stuck")

    def prompt(self, seed: int = 0, chunks: int = CHUNKS) -> list[int]:
        """A prompt of *chunks* chunks of tokens, and half a chunk."""
        size = chunks * self.chunk + self.chunk // 2
        return Random(seed).choices(range(1 << 16), k=size)  # noqa: S311 - nothing here is secret


def computed(
    cache: PrefixCache, tokens: Sequence[int], namespace: Namespace | None = None
) -> HeapKV:
    """The KV of a prompt, which differs in every namespace."""
    whose = cache.namespace if namespace is None else namespace
    return HeapKV(whose.layout, len(tokens)).compute(tokens, seed=f"{whose!r} {whose.salt}")


def put(cache: PrefixCache, tokens: Sequence[int], namespace: Namespace | None = None) -> int:
    """Store a prompt, wait until it is written, and return the number of new tokens."""
    __tracebackhide__ = True  # the test that calls tells more
    report = cache.store(tokens, computed(cache, tokens, namespace), namespace=namespace)
    assert not report.dropped_tokens, report
    assert cache.flush(), "the stored chunks are not written in time"
    return report.stored_tokens + report.queued_tokens


def hit(cache: PrefixCache, tokens: Sequence[int], namespace: Namespace | None = None) -> int:
    """Retrieve a prompt, check that exactly the hit's KV was written, and return its tokens."""
    __tracebackhide__ = True
    window = HeapKV((namespace or cache.namespace).layout, len(tokens))
    got = cache.retrieve(tokens, window, namespace=namespace)
    holds(cache, tokens, window, got, namespace=namespace)
    return got.hit_tokens


def holds(
    cache: PrefixCache,
    tokens: Sequence[int],
    window: HeapKV,
    got: Retrieved,
    *,
    start: int = 0,
    namespace: Namespace | None = None,
) -> None:
    """Check that *window* holds exactly the KV from *start* on that *got* reports."""
    __tracebackhide__ = True
    end, fresh = got.hit_tokens, HeapKV(window.layout, window.tokens)
    expected = computed(cache, tokens, namespace)
    assert window.agrees(expected, end, start), f"not all KV of [{start}, {end}) is the prompt's"
    assert window.agrees(fresh, len(tokens), end), f"KV behind token {end} was written"


def until(condition: Callable[[], bool]) -> bool:
    """Poll *condition*; return True once it holds, False if that takes too long."""
    for _ in range(6_000):
        if condition():
            return True
        Event().wait(0.01)
    return condition()


def promptly(call: Callable[[], T]) -> T:
    """Return or raise the result of *call*; fail if it takes longer than :data:`PATIENCE`."""
    return waiting.promptly(call, PATIENCE)
