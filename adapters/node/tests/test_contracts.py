"""A node over its socket keeps the contracts of caches by key and by tokens, and of memory."""

import pytest

from hexkv.adapters.node.memory import SharedMemory
from hexkv.contracts.chunk_cache._base import TOKENS, soon
from hexkv.contracts.chunk_cache.service import ChunkServiceContract
from hexkv.contracts.memory import MemoryContract
from hexkv.contracts.prefix_cache import Damaged, PrefixCacheContract, Stuck
from hexkv.contracts.segments import MINIMUM, SEPARATOR, SegmentCacheContract
from hexkv.ports import PoolExhausted
from nodes import FRAME, Node, NodeProcess, OverANode

RULES = {"separator": [*SEPARATOR], "minimum": MINIMUM}


class TestNode(OverANode):
    """Client and server in one process: memory and disk, in a pool that others fill meanwhile."""

    @pytest.fixture
    def node(self, tmp_path):
        with Node(tmp_path) as node:
            yield node
            node.at_rest()

    @pytest.fixture
    def engine(self, node):
        with node.engine() as engine:
            yield engine


@pytest.mark.thorough
class TestNodeProcess(TestNode):
    """The node is a process of its own, as operators start it."""

    @pytest.fixture
    def node(self, tmp_path):
        with NodeProcess(tmp_path) as node:
            yield node
            node.at_rest()


class TestService(ChunkServiceContract):
    """A node's client, as requests see it."""

    @pytest.fixture
    def service(self, tmp_path):
        with Node(tmp_path) as node, node.engine() as engine:
            yield engine._chunks


@pytest.mark.thorough
class TestPrefixes(PrefixCacheContract):
    """The cache by tokens, as programs open it, over a node with a small memory and a disk."""

    chunk = TOKENS
    most = 40

    @pytest.fixture
    def node(self, tmp_path):
        disk = {
            "store": "disk",
            "budget": self.most * FRAME,
            "settings": {"root": str(tmp_path / "disk")},
        }
        memory = {"store": "memory", "budget": 16 * FRAME}
        with Node(tmp_path, slots=48, tiers=[memory, disk]) as node:
            yield node
            node.at_rest()

    @pytest.fixture
    def cache(self, node):
        with node.engine() as engine:
            yield engine

    @pytest.fixture
    def damaged(self, node, tmp_path):
        served = node.served

        def spoil():
            for file in (tmp_path / "disk").rglob("*"):
                if file.is_file() and file.stat().st_size >= FRAME:
                    data = bytearray(file.read_bytes())
                    data[FRAME // 2] ^= 1
                    file.write_bytes(data)
            served.clear(None, ["memory"], soon())

        with node.engine() as engine:
            yield Damaged(engine, spoil)

    @pytest.fixture
    def stuck(self, tmp_path):
        """The node is stopped, as a frozen machine's would be."""
        with NodeProcess(tmp_path) as node:
            quick = dict.fromkeys(("lookup", "retrieve", "store", "close"), 0.3)
            with node.engine(deadlines=quick) as engine:
                yield Stuck(engine, node.freeze)
                node.thaw()


@pytest.mark.thorough
class TestSharedMemory(MemoryContract):
    @pytest.fixture
    def provider(self):
        return SharedMemory(available=lambda: 64 << 20)


@pytest.mark.thorough
class TestSegments(SegmentCacheContract):
    """The cache of segments over a node; a second engine on it is another process's."""

    chunk = TOKENS

    @pytest.fixture
    def node(self, tmp_path):
        with Node(tmp_path, slots=96) as node:
            yield node
            node.at_rest()

    @pytest.fixture
    def cache(self, node):
        with node.engine(segments=RULES) as engine:
            yield engine

    @pytest.fixture
    def other(self, node):
        with node.engine(segments=RULES) as engine:
            yield engine

    @pytest.fixture
    def stuck(self, tmp_path):
        """The node is stopped, as a frozen machine's would be."""
        with NodeProcess(tmp_path) as node:
            quick = dict.fromkeys(("lookup", "retrieve", "store", "close"), 0.3)
            with node.engine(deadlines=quick, segments=RULES) as engine:
                yield Stuck(engine, node.freeze)
                node.thaw()


def test_too_few_huge_pages_are_said_to_be_those():
    memory = SharedMemory(huge_pages=True)
    with pytest.raises(PoolExhausted, match=r"available in free huge pages .*vm\.nr_hugepages"):
        memory.allocate(1 << 50)
