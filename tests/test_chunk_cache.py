"""The keyed cache of an engine keeps the promises of its port, over every kind of tier."""

import pytest

from hexkv.adapters.local.disk import DiskStore
from hexkv.contracts.chunk_cache import ChunkCacheContract
from hexkv.contracts.chunk_cache._base import LAYOUT, TOKENS, now, soon, spec
from hexkv.contracts.doubles.own_memory import OWNER, OwnMemoryStore
from hexkv.plugins.clock import SystemClock
from hexkv.plugins.composition.served import ServedChunks
from hexkv.plugins.configuration.config import load
from hexkv.plugins.discovery.discovery import discover
from hexkv.plugins.memory.store import MemoryStore
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
