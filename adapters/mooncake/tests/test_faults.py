"""What becomes of a tier while Mooncake's master or its only node is gone, frozen or full."""

from contextlib import closing
from itertools import count
from threading import Timer

import pytest

from hexkv.adapters.mooncake._native import NO_ROOM, library
from hexkv.contracts.doubles import ListSink, chunk_key
from hexkv.contracts.faults.apart import ProxyApart
from hexkv.contracts.store import BehindProxy
from hexkv.contracts.store._base import StoreCase
from hexkv.contracts.store.faulty._faults import Faults
from hexkv.contracts.store.faulty._late import LateWrites
from hexkv.plugins.clock import SystemClock
from hexkv.ports import Failed, Hit, Item, Miss, Stored, StoreFull, StoreUnreachable, TimedOut
from processes import PATIENCE, held_port, until
from servers.fixed_replies import FixedReplies
from servers.mooncake_servers import (
    LOOPBACK,
    Master,
    Node,
    Region,
    RegionSink,
    is_gone,
    soon,
    until_stored,
)

KEY = chunk_key("frame")


FRAME = bytes(range(200)) * 25
TTL = 6.0
"""Seconds of silence after which these masters forget a node; by default it is ten."""


@pytest.fixture
def pair(secluded, tmp_path):
    """A master and a node that nobody else needs."""
    with (
        Master(tmp_path, f"--client_ttl={TTL:.0f}") as master,
        Node(tmp_path, master, 64 << 20) as node,
    ):
        yield master, node


class Filler:
    """A client that leaves no room on any node, with objects that the master may not evict."""

    def __init__(self, master):
        mooncake = library()
        self._client = mooncake.MooncakeDistributedStore()
        code = self._client.setup(
            "127.0.0.1", "P2PHANDSHAKE", 0, 16 << 20, "tcp", "", master.address
        )
        assert code == 0
        self._pinned = mooncake.ReplicateConfig()
        self._pinned.with_hard_pin = True

    def fill(self):
        block = bytes(1 << 20)
        codes = (self._client.put(f"filler {i}", block, self._pinned) for i in count())
        assert next(code for code in codes if code) == NO_ROOM

    def empty(self):
        self._client.remove_by_regex("^filler", True)

    def close(self):
        self._client.close()


class MooncakeService(BehindProxy):
    """The master behind a proxy: whoever has lost it has lost the store."""

    can = BehindProxy.can | {"kill", "full"}

    def __init__(self, master, proxy):
        super().__init__(proxy)
        self._master = master
        self._filler = None

    def kill(self):
        self._master.kill()

    def start(self):
        self._master.start()

    def stall(self):
        self._master.freeze()

    def resume(self):
        self._master.thaw()

    def fill(self):
        self._filler = Filler(self._master)
        self._filler.fill()

    def mend(self):
        super().mend()
        if self._filler is not None:
            self._filler.empty()
            self._filler.close()
            self._filler = None


@pytest.mark.thorough
class TestMaster(Faults, LateWrites, StoreCase):
    """The master is killed, restarted, frozen, slow, cut off, talks nonsense, and has no room."""

    loses = True

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
    until_stored(store, {KEY: FRAME})
    there = SystemClock().now()
    node.kill()
    (outcome,) = store.read([KEY], ListSink(), soon())
    assert is_gone(outcome, there, TTL), outcome
    with Node(tmp_path, master):
        until_stored(store, {KEY: FRAME})
        assert store.read([KEY], ListSink(), soon()) == [Hit(5000)]


def test_a_frozen_node_costs_the_deadline_and_never_writes_into_memory_given_back(pair, open_store):
    master, node = pair
    store = open_store(master.address)
    until_stored(store, {KEY: FRAME})
    sink, limit = ListSink(), soon(0.3)
    node.freeze()
    assert store.read([KEY], sink, limit) == [TimedOut()]
    sink.reclaim()  # a view that somebody still held would be an error here
    node.thaw()
    until_stored(store, {KEY: FRAME})


def test_registered_memory_is_used_in_place(master, open_store):
    store = open_store(master.address, staging_bytes=0)
    region = Region(4 << 20)
    store.register(region)
    frame = bytes(range(256)) * 4096
    region.buffer[: 1 << 20] = frame
    item = Item(KEY, region.buffer[: 1 << 20])
    assert store.write([item], soon()) == [Stored(1 << 20)]
    assert store.read([KEY], RegionSink(region, 2 << 20), soon()) == [Hit(1 << 20)]
    same = region.buffer[2 << 20 : 3 << 20] == frame
    assert same
    assert store._mover._staging._idle == []


