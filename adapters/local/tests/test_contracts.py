"""The contracts that both stores and the plugin keep."""

import itertools
import os
from contextlib import contextmanager

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


class Strangers:
    """Files of somebody else's in and below a store's directory."""

    def __init__(self, root):
        # Not *.hexkv: files of that name in there are the store's.
        self.paths = [root / "notes.txt", root / "ab" / "copy.hexkv.bak", root / "other" / "file"]
        for number, path in enumerate(self.paths):
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(bytes([number]) * 5000)

    def look(self):
        return {path.name: path.read_bytes() for path in self.paths if path.exists()}


class File:
    """One file: written anew, published by its name, and read; all of it in one call each.

    Past the page cache where the store goes past it.
    """

    def __init__(self, path, direct):
        self.path = path
        self.direct = os.O_DIRECT if direct != "off" else 0

    def write(self, frame):
        aside = self.path.with_suffix(".new")
        with self._opened(aside, os.O_RDWR | os.O_CREAT) as file:
            assert os.pwrite(file, frame, 0) == len(frame)
        aside.replace(self.path)

    def read(self, into):
        with self._opened(self.path, os.O_RDONLY) as file:
            assert os.preadv(file, [into], 0) == len(into)

    @contextmanager
    def _opened(self, path, flags):
        try:
            file = os.open(path, flags | self.direct)
        except OSError:  # a file system without O_DIRECT, such as tmpfs
            file = os.open(path, flags)
        try:
            yield file
        finally:
            os.close(file)


class TestDiskStore(StoreContract):
    direct = "auto"

    @pytest.fixture
    def sibling(self, tmp_path_factory):
        store = DiskStore(tmp_path_factory.mktemp("beside"), capacity=1 << 20, direct=self.direct)
        yield store
        store.close()

    @pytest.fixture
    def foreign(self, store, tmp_path):
        return Strangers(tmp_path).look

    @pytest.fixture
    def limit(self, tmp_path_factory):
        return File(tmp_path_factory.mktemp("limit") / "file", self.direct)

    @pytest.fixture
    def store(self, tmp_path):
        store = DiskStore(tmp_path, capacity=128 << 20, direct=self.direct)
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
            opened.append(DiskStore(tmp_path, capacity=128 << 20, direct=self.direct))
            return opened[-1]

        yield again
        opened[-1].close()


class TestDiskStoreThroughTheCache(TestDiskStore):
    direct = "off"


class TestSharedDiskStore(TestDiskStore):
    """Every call goes to another of three stores that share the directory."""

    @pytest.fixture
    def store(self, tmp_path):
        stores = [
            DiskStore(tmp_path, capacity=128 << 20, direct=direct)
            for direct in ("auto", "off", "auto")
        ]
        yield InTurn(stores)
        for store in stores:
            store.close()

    @pytest.fixture
    def reopen(self):
        return None


class InTurn:
    def __init__(self, stores):
        self.stores = stores
        self.turns = itertools.count()

    def any(self):
        return self.stores[next(self.turns) % len(self.stores)]

    def contains(self, keys, deadline):
        return self.any().contains(keys, deadline)

    def read(self, keys, sink, deadline):
        return self.any().read(keys, sink, deadline)

    def read_range(self, key, start, into, deadline):
        return self.any().read_range(key, start, into, deadline)

    def write(self, items, deadline):
        return self.any().write(items, deadline)

    def delete(self, keys, deadline):
        return self.any().delete(keys, deadline)

    def scan(self):
        return self.any().scan()

    def quarantine(self, keys, deadline):
        self.any().quarantine(keys, deadline)

    def close(self):
        for store in self.stores:
            store.close()


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
