"""The store keeps the contract on a double of the client's published calls. No server is here."""

import ctypes
from threading import Event, Lock

import pytest

from hexkv.adapters.infinistore.plugin import InfiniStoreSettings
from hexkv.adapters.infinistore.store import EMPTY, InfiniStore
from hexkv.contracts.doubles import ListSink, chunk_key, deadline
from hexkv.contracts.plugin import PluginContract
from hexkv.contracts.store import Service, StoreContract
from hexkv.plugins.spec import SettingError
from hexkv.ports import Failed, Hit, Item, Miss, Stored, StoreError, TimedOut

KEYS = [chunk_key(name) for name in "abc"]


class LibraryError(Exception):
    """The library raises bare exceptions: nobody may catch this one by name."""


class Server(Service):
    """Values in a dictionary, which connections of the double's share; and ways to break it."""

    can = frozenset({"kill", "stall", "full"})

    def __init__(self):
        self.values, self.lock = {}, Lock()
        self.alive, self.goes_on, self.room = True, Event(), 1 << 40
        self.goes_on.set()

    def connect(self):
        self.answers()
        return Connection(self)

    def answers(self):
        self.goes_on.wait()
        if not self.alive:
            raise LibraryError("Failed to initialize remote connection")

    def kill(self):
        self.alive = False

    def start(self):
        self.alive = True

    def stall(self):
        self.goes_on.clear()

    def resume(self):
        self.goes_on.set()

    def fill(self):
        self.room = 1000

    def mend(self):
        self.room = 1 << 40


class Connection:
    """``InfinityConnection`` over TCP, as its text of 0.2.35 has it. One thread at a time."""

    def __init__(self, server):
        self.server, self.using, self.open = server, Lock(), True

    def call(self):
        assert self.open, "a connection is used that was closed"
        assert self.using.acquire(blocking=False), "two threads use one connection"
        try:
            self.server.answers()
        finally:
            self.using.release()
        return self.server.lock

    def check_exist(self, key):
        with self.call():
            return key in self.server.values

    def tcp_read_cache(self, key):
        import numpy as np

        with self.call():
            if key not in self.server.values:
                raise LibraryError("Failed to read from infinistore, ret = -404")
            return np.frombuffer(self.server.values[key], np.uint8)

    def tcp_write_cache(self, key, ptr, size):
        if not key or not size or not ptr:
            raise LibraryError("key is empty, size is 0 or ptr is 0")
        with self.call():
            if size > self.server.room:
                raise LibraryError("Failed to write to infinistore, ret = -507")
            self.server.values[key] = ctypes.string_at(ptr, size)

    def delete_keys(self, keys):
        with self.call():
            return sum(self.server.values.pop(key, None) is not None for key in keys)

    def close(self):
        self.open = False


class Values:
    """The back door: the server's dictionary."""

    def __init__(self, server, prefix="hexkv:"):
        self.values, self.prefix = server.values, prefix

    def get(self, key):
        found = self.values.get(self.prefix + key.hex())
        return b"" if found == EMPTY else found

    def put(self, key, frame):
        self.values[self.prefix + key.hex()] = frame or EMPTY

    def keys(self):
        found = [
            name.removeprefix(self.prefix) for name in self.values if name.startswith(self.prefix)
        ]
        return {bytes.fromhex(name) for name in found}


@pytest.fixture
def server():
    found = Server()
    yield found
    found.resume()


@pytest.fixture
def store(server):
    made = InfiniStore(server.connect, "hexkv:", 8)
    yield made
    made.close()


@pytest.mark.thorough
class TestInfiniStore(StoreContract):
    @pytest.fixture
    def store(self, server):
        made = InfiniStore(server.connect, "hexkv:", 8)
        yield made
        made.close()

    @pytest.fixture
    def raw(self, server):
        return Values(server)

    @pytest.fixture
    def service(self, server):
        return server

    @pytest.fixture
    def sibling(self, server):
        made = InfiniStore(server.connect, "another:", 8)
        yield made
        made.close()

    @pytest.fixture
    def foreign(self, server):
        server.values["somebody else's"] = b"bytes"
        return lambda: {name: v for name, v in server.values.items() if name == "somebody else's"}


@pytest.mark.thorough
class TestPlugin(PluginContract):
    entry_point = "infinistore"


def test_frames_come_back_and_a_server_that_hangs_costs_a_deadline(server, store):
    items = [Item(KEYS[0], memoryview(b"frame" * 1000)), Item(KEYS[1], memoryview(b""))]
    assert store.write(items, deadline()) == [Stored(5000), Stored(0)]
    assert store.contains(KEYS, deadline()) == [True, True, False]
    sink = ListSink()
    assert store.read(KEYS, sink, deadline()) == [Hit(5000), Hit(0), Miss()]
    assert sink.data(0) == b"frame" * 1000
    server.stall()
    assert store.read(KEYS[:1], ListSink(), deadline(0.05)) == [TimedOut()]
    with pytest.raises(StoreError):
        store.contains(KEYS[:1], deadline(0.05))
    server.resume()
    server.kill()
    (outcome,) = store.read(KEYS[:1], ListSink(), deadline())
    assert isinstance(outcome, Failed)
    server.start()
    assert store.delete([KEYS[0], KEYS[2]], deadline()) == [True, False]
    (outcome,) = store.write([Item(KEYS[2], memoryview(EMPTY))], deadline())
    assert isinstance(outcome, Failed)
    for wrong in ({"address": "host"}, {"prefix": "a b"}, {"connections": 0}):
        with pytest.raises(SettingError):
            InfiniStoreSettings(**wrong)
