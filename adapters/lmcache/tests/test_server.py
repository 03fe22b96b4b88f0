"""`hexkv serve` on this wire: who is served, and clients that break off or lie."""

import socket
import struct
from contextlib import ExitStack, closing, suppress

import pytest

from hexkv.contracts.doubles import ListSink
from hexkv.contracts.kit.cases import each
from hexkv.ports import Failed, Item, Miss, Stored, StoreUnreachable
from processes import PATIENCE, held_port, until
from servers.lm_servers import SMALL, RawHexkv, RawLM, Served, served

QUICK = (*SMALL[:-2], "--patience", "0.5")
FLEET = 8


def ended(address, start):
    """Wait until the server ends a connection that begins so; what it said before."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), PATIENCE) as sock:
        sock.sendall(start)
        said = b""
        with suppress(ConnectionResetError):
            while part := sock.recv(65_536):
                said += part
        return said


def head(command, length=0):
    return struct.pack("<9i150s", command, length, *[0] * 7, b"k")


def test_the_wire_is_not_spoken_where_there_is_a_secret(tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("a secret of the tests")
    secret.chmod(0o600)
    with served(*SMALL, "--secret-file", str(secret)) as server:
        assert ended(server.address, head(5)) == b""


@pytest.mark.parametrize("length", [2**31 - 1, -1])
def test_an_oversize_claim_ends_the_connection(server, length):
    assert ended(server.address, head(1, length)) == b""


@pytest.mark.thorough
@each("start", [head(2)[:44], head(1, 1000) + b"part"])
def test_a_client_that_stops_half_way_is_dropped(start):
    with served(*QUICK) as server:
        assert ended(server.address, start) == b""


def test_every_place_may_be_taken_before_anybody_asks(key):
    """A fleet connects when it starts, and asks when its first prompts come."""
    with served(*SMALL, "--connections", str(FLEET)) as server, ExitStack() as opened:
        fleet = [opened.enter_context(closing(RawLM(server.address))) for _ in range(FLEET)]
        until(lambda: server.connections == FLEET)
        for client in fleet:
            client.put(key, b"value")
            assert client.get(key) == b"value"


def test_what_is_no_line_of_a_listing_names_no_value(server, key):
    with closing(RawLM(server.address)) as others:
        others.put(key, b"value")
        for name in (b"a\nb", b"a\rb", b"a\n", b""):
            for command in (1, 2, 3):
                ask = struct.pack("<9i150s", command, *[0] * 8, name.ljust(150))
                assert ended(server.address, ask) == b""
        assert others.keys() == {key}
        assert others.names() == [others.name(key)]
        others.ask(5, b"")  # the name that HEALTH has means nothing
        assert others.answer()[0] == 200


def test_a_value_that_breaks_off_leaves_what_was_there(server, key):
    with closing(RawLM(server.address)) as whole:
        whole.put(key, b"old")
        with closing(RawLM(server.address)) as broken:
            broken.ask(1, whole.name(key), 1000)
            broken.sock.sendall(b"part of it")
            broken.sock.shutdown(socket.SHUT_WR)
            assert broken.sock.recv(1) == b""  # the server has seen it
        assert whole.get(key) == b"old"
        assert whole.keys() == {key}
    with closing(RawHexkv(server.address)) as other:
        assert other.keys() == set()


def test_a_store_opens_without_its_server_and_says_that_it_is_unreachable(open_store, key, soon):
    store = open_store(f"127.0.0.1:{held_port()}", "lm")
    with pytest.raises(StoreUnreachable):
        store.contains([key], soon)
    (outcome,) = store.read([key], ListSink(), soon)
    assert isinstance(outcome, Failed)
    assert isinstance(outcome.error, StoreUnreachable)


@pytest.mark.thorough
def test_an_idle_connection_that_broke_is_not_used_again(open_store, key, soon):
    own = Served(*SMALL)
    try:
        store = open_store(own.address, "lm")
        assert store.write([Item(key, memoryview(b"1"))], soon) == [Stored(1)]
        own.kill()
        own.start()
        assert store.read([key], ListSink(), soon) == [Miss()]
    finally:
        own.stop()
