"""The cache in this process keeps the contract of caches by tokens."""

import pytest

from configured import CHUNK, FRAME, LAYOUT, PATIENT
from hexkv.api import Namespace, open_cache
from hexkv.contracts.prefix_cache import Damaged, Faulty, PrefixCacheContract
from mutants.caches.prefix_caches import EngineContract

NAMESPACE = Namespace("toy", LAYOUT)


class TestOverMemory(EngineContract):
    pass


class TestOverMemoryAndDisk(PrefixCacheContract):
    """As programs open it, with a memory tier that is too small for all of it."""

    chunk = CHUNK
    most = 40

    def open(self, root, **pool):
        disk = {"store": "disk", "budget": self.most * FRAME, "settings": {"root": str(root)}}
        memory = {"store": "memory", "budget": 16 * FRAME}
        wanted = {"chunk": {"size": CHUNK}, "pool": {"bytes": 48 * FRAME}, "deadlines": PATIENT}
        return open_cache(wanted | {"tiers": [memory, disk]} | pool, namespace=NAMESPACE)

    @pytest.fixture
    def cache(self, tmp_path):
        with self.open(tmp_path) as cache:
            yield cache

    @pytest.fixture
    def damaged(self, tmp_path):
        disk = {"store": "disk", "settings": {"root": str(tmp_path)}}
        with self.open(tmp_path, tiers=[disk]) as cache:

            def spoil():
                for file in tmp_path.rglob("*"):
                    if file.is_file() and file.stat().st_size >= FRAME:
                        data = bytearray(file.read_bytes())
                        data[FRAME // 2] ^= 1
                        file.write_bytes(data)

            yield Damaged(cache, spoil)

    @pytest.fixture
    def faulty(self, tmp_path, bad_sectors):
        disk = {"store": "disk", "settings": {"root": str(tmp_path)}}
        with self.open(tmp_path, tiers=[disk]) as cache:
            yield Faulty(cache, lambda: bad_sectors(tmp_path, cache.chunk_keys(self.prompt())[1]))
