"""The keyed cache of an engine keeps the promises of its port, over every kind of tier."""

import pytest

from hexkv.adapters.local.disk import DiskStore
from hexkv.contracts.chunk_cache import ChunkCacheContract
from hexkv.contracts.chunk_cache._base import LAYOUT, TOKENS, now, soon, spec
from hexkv.contracts.chunk_cache.double import HeapService
from hexkv.contracts.chunk_cache.service import ChunkServiceContract
from hexkv.contracts.doubles import RecordingTelemetry
from hexkv.contracts.doubles.heap_kv import HeapKV
from hexkv.contracts.doubles.own_memory import OWNER, OwnMemoryStore
from hexkv.core.engine.engine import CacheEngine
from hexkv.core.keys.chunking import PrefixChunker
from hexkv.core.requests.pipeline import Pipeline
from hexkv.core.runtime import Runtime
from hexkv.peers.serving.served import ServedChunks
from hexkv.plugins.clock import SystemClock
from hexkv.plugins.configuration.config import load
from hexkv.plugins.discovery.discovery import discover
from hexkv.plugins.memory.store import MemoryStore
from hexkv.plugins.threads import Threads
from hexkv.ports import Namespace, frame_bytes
from prompts import disk, tier
from rigging import MEMORY

FRAME = frame_bytes(LAYOUT.chunk_bytes(TOKENS))


class TestKeyedCache(ChunkCacheContract):
    """In memory and on disk: memory evicts what others store meanwhile."""

    @pytest.fixture
    def made(self, rig, tmp_path):
        memory = tier("memory", MemoryStore(SystemClock()), 12 * FRAME)
        return rig(
            [memory, disk(tmp_path)],
            slots=32,
            frame=FRAME,
            clock=SystemClock(),
            namespace=Namespace("contract", LAYOUT),
        )

    @pytest.fixture
    def cache(self, made):
        return made.engine.chunks

    @pytest.fixture
    def ledger(self, made):
        def held():
            made.engine.flush(60)
            ours = made.pool.ledger().items()
            return {owner: count for owner, count in ours if owner != MEMORY}

        return held

    @pytest.fixture
    def crowd(self, cache):
        def lease_all():
            leases = []
            while found := cache.allocate([spec("crowd")], "crowd", now()):
                leases += found
            return lambda: [lease.release() for lease in leases]

        return lease_all

    @pytest.fixture
    def closed(self, made, cache):
        made.engine.close()
        return cache


class TestKeyedCacheOverOwnMemory(TestKeyedCache):
    """The cache by key above disk: what is held are leases of the store and of the pool."""

    options = ()

    @pytest.fixture
    def made(self, rig, tmp_path):
        size = frame_bytes(LAYOUT.chunk_bytes(TOKENS))
        return rig(
            [
                tier("own", OwnMemoryStore(SystemClock(), **dict(self.options)), 12 * size),
                tier("disk", DiskStore(tmp_path)),
            ],
            slots=32,
            frame=size,
            clock=SystemClock(),
            namespace=Namespace("contract", LAYOUT),
        )

    @pytest.fixture
    def ledger(self, made):
        def held():
            made.engine.flush(60)
            there = made.tiers["own"].store.ledger()
            return {**made.pool.ledger(), **{k: n for k, n in there.items() if k != OWNER}}

        return held


@pytest.mark.thorough
class TestKeyedCacheOverReadOnlyMemory(TestKeyedCacheOverOwnMemory):
    options = (("readonly", True),)


@pytest.mark.thorough
class TestKeyedCacheOnDisk(TestKeyedCache):
    """On a disk tier alone: every hold reads."""

    @pytest.fixture
    def made(self, rig, tmp_path):
        return rig(
            [disk(tmp_path)],
            slots=32,
            frame=FRAME,
            clock=SystemClock(),
            namespace=Namespace("contract", LAYOUT),
        )


@pytest.mark.thorough
class TestServedChunks(TestKeyedCache):
    """Without an engine, in a pool that is one slot."""

    @pytest.fixture
    def made(self, tmp_path):
        tiers = [
            {"store": "memory", "budget": 12 * FRAME},
            {"store": "disk", "budget": "1GiB", "settings": {"root": str(tmp_path)}},
        ]
        loaded = load(environ={}, overrides={"pool": {"bytes": 32 * FRAME}, "tiers": tiers})
        with ServedChunks(loaded, discover(), SystemClock(), lambda keys: None) as served:
            yield served

    @pytest.fixture
    def cache(self, made):
        return made.chunks

    @pytest.fixture
    def ledger(self, made):
        def held():
            made.chunks.flush(soon())
            ours = made._chunks.stack.pool.ledger().items()
            return {owner: count for owner, count in ours if owner != MEMORY}

        return held

    @pytest.fixture
    def closed(self, made, cache):
        made.close()
        return cache


class TestNearService(ChunkServiceContract):
    """The tiers of this process, as requests see them: memory with little room, and a disk."""

    @pytest.fixture
    def service(self, rig, tmp_path):
        memory = tier("memory", MemoryStore(SystemClock()), 3 * FRAME)
        made = rig(
            [memory, disk(tmp_path)],
            slots=32,
            frame=FRAME,
            clock=SystemClock(),
            namespace=Namespace("contract", LAYOUT),
        )
        return made.engine._chunks


class TestHeapService(ChunkServiceContract):
    """The double of the contract kit."""

    @pytest.fixture
    def service(self):
        return HeapService(16)


def test_an_engine_over_the_double_stores_and_loads_prompts_as_over_tiers():
    service, clock = HeapService(64), SystemClock()
    runtime = Runtime(clock=clock, executor=Threads(), telemetry=RecordingTelemetry())
    requests = Pipeline(service, runtime)
    prompt = list(range(5 * TOKENS + 3))
    full = 5 * TOKENS
    with CacheEngine(Namespace("contract", LAYOUT), requests, PrefixChunker(TOKENS)) as engine:
        computed = HeapKV(LAYOUT, len(prompt)).compute(prompt)
        assert engine.store(prompt, computed).stored_tokens == full
        assert engine.store(prompt, computed).present_tokens == full
        assert engine.lookup(prompt).hit_tokens == full
        engine.prefetch("a", prompt)
        for lookup_id in ("a", None):
            loaded = HeapKV(LAYOUT, len(prompt))
            assert engine.retrieve(prompt, loaded, lookup_id=lookup_id).hit_tokens == full
            assert loaded.agrees(computed, full)
        other = [7, *prompt]
        with engine.store_layers(other, HeapKV(LAYOUT, len(other)).compute(other)) as write:
            for layer in range(LAYOUT.layers):
                write.layer_done(layer)
            assert write.result().stored_tokens == full
        loaded = HeapKV(LAYOUT, len(other))
        with engine.retrieve_layers(other, loaded) as read:
            assert list(read) == list(range(LAYOUT.layers))
            assert read.result().hit_tokens == full
        assert loaded.agrees(HeapKV(LAYOUT, len(other)).compute(other), full)
        assert engine.clear(prompt).chunks == 5
        assert engine.health().leases == {}