def test_in_registered_memory_a_call_returns_no_earlier_than_it_is_out_of_it(pair, open_store):
    master, node = pair
    store = open_store(master.address)
    region = Region(2 << 20)
    store.register(region)
    region.buffer[: 1 << 20] = b"\x01" * (1 << 20)
    store.write([Item(KEY, region.buffer[: 1 << 20])], soon())
    node.freeze()
    thaw = Timer(1.5, node.thaw)
    thaw.start()
    sink = RegionSink(region, 1 << 20)
    (outcome,) = store.read([KEY], sink, soon(0.3))
    arrived = bytes(region.buffer[1 << 20 :])
    thaw.join()
    # Whatever it says, nothing is written there afterwards; and a hit is true.
    if outcome == Hit(1 << 20):
        assert arrived.count(1) == 1 << 20
    until_stored(store, {KEY: FRAME})
    unchanged = bytes(region.buffer[1 << 20 :]) == arrived
    assert unchanged


def test_what_has_no_room_is_refused_as_full(pair, open_store):
    store = open_store(pair[0].address)
    until_stored(store, {KEY: FRAME})
    (outcome,) = store.write([Item(KEY, memoryview(bytes(96 << 20)))], soon())
    assert isinstance(outcome, Failed)
    assert isinstance(outcome.error, StoreFull)


def test_what_is_pinned_stays_and_what_has_no_room_beside_it_is_refused(pair, open_store):
    master, _ = pair
    store = open_store(master.address, pin=True)
    until_stored(store, {KEY: FRAME})
    more = Item(chunk_key("more"), memoryview(bytes(1 << 20)))
    with closing(Filler(master)) as filler:
        filler.fill()
        (outcome,) = store.write([more], soon())
        assert isinstance(outcome, Failed)
        assert isinstance(outcome.error, StoreFull)
        assert store.read([more.key, KEY], ListSink(), soon()) == [Miss(), Hit(len(FRAME))]
        filler.empty()
    assert store.write([more], soon()) == [Stored(1 << 20)]


def test_what_is_not_pinned_goes_by_and_by_when_there_is_no_room(pair, open_store):
    store = open_store(pair[0].address)
    block = memoryview(bytes(8 << 20))
    keys = [chunk_key(f"block {i}") for i in range(24)]
    for key in keys:
        until(lambda key=key: store.write([Item(key, block)], soon()) == [Stored(8 << 20)])
    there = store.contains(keys, soon())
    assert sum(there) <= 8
    assert there[-1]


@pytest.mark.thorough
def test_a_master_that_is_not_there_fails_at_once_and_delays_no_start(open_store):
    store = open_store(f"127.0.0.1:{held_port()}")
    with pytest.raises(StoreUnreachable):
        store.contains([KEY], soon())


def test_a_master_that_comes_later_is_found(secluded, open_store, tmp_path):
    master = Master(tmp_path)
    store = open_store(master.address)
    with pytest.raises(StoreUnreachable):
        store.contains([KEY], soon(0.1))
    with master, Node(tmp_path, master):
        until_stored(store, {KEY: FRAME})


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("reply", "says", "seconds"),
    [
        (b"-ERR unknown command\r\n", "RPC call failed", PATIENCE),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "RPC call failed", PATIENCE),
        (bytes(range(256)) * 100, "RPC call failed", PATIENCE),
        (b"", "no answer in 3.0 s", 3.0),
    ],
    ids=["a Redis", "a web server", "nonsense", "silence"],
)
def test_another_server_in_the_masters_place_is_out_of_reach_until_the_master_is_there(
    open_store, tmp_path, reply, says, seconds
):
    with closing(FixedReplies(reply, early=True)) as stranger:
        store = open_store(f"127.0.0.1:{stranger.port}", connect_timeout=seconds)
        with pytest.raises(StoreUnreachable):
            store.contains([KEY], soon(0.05))
        with pytest.raises(StoreUnreachable, match=says):
            store.contains([KEY], soon(2 * PATIENCE))
    with Master(tmp_path, port=stranger.port) as master, Node(tmp_path, master):
        until_stored(store, {KEY: FRAME})


def test_what_the_library_complains_of_is_what_the_store_says(master, open_store, monkeypatch):
    for name, value in LOOPBACK.items():
        monkeypatch.setenv(name, value)
    store = open_store(master.address, metadata="http://127.0.0.1:1/metadata")
    with pytest.raises(StoreUnreachable, match=r"Failed to connect to 127\.0\.0\.1 port 1 "):
        store.contains([KEY], soon(2 * PATIENCE))
