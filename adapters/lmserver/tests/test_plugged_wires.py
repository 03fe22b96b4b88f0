"""Wires of plugins over the server's own port: told apart by their first bytes, kept apart."""

import socket
from contextlib import closing, contextmanager
from hashlib import sha256
from threading import Thread

import pytest

from hexkv.adapters.lmserver._arena import Arena, room
from hexkv.adapters.lmserver._shelf import HISTORIC, MemoryShelf
from hexkv.adapters.lmserver.server import Server, listen
from hexkv.adapters.net.connection import Limits
from hexkv.adapters.net.serving import part
from hexkv.plugins.clock import SystemClock
from hexkv.plugins.discovery import discover
from hexkv.plugins.indexing import tier_index
from hexkv.plugins.spec import OpenContext
from hexkv.ports import ConfigError
from lm_servers import RawHexkv
from processes import PATIENCE

BUDGET = 8 << 20


class Notes:
    """A wire of one letter: ``p`` keeps ten bytes, ``g`` gives them, ``d`` deletes them."""

    scheme = "notes"
    starts = (b"NOTE",)

    def __init__(self, starts=starts):
        self.starts = starts

    def session(self, connection, values):
        return NotesSession(connection, values)


class NotesSession:
    def __init__(self, connection, values):
        self.connection, self.values = connection, values

    def run(self):
        stream, digest = self.connection.stream, sha256(b"notes the only one").digest()
        assert self.connection.begin(4) == b"NOTE"
        self.connection.known = True
        while True:
            asked = self.connection.request(1)
            with self.connection.transfer(100) as late:
                self.answer(stream, asked, digest, late)

    def answer(self, stream, asked, digest, late):
        if asked == b"p":
            with self.values.room(10) as room:
                stream.fill_all(room.views, late)
                assert self.values.put(digest, room)
            said = [b"!"]
        elif asked == b"d":
            self.values.delete(digest)
            said = [b"!"]
        else:
            said = [b"?" * 10]
            with self.values.lent(digest) as lent:
                if lent is not None:
                    self.values.touch(digest)
                    said = part(lent, 0, lent.size)
                stream.send(said, late)
            with self.values.lent(digest, 3, 4) as middle:
                said = [b"?" if middle is None else b"".join(middle.views)]
        stream.send([*said, bytes([len(self.values.list(bytes(32), 9))])], late)


@contextmanager
def serving(*wires, secret=b""):
    registry, clock = discover(), SystemClock()
    context = OpenContext(clock)
    region = registry.open("memory", "mmap", {}, context).allocate(room(BUDGET) + BUDGET)
    shelf = MemoryShelf(Arena(region), tier_index(registry, "lru", BUDGET, context), clock)
    limits = Limits(1 << 20, patience=PATIENCE)
    server = Server(listen("127.0.0.1", 0), shelf, clock, limits, wires=wires, secret=secret)
    thread = Thread(target=server.run)
    thread.start()
    try:
        yield server
    finally:
        server.stop()
        thread.join(PATIENCE)
        shelf.close()
        region.close()


def exactly(sock, size):
    said = b""
    while len(said) < size:
        part = sock.recv(size - len(said))
        assert part, said
        said += part
    return said


def test_each_connection_is_answered_on_the_wire_that_it_begins_with():
    with serving(Notes()) as server, socket.create_connection(server.address, PATIENCE) as sock:
        sock.sendall(b"NOTE" + b"g" + b"p" + b"0123456789" + b"g" + b"d" + b"g")
        said = exactly(sock, 43)
        assert said == (
            b"?" * 10 + b"?\0" + b"!\1" + b"0123456789" + b"3456\1" + b"!\0" + b"?" * 10 + b"?\0"
        )
        with closing(RawHexkv("{}:{}".format(*server.address))) as own:
            own.put(bytes(48), b"a chunk")
            assert own.get(bytes(48)) == b"a chunk"


def test_values_of_a_plugins_wire_are_no_chunks_and_the_other_way_round():
    with serving(Notes()) as server, socket.create_connection(server.address, PATIENCE) as sock:
        sock.sendall(b"NOTEp0123456789")
        assert exactly(sock, 2) == b"!\1"
        with closing(RawHexkv("{}:{}".format(*server.address))) as own:
            assert own.keys() == set()
            own.put(bytes([1]) * 48, b"a chunk")
            sock.sendall(b"p9876543210")
            assert exactly(sock, 2) == b"!\1"
            assert own.keys() == {bytes([1]) * 48}
            inside = HISTORIC + sha256(b"notes the only one").digest()
            for kind, more in [(1, b""), (2, b""), (3, bytes(8)), (4, b""), (5, bytes(16))]:
                own.ask(kind, 1, inside + more)
                assert own.answer() == (1, 0, b""), "one wire's value was named by another"
            sock.sendall(b"g")
            assert exactly(sock, 15) == b"9876543210" + b"6543" + b"\1"


@pytest.mark.parametrize(
    ("wires", "secret"), [((), b""), ((Notes(),), b"a secret of the tests")], ids=["none", "secret"]
)
def test_a_wire_that_is_not_spoken_here_ends_the_connection(wires, secret):
    with (
        serving(*wires, secret=secret) as server,
        socket.create_connection(server.address, PATIENCE) as sock,
    ):
        sock.sendall(b"NOTE")
        assert sock.recv(1) == b""


@pytest.mark.parametrize(
    "wires",
    [
        (Notes(), Notes()),
        (Notes((b"hexk",)),),
        (Notes((b"NOT",)),),
    ],
    ids=["each other", "the server's", "too short"],
)
def test_wires_that_cannot_be_told_apart_are_refused(wires):
    with listen("127.0.0.1", 0) as listener, pytest.raises(ConfigError, match="notes://"):
        Server(listener, None, SystemClock(), Limits(1 << 20), wires=wires)
