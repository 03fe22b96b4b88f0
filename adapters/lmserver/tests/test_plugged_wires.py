"""Wires of plugins over the server's own port: told apart by their first bytes, kept apart."""

import socket
from contextlib import closing, contextmanager
from threading import Thread

import pytest

from hexkv.adapters.lmserver.server import Server
from hexkv.adapters.lmserver.values import ServedValues
from hexkv.adapters.net.server.connection import Limits
from hexkv.adapters.net.server.server import listen
from hexkv.contracts.kit.cases import each
from hexkv.plugins.clock import SystemClock
from hexkv.plugins.discovery.discovery import discover
from hexkv.ports import ConfigError
from processes import PATIENCE
from servers.lm_servers import RawHexkv

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
        assert self.connection.begin(4) == b"NOTE"
        self.connection.known = True
        while True:
            asked = self.connection.request(1)
            with self.connection.transfer(100) as late:
                self.answer(asked, late)

    def answer(self, asked, late):
        stream, values, name = self.connection.stream, self.values, b"the only one"
        if asked == b"p":
            with values.room(name, 10, PATIENCE) as room:
                stream.fill(room.data, late)
                assert values.keep([room]) == [True]
            said = b"!"
        elif asked == b"d":
            assert values.delete([name, b"none"])[1:] == [False]
            said = b"!"
        else:
            with values.lent(name, PATIENCE) as lent:
                said = b"?" * 10 if lent is None else bytes(lent)
        stream.send([said, bytes([len(values.list(b"", 9))])], late)


@contextmanager
def serving(*wires, secret=b""):
    registry, clock = discover(), SystemClock()
    limits = Limits(1 << 20, patience=PATIENCE)
    schemes = ["hexkv", *(wire.scheme for wire in wires)]
    values = ServedValues(
        schemes, registry, clock, budget=BUDGET, transit=BUDGET, largest=limits.max_value
    )
    server = Server(listen("127.0.0.1", 0), values, clock, limits, wires=wires, secret=secret)
    thread = Thread(target=server.run)
    thread.start()
    try:
        yield server
    finally:
        server.stop()
        thread.join(PATIENCE)
        values.close()


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
        said = exactly(sock, 37)
        assert said == b"?" * 10 + b"\0" + b"!\1" + b"0123456789\1" + b"!\0" + b"?" * 10 + b"\0"
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
            inside = server._values._served._stack.tiers[0].index
            for key in list(inside.keys()):
                assert own.get(key) is None
                own.put(key, b"another")
                own.ask(4, 1, key)
                assert own.answer()[2] == b"\1"
            sock.sendall(b"g")
            assert exactly(sock, 11) == b"9876543210\1"


@each(
    ("wires", "secret"), [((), b""), ((Notes(),), b"a secret of the tests")], ids=["none", "secret"]
)
def test_a_wire_that_is_not_spoken_here_ends_the_connection(wires, secret):
    with (
        serving(*wires, secret=secret) as server,
        socket.create_connection(server.address, PATIENCE) as sock,
    ):
        sock.sendall(b"NOTE")
        assert sock.recv(1) == b""


@each(
    "wires",
    [
        (Notes(), Notes()),
        (Notes((b"hexk",)),),
        (Notes((b"NOT",)),),
        (Notes(), Notes((b"note",))),
    ],
    ids=["each other", "the server's", "too short", "by name"],
)
def test_wires_that_cannot_be_told_apart_are_refused(wires):
    with listen("127.0.0.1", 0) as listener, pytest.raises(ConfigError, match="notes://"):
        Server(listener, None, SystemClock(), Limits(1 << 20), wires=wires)
