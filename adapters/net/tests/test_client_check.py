"""Whose connections a listener takes, by the kernel's tables."""

import logging
import os
import socket
import ssl
import struct
import subprocess
import sys
from contextlib import ExitStack

import pytest

from hexkv.adapters.net import owners
from hexkv.adapters.net.errors import Refused
from hexkv.adapters.net.owners import own_user, owner_of
from hexkv.adapters.net.server import client_check
from hexkv.adapters.net.server.client_check import ClientCheck
from hexkv.adapters.net.stream import Stream
from hexkv.contracts.kit.cases import each
from hexkv.ports import ConfigError

OTHER = 54321
"""A user who is not this one, and whom no file knows."""

CONNECT = """
import os, socket, sys
os.setuid(int(sys.argv[4]))
with socket.socket(getattr(socket, sys.argv[1])) as sock:
    sock.connect((sys.argv[2], int(sys.argv[3])))
    sock.recv(1)
"""
WAYS = [
    ("AF_INET", "127.0.0.1", "AF_INET", "127.0.0.1"),
    ("AF_INET", "127.0.0.1", "AF_INET6", "::ffff:127.0.0.1"),
    ("AF_INET6", "::1", "AF_INET6", "::1"),
    ("AF_INET6", "::ffff:127.0.0.1", "AF_INET", "127.0.0.1"),
]
"""Family and address of a listener, and of its client."""

root = pytest.mark.skipif(os.geteuid() != 0, reason="a process of another user takes root")


@pytest.fixture
def opened():
    with ExitStack() as opened:
        yield opened


@pytest.fixture
def listening(opened):
    def listening(family="AF_INET", host="127.0.0.1"):
        sock = opened.enter_context(socket.socket(getattr(socket, family)))
        if family == "AF_INET6":
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        sock.bind((host, 0))
        sock.listen()
        return sock

    return listening


@pytest.fixture
def connected(opened, listening):
    """A connection of this process to itself: the server's end, and the client's."""

    def connected(*way):
        family, host, client_family, place = way or WAYS[0]
        listener = listening(family, host)
        client = opened.enter_context(socket.socket(getattr(socket, client_family)))
        client.connect((place, listener.getsockname()[1]))
        return opened.enter_context(listener.accept()[0]), client

    return connected


@each("way", WAYS)
def test_a_process_of_this_user_is_known(connected, way):
    server, _ = connected(*way)
    assert owner_of(server) == own_user() == os.geteuid()


@pytest.fixture
def unasked(monkeypatch):
    """The kernel does not answer for one connection: there is the list of all of them."""
    monkeypatch.setattr(owners, "_ask", lambda theirs, ours: None)


@each("way", WAYS)
def test_a_process_of_this_user_is_known_by_the_list_of_all(connected, way, unasked):
    server, _ = connected(*way)
    assert owner_of(server) == os.geteuid()


@each("way", WAYS)
def test_the_kernel_is_asked_for_one_connection(connected, way, tmp_path):
    server, _ = connected(*way)
    assert owner_of(server, str(tmp_path)) == os.geteuid(), "the list was read"


@root
@each("way", WAYS)
def test_a_process_of_another_user_is_known(listening, monkeypatch, way):
    family, host, client_family, place = way
    listener = listening(family, host)
    words = [client_family, place, str(listener.getsockname()[1]), str(OTHER)]
    with subprocess.Popen([sys.executable, "-c", CONNECT, *words]) as client:
        with listener.accept()[0] as server, monkeypatch.context() as unasked:
            assert owner_of(server) == OTHER
            unasked.setattr(owners, "_ask", lambda theirs, ours: None)
            assert owner_of(server) == OTHER
        assert client.wait() == 0


def test_a_client_that_has_said_all_and_waits_for_an_answer_is_known(connected, monkeypatch):
    server, client = connected()
    client.shutdown(socket.SHUT_WR)
    assert server.recv(1) == b""
    assert owner_of(server) == os.geteuid()
    monkeypatch.setattr(owners, "_ask", lambda theirs, ours: None)
    assert owner_of(server) == os.geteuid()


def test_an_end_that_is_closed_belongs_to_no_user(connected):
    """Its row, if any is left, has user 0."""
    server, client = connected()
    client.close()
    assert owner_of(server) is None


