"""What the promises of caches by tokens share: prompts, their KV, and the fixtures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from threading import Event
from typing import ClassVar, NamedTuple, TypeVar

import pytest

from hexkv.contracts import waiting
from hexkv.contracts.heap_kv import HeapKV
from hexkv.contracts.promise import not_offered
from hexkv.ports import Namespace, PrefixCache, Retrieved

T = TypeVar("T")

CHUNKS = 4
"""Chunks of a prompt, where nothing else is said; behind them stand a few tokens more."""

PATIENCE = 10.0
"""Seconds of this process's time after which a call counts as hanging."""


class Damaged(NamedTuple):
    """A cache that has to read a medium for every hit, and a way to spoil it."""

    cache: PrefixCache
    spoil: Callable[[], None]
    """Change bytes of every chunk on the medium, by no method of the cache."""


class Faulty(NamedTuple):
    """A cache that has to read a medium for every hit, and a way to break one chunk of it."""

    cache: PrefixCache
    fail: Callable[[], None]
    """Have each read of the second chunk that was stored fail, until that is written anew."""


class Stuck(NamedTuple):
    """A cache whose tiers stop answering."""

    cache: PrefixCache
    hang: Callable[[], None]
    """From now on no tier answers, and deadlines are fractions of a second. The fixture ends it."""


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
        """So many chunks of tokens, and half a chunk."""
        size = chunks * self.chunk + self.chunk // 2
        return Random(seed).choices(range(1 << 16), k=size)  # noqa: S311 - nothing here is secret


def computed(
    cache: PrefixCache, tokens: Sequence[int], namespace: Namespace | None = None
) -> HeapKV:
    """The KV of a prompt, which differs in every namespace."""
    whose = cache.namespace if namespace is None else namespace
    return HeapKV(whose.layout, len(tokens)).compute(tokens, seed=f"{whose!r} {whose.salt}")


def put(cache: PrefixCache, tokens: Sequence[int], namespace: Namespace | None = None) -> int:
    """Store a prompt and wait until it is written; the number of tokens that were new."""
    __tracebackhide__ = True  # the test that calls tells more
    report = cache.store(tokens, computed(cache, tokens, namespace), namespace=namespace)
    assert not report.dropped_tokens, report
    assert cache.flush(), "what was stored is not written in time"
    return report.stored_tokens + report.queued_tokens


def hit(cache: PrefixCache, tokens: Sequence[int], namespace: Namespace | None = None) -> int:
    """The number of tokens that a retrieve brings, each with its own KV, and nothing behind."""
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
    """Check that *window* holds from *start* on the KV that *got* says, and nothing else."""
    __tracebackhide__ = True
    end, fresh = got.hit_tokens, HeapKV(window.layout, window.tokens)
    expected = computed(cache, tokens, namespace)
    assert window.agrees(expected, end, start), f"not all KV of [{start}, {end}) is the prompt's"
    assert window.agrees(fresh, len(tokens), end), f"KV behind token {end} was written"


def until(condition: Callable[[], bool]) -> bool:
    """True as soon as *condition* is, which a worker brings about; False if that takes too long."""
    for _ in range(6_000):
        if condition():
            return True
        Event().wait(0.01)
    return condition()


def promptly(call: Callable[[], T]) -> T:
    """What *call* gives or raises; a failure if it takes longer than :data:`PATIENCE`."""
    return waiting.promptly(call, PATIENCE)
