"""What becomes of a tier while Mooncake's master or its only node is gone, frozen or full."""

import mmap
from threading import Event

import pytest

from hexkv.contracts.doubles import ListSink, chunk_key
from hexkv.contracts.faults.apart import ProxyApart
from hexkv.contracts.store import BehindProxy
from hexkv.contracts.store._base import StoreCase
from hexkv.contracts.store._faults import Faults
from hexkv.plugins.clock import SystemClock
from hexkv.ports import Deadline, Failed, Hit, Item, Stored, StoreFull, StoreUnreachable, TimedOut
from mooncake_servers import Master, Node, free_port

KEY = chunk_key("frame")


def soon(seconds):
    return Deadline.after(SystemClock(), seconds)


def until_stored(store, size=5000):
    limit, pause = soon(60), Event()
    while store.write([Item(KEY, memoryview(bytes(size)))], soon(10)) != [Stored(size)]:
        assert not limit.expired, "the tier did not come back"
        pause.wait(0.05)


@pytest.fixture
def pair(secluded, tmp_path):
    """A master and a node that nobody else needs. A node that is silent is soon forgotten."""
    with Master(tmp_path, "--client_ttl=2") as master, Node(tmp_path, master) as node:
        yield master, node


class MooncakeService(BehindProxy):
    """The master behind a proxy: whoever has lost it has lost the store."""

    can = BehindProxy.can | {"kill"}

    def __init__(self, master, proxy):
        super().__init__(proxy)
        self._master = master

    def kill(self):
        self._master.kill()

    def start(self):
        self._master.start()

    def stall(self):
        self._master.freeze()

    def resume(self):
        self._master.thaw()


class TestMaster(Faults, StoreCase):
    """The master is killed, restarted, frozen, slow, cut off, and talks nonsense."""

    @pytest.fixture
    def service(self, pair):
        # Apart: Mooncake's client keeps the interpreter's lock while it connects.
        with ProxyApart(("127.0.0.1", pair[0].port)) as proxy:
            yield MooncakeService(pair[0], proxy)

    @pytest.fixture
    def store(self, service, open_store):
        return open_store(service.proxy.address)


def test_a_dead_node_fails_its_chunks_and_a_new_one_serves(pair, open_store, tmp_path):
    master, node = pair
    store = open_store(master.address)
    until_stored(store)
    node.kill()
    (outcome,) = store.read([KEY], ListSink(), soon(10))
    assert isinstance(outcome, Failed)
    assert isinstance(outcome.error, StoreUnreachable)
    with Node(tmp_path, master):
        until_stored(store)
        assert store.read([KEY], ListSink(), soon(10)) == [Hit(5000)]


def test_a_frozen_node_costs_the_deadline_and_never_writes_into_memory_given_back(pair, open_store):
    master, node = pair
    store = open_store(master.address)
    until_stored(store)
    node.freeze()
    sink = ListSink()
    assert store.read([KEY], sink, soon(0.3)) == [TimedOut()]
    sink.reclaim()  # a view that somebody still held would be an error here
    node.thaw()
    until_stored(store)


class Region:
    """Memory as a pool has it."""

    def __init__(self, size):
        import ctypes

        self._map = mmap.mmap(-1, size)
        self.buffer = memoryview(self._map)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))

    def close(self):
        self.buffer.release()
        self._map.close()


class RegionSink:
    """Rooms in registered memory, one behind the other."""

    def __init__(self, region, start):
        self._buffer = region.buffer
        self._next = start

    def room(self, index, size):
        start, self._next = self._next, self._next + size
        return self._buffer[start : start + size]


def test_registered_memory_is_used_in_place(master, open_store):
    store = open_store(master.address, staging_bytes=0)
    region = Region(4 << 20)
    store.register(region)
    frame = bytes(range(256)) * 4096
    region.buffer[: 1 << 20] = frame
    item = Item(KEY, region.buffer[: 1 << 20])
    assert store.write([item], soon(30)) == [Stored(1 << 20)]
    assert store.read([KEY], RegionSink(region, 2 << 20), soon(30)) == [Hit(1 << 20)]
    same = region.buffer[2 << 20 : 3 << 20] == frame
    assert same
    assert store._mover._staging._idle == []


def test_in_registered_memory_a_call_returns_no_earlier_than_it_is_out_of_it(pair, open_store):
    master, node = pair
    store = open_store(master.address)
    region = Region(2 << 20)
    store.register(region)
    region.buffer[: 1 << 20] = b"\x01" * (1 << 20)
    store.write([Item(KEY, region.buffer[: 1 << 20])], soon(30))
    node.freeze()
    from threading import Timer

    thaw = Timer(1.5, node.thaw)
    thaw.start()
    sink = RegionSink(region, 1 << 20)
    (outcome,) = store.read([KEY], sink, soon(0.3))
    arrived = bytes(region.buffer[1 << 20 :])
    thaw.join()
    # Whatever it says, nothing is written there afterwards; and a hit is true.
    if outcome == Hit(1 << 20):
        assert arrived.count(1) == 1 << 20
    until_stored(store)
    unchanged = bytes(region.buffer[1 << 20 :]) == arrived
    assert unchanged


def test_what_has_no_room_is_refused_as_full(secluded, open_store, tmp_path):
    with Master(tmp_path) as master, Node(tmp_path, master, 32 << 20):
        store = open_store(master.address)
        until_stored(store)
        (outcome,) = store.write([Item(KEY, memoryview(bytes(48 << 20)))], soon(30))
        assert isinstance(outcome, Failed)
        assert isinstance(outcome.error, StoreFull)


def test_a_master_that_is_not_there_fails_at_once_and_delays_no_start(open_store):
    store = open_store(f"127.0.0.1:{free_port()}", connect_timeout=8.0)
    with pytest.raises(StoreUnreachable):
        store.contains([KEY], soon(10))


def test_a_master_that_comes_later_is_found(secluded, open_store, tmp_path):
    master = Master(tmp_path)
    store = open_store(master.address, connect_timeout=8.0)
    with pytest.raises(StoreUnreachable):
        store.contains([KEY], soon(0.1))
    with master, Node(tmp_path, master):
        until_stored(store)