def test_an_end_of_another_network_belongs_to_no_user(connected, unasked, tmp_path):
    """No row is there; one of a connection that is over, or that no process has open, is none."""
    server, client = connected()
    assert owner_of(server, str(tmp_path)) is None, "there are no tables"
    theirs, ours = owners._end(client.getsockname()), owners._end(server.getsockname())
    behind = b"00000000:00000000 00:00000000 00000000  %d        0 %d 1 0000 20 4 30 10 -1\n"
    table, head = tmp_path / "tcp", b"  sl  local_address\n   0:"
    ends = f" {theirs.row()} {ours.row()}".encode()
    for text, owner in [
        (head + b"\n", None),
        (head + ends + b" 01 " + behind % (OTHER, 7), OTHER),
        (head + ends + b" 01 " + behind % (0, 0), None),
        (head + ends + b" 06 " + behind % (0, 7), None),
        (head + ends + b" 01 nonsense\n", None),
    ]:
        table.write_bytes(text)
        assert owner_of(server, str(tmp_path)) == owner, text
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()  # by a reset, as a later connection with these ports ends the one before it
    table.write_bytes(head + ends + b" 01 " + behind % (OTHER, 7))
    assert owner_of(server, str(tmp_path)) is None, "a later connection may have the same ports"


def test_a_user_whom_the_kernel_has_no_number_for_is_not_told_from_others(monkeypatch, tmp_path):
    """In a user namespace all who are not in its map have the same number."""
    with open("/proc/sys/kernel/overflowuid") as file:
        overflow = int(file.read())
    assert own_user(str(tmp_path)) is None
    monkeypatch.setattr(os, "geteuid", lambda: overflow)
    monkeypatch.setattr(owners, "_ALL_USERS", ["another", "map"])
    assert own_user() is None
    monkeypatch.setattr(os, "geteuid", lambda: OTHER)
    assert own_user() == OTHER


def test_a_listener_without_a_secret_takes_its_own_user_alone(
    listening, connected, monkeypatch, caplog
):
    """Root is no exception, and each user who is refused is a line in the log, once."""
    server = Stream(connected()[0])
    own = ClientCheck(listening())
    own.check(server)
    assert str(own) == f"clients are processes of user {os.geteuid()}"
    monkeypatch.setattr(client_check, "own_user", lambda: OTHER)
    others = ClientCheck(listening())
    for _ in range(3):
        with pytest.raises(Refused, match=f"user {os.geteuid()}"):
            others.check(server)
    assert [it.levelno for it in caplog.records] == [logging.WARNING]


def test_a_client_that_has_gone_already_is_no_line_in_the_log(listening, connected, caplog):
    server, client = connected()
    client.close()
    with pytest.raises(Refused, match="not known"):
        ClientCheck(listening()).check(Stream(server))
    assert caplog.records == []


def test_a_secret_or_a_certificate_takes_every_user(listening, connected, monkeypatch):
    """TLS that asks for no certificates is none."""
    monkeypatch.setattr(client_check, "own_user", lambda: OTHER)
    server = Stream(connected()[0])
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with pytest.raises(Refused):
        ClientCheck(listening(), tls=tls).check(server)
    guarded = ClientCheck(listening(), b"a secret of the tests")
    guarded.check(server)
    assert str(guarded) == "clients show that they know the secret"
    tls.verify_mode = ssl.CERT_REQUIRED
    asking = ClientCheck(listening(), tls=tls)
    asking.check(server)
    assert str(asking) == "clients show a certificate"


def test_where_users_cannot_be_told_apart_a_secret_is_required(listening, monkeypatch):
    monkeypatch.setattr(client_check, "own_user", lambda: None)
    with pytest.raises(ConfigError, match="takes a secret"):
        ClientCheck(listening())
    ClientCheck(listening(), b"a secret of the tests")


def test_a_unix_socket_takes_the_users_that_it_is_given(opened, tmp_path):
    listener = opened.enter_context(socket.socket(socket.AF_UNIX))
    listener.bind(str(tmp_path / "sock"))
    listener.listen()
    client = opened.enter_context(socket.socket(socket.AF_UNIX))
    client.connect(listener.getsockname())
    server = Stream(opened.enter_context(listener.accept()[0]))
    ClientCheck(listener).check(server)
    with pytest.raises(Refused):
        ClientCheck(listener, b"a secret of the tests", users={OTHER}).check(server)
