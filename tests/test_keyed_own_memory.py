"""The contract of caches by key over leases that the core did not make."""

import pytest

from hexkv.adapters.local.disk import DiskStore
from hexkv.contracts.chunk_cache import ChunkCacheContract
from hexkv.contracts.chunk_cache._base import LAYOUT as KEYED
from hexkv.contracts.chunk_cache._base import TOKENS, now, spec
from hexkv.contracts.own_memory import OWNER, OwnMemoryStore
from hexkv.plugins.clock import SystemClock
from hexkv.ports import Namespace, frame_bytes
from rigging import tier


class TestKeyedCacheOverOwnMemory(ChunkCacheContract):
    """The cache by key above disk: what is held are leases of the store and of the pool."""

    options = ()

    @pytest.fixture
    def made(self, rig, tmp_path):
        size = frame_bytes(KEYED.chunk_bytes(TOKENS))
        return rig(
            [
                tier("own", OwnMemoryStore(SystemClock(), **dict(self.options)), 12 * size),
                tier("disk", DiskStore(tmp_path)),
            ],
            slots=32,
            frame=size,
            clock=SystemClock(),
            namespace=Namespace("contract", KEYED),
        )

    @pytest.fixture
    def cache(self, made):
        return made.engine.chunks

    @pytest.fixture
    def ledger(self, made):
        def held():
            made.engine.flush(60)
            there = made.tiers["own"].store.ledger()
            return {**made.pool.ledger(), **{k: n for k, n in there.items() if k != OWNER}}

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


@pytest.mark.thorough
class TestKeyedCacheOverReadOnlyMemory(TestKeyedCacheOverOwnMemory):
    options = (("readonly", True),)
