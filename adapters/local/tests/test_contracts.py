"""The contracts that both stores and the plugin keep."""

import pytest

from hexkv.adapters.local.disk import DiskStore
from hexkv.adapters.local.memory import MemoryStore, _Copy, _Kept
from hexkv.contracts.doubles import ManualClock
from hexkv.contracts.plugin import PluginContract
from hexkv.contracts.store import StoreContract


class Files:
    """The back door to a disk store: the documented file layout, and nothing of the store."""

    def __init__(self, root):
        self.root = root

    def path(self, key):
        return self.root / key.hex()[32:34] / f"{key.hex()}.hexkv"

    def get(self, key):
        return self.path(key).read_bytes() if self.path(key).exists() else None

    def put(self, key, frame):
        self.path(key).parent.mkdir(exist_ok=True)
        self.path(key).write_bytes(frame)

    def keys(self):
        return {bytes.fromhex(path.stem) for path in self.root.glob("??/*.hexkv")}


class TestDiskStore(StoreContract):
    @pytest.fixture
    def store(self, tmp_path):
        store = DiskStore(tmp_path, capacity=128 << 20)
        yield store
        store.close()

    @pytest.fixture
    def raw(self, tmp_path):
        return Files(tmp_path)

    @pytest.fixture
    def reopen(self, store, tmp_path):
        opened = [store]

        def again():
            opened[-1].close()
            opened.append(DiskStore(tmp_path, capacity=128 << 20))
            return opened[-1]

        yield again
        opened[-1].close()


class Heap:
    """The back door to a memory store: its dictionary of what it holds."""

    def __init__(self, store):
        self.store = store

    def get(self, key):
        kept = self.store._chunks.get(key)
        return None if kept is None else bytes(kept.held.frame)

    def put(self, key, frame):
        self.store._chunks[key] = _Kept(_Copy(frame), len(frame), 0.0)

    def keys(self):
        return set(self.store._chunks)


class TestMemoryStore(StoreContract):
    @pytest.fixture
    def store(self):
        store = MemoryStore(ManualClock())
        yield store
        store.close()

    @pytest.fixture
    def raw(self, store):
        return Heap(store)


class TestPlugin(PluginContract):
    entry_point = "local"
