"""The reference double of the keyed cache keeps every promise."""

import pytest

from hexkv.contracts.chunk_cache import ChunkCacheContract
from hexkv.contracts.chunk_cache.double import HeapChunkCache


@pytest.mark.thorough
class TestHeapChunkCache(ChunkCacheContract):
    @pytest.fixture
    def cache(self):
        return HeapChunkCache(blocks=16)

    @pytest.fixture
    def ledger(self, cache):
        return cache.ledger

    @pytest.fixture
    def crowd(self, cache):
        def lease_all():
            blocks = [lease for _ in range(16) for lease in self.fill(cache)]
            return lambda: [lease.release() for lease in blocks]

        return lease_all

    @staticmethod
    def fill(cache):
        from hexkv.contracts.chunk_cache._base import soon, spec

        return cache.allocate([spec("crowd")], "crowd", soon())

    @pytest.fixture
    def closed(self, cache):
        cache.close()
        return cache
