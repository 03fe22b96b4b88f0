"""The common part of the keyed-cache contract: specs, contents, and a subclass's fixtures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from hashlib import shake_128
from time import sleep

import pytest

from hexkv.contracts.doubles import chunk_key
from hexkv.contracts.kit.promise import not_offered
from hexkv.plugins.clock import SystemClock
from hexkv.ports import ChunkCache, ChunkLeases, ChunkSpec, Deadline, DType, KVLayout

TOKENS = 16
LAYOUT = KVLayout.attention(DType.FLOAT16, layers=2, heads=1, key_width=8)
IDENTITY = '{"model":"contract"}'
SIZE = LAYOUT.chunk_bytes(TOKENS)

SECONDS = 60.0
"""A deadline that only a hang reaches."""

SOON = 0.25
"""Seconds of a pin that is to end."""

Ledger = Callable[[], Mapping[str, int]]


def spec(name: str, namespace: str = "contract", tokens: int = TOKENS) -> ChunkSpec:
    """The chunk called *name*."""
    return ChunkSpec(chunk_key(name, namespace), IDENTITY, LAYOUT, tokens)


def specs(count: int, prefix: str = "chunk") -> list[ChunkSpec]:
    """*count* chunks, one after the other."""
    return [spec(f"{prefix}{i}") for i in range(count)]


def content(chunk: ChunkSpec) -> bytes:
    """The KV that the contract stores under a chunk's key, different for each key."""
    return shake_128(chunk.key).digest(chunk.raw_bytes)


def soon() -> Deadline:
    """A deadline that only a hang reaches."""
    return Deadline.after(SystemClock(), SECONDS)


def now() -> Deadline:
    """A deadline that has passed."""
    return Deadline(SystemClock(), 0.0)


def put(cache: ChunkLeases, wanted: Sequence[ChunkSpec]) -> None:
    """Store chunks with their content, and wait until they are written."""
    done = 0
    while done < len(wanted):
        leases = cache.allocate(wanted[done:], "put", soon())
        assert leases, "no memory for a single chunk"
        try:
            for lease, chunk in zip(leases, wanted[done:], strict=False):
                lease.payload[:] = content(chunk)
            publishing = cache.publish(leases, wanted[done - 1].key if done else None, soon())
            assert publishing.wait(soon())
            done += len(leases)
        finally:
            for lease in leases:
                lease.release()


class ChunkCacheCase:
    """The fixtures of a subclass."""

    @pytest.fixture
    def cache(self) -> ChunkCache:
        """An empty cache."""
        raise NotImplementedError("give the subclass a `cache` fixture")

    @pytest.fixture
    def ledger(self) -> Ledger:
        """A function that returns the number of leases by owner, without those of the tiers."""
        raise NotImplementedError("give the subclass a `ledger` fixture")

    @pytest.fixture
    def crowd(self) -> Callable[[], Callable[[], None]]:
        """A function that leases all free memory and returns a function that releases it."""
        not_offered("crowd")

    @pytest.fixture
    def elapse(self) -> Callable[[float], None]:
        """Lets that many seconds pass for the cache; for one that has a clock of its own."""
        return sleep

    @pytest.fixture
    def closed(self, cache: ChunkCache) -> ChunkCache:
        """*cache*, closed."""
        del cache
        not_offered("closed")
