"""The contracts that both stores and the plugin keep."""

import pytest

from hexkv.adapters.local._frame_file import FrameMemory
from hexkv.adapters.local.disk import DiskStore
from hexkv.adapters.local.heap import HeapStore, _filled, _read
from hexkv.adapters.local.heap import _Kept as _InHeap
from hexkv.contracts.doubles import ManualClock
from hexkv.contracts.plugin import PluginContract
from hexkv.contracts.store import StoreContract
from hexkv.plugins.clock import SystemClock
from media.chunk_files import Copy, File
from media.folder_contract import FolderContract
from media.in_turn import SettingAside


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


class TestDiskStore(FolderContract):
    largest = 3 << 30
    direct = "auto"

    @pytest.fixture
    def foreign(self, store, tmp_path):
        return Strangers(tmp_path).look

    @pytest.fixture
    def limit(self, tmp_path_factory):
        place = tmp_path_factory.mktemp("limit") / "file"
        return File(place, direct=self.direct != "off")

    @pytest.fixture
    def aside(self, raw):
        return raw.aside

    @pytest.fixture
    def make(self):
        return lambda root: DiskStore(root, capacity=128 << 20, direct=self.direct)


@pytest.mark.thorough
class TestDiskStoreThroughTheCache(TestDiskStore):
    largest = FolderContract.largest
    direct = "off"


def three_on(root):
    """Three stores that share the directory *root*."""
    return SettingAside(
        [DiskStore(root, capacity=128 << 20, direct=direct) for direct in ("auto", "off", "auto")]
    )


@pytest.mark.thorough
class TestSharedDiskStore(TestDiskStore):
    """Every call goes to another of three stores that share the directory."""

    largest = FolderContract.largest

    @pytest.fixture
    def make(self):
        return three_on


class Mapped:
    """The back door to a heap store."""

    def __init__(self, store):
        self.store = store

    def get(self, key):
        kept = self.store._kept.get(key)
        if kept is None:
            return None
        frame = memoryview(bytearray(len(kept.memory)))
        _read(kept.memory, 0, frame)
        return bytes(frame)

    def put(self, key, frame):
        self.store._kept[key] = _InHeap(_filled(memoryview(frame)), 0.0)
        self.store._used += len(frame)

    def keys(self):
        return set(self.store._kept)


@pytest.mark.thorough
class TestHeapStore(StoreContract):
    @pytest.fixture
    def store(self):
        store = HeapStore(SystemClock(), 128 << 20)
        yield store
        store.close()

    @pytest.fixture
    def raw(self, store):
        return Mapped(store)

    @pytest.fixture
    def sibling(self):
        store = HeapStore(ManualClock(), 1 << 20)
        yield store
        store.close()

    @pytest.fixture
    def limit(self):
        return Copy()


class FileCopy:
    """What a file in memory can do, which no other process has open."""

    def __init__(self):
        self._memory = FrameMemory()

    def write(self, frame):
        self._kept = self._memory.reserve(len(frame)).fill(frame)

    def read(self, into):
        assert self._kept.copy(0, into)


@pytest.mark.thorough
class TestHeapStoreInAFile(TestHeapStore):
    """The same, where another process could go on with it."""

    @pytest.fixture
    def store(self):
        store = HeapStore(SystemClock(), 128 << 20, passes_on=True)
        yield store
        store.close()

    @pytest.fixture
    def limit(self):
        return FileCopy()


class TestPlugin(PluginContract):
    entry_point = "local"
