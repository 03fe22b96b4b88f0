"""What a process of another user gets from each listener that has no secret: nothing."""

import logging
import os
import secrets
import socket
import struct
import subprocess
import sys
from contextlib import ExitStack
from threading import Thread

import pytest

from hexkv.adapters.directory.cell import Cell
from hexkv.adapters.directory.server import DirectoryServer
from hexkv.adapters.lmcache.session import LMWire
from hexkv.adapters.lmserver.server import Server
from hexkv.adapters.lmserver.values import ServedValues
from hexkv.adapters.net.address import Address
from hexkv.adapters.net.peers.channel import Security
from hexkv.adapters.net.server import client_check
from hexkv.adapters.net.server.connection import Limits
from hexkv.adapters.net.server.server import listen
from hexkv.adapters.tcp.channel import TcpChannel
from hexkv.contracts.kit.cases import each
from hexkv.plugins.clock import SystemClock
from hexkv.plugins.discovery.discovery import discover
from processes import PATIENCE

NOBODY = 65534
SECRET = b"a secret of the tests"
CLOCK = SystemClock()
LIMITS = Limits(1 << 20, patience=PATIENCE)

HELLOS = {
    "hexkv": struct.pack("<8sHH4x32s", b"hexkvTCP", 1, 0, secrets.token_bytes(32)),
    "lm": struct.pack("<9i150s", 5, 0, 1, 2, 0, 0, 0, 0, 0, b"".ljust(150)),
    "peers": struct.pack("<8sH6x32s64s", b"hexkvPER", 3, secrets.token_bytes(32), b"x"),
    "directory": struct.pack("<8sH32s", b"hexkvDIR", 3, secrets.token_bytes(32)),
}
"""What is answered at once, over each wire."""

STRANGER = """
import os, socket, sys
user, host, port, hello = sys.argv[1:]
"".encode("idna")  # which addresses take: that user may not be able to import it
os.setuid(int(user))
with socket.create_connection((host, int(port))) as sock:
    try:
        sock.sendall(bytes.fromhex(hello))
        print(sock.recv(1).hex())
    except ConnectionError:
        print()
"""


@pytest.fixture
def started():
    """Runs a listener of each kind in this process; gives its address."""
    with ExitStack() as opened:

        def run(server):
            thread = Thread(target=server.run)
            thread.start()
            opened.callback(thread.join, PATIENCE)
            opened.callback(server.stop)
            return server.address

        def started(kind, host="127.0.0.1", secret=b""):
            if kind == "peers":
                channel = TcpChannel(Address(host, 0), CLOCK, security=Security(secret))
                opened.callback(channel.close)
                place = Address.parse(channel.serve(None, 1).address)
                return place.host, place.port
            if kind == "directory":
                return run(DirectoryServer(listen(host, 0), Cell(CLOCK), CLOCK, secret=secret))
            values = ServedValues(
                ["hexkv", "lm"], discover(), CLOCK, budget=4 << 20, transit=4 << 20, largest=1 << 20
            )
            opened.callback(values.close)
            server = Server(listen(host, 0), values, CLOCK, LIMITS, wires=[LMWire()], secret=secret)
            return run(server)

        yield started


def answered(place, hello):
    """The first byte that a process of this user is answered; empty: none."""
    with socket.create_connection(place, PATIENCE) as sock:
        try:
            sock.sendall(hello)
            return sock.recv(1)
        except ConnectionError:
            return b""


@each("host", ["127.0.0.1", "::1"])
@each("kind", HELLOS)
def test_over_loopback_a_listener_without_a_secret_answers_its_own_user_alone(
    started, monkeypatch, kind, host
):
    assert answered(started(kind, host), HELLOS[kind]) != b""
    with monkeypatch.context() as another:
        another.setattr(client_check, "own_user", lambda: NOBODY)
        assert answered(started(kind, host), HELLOS[kind]) == b""


@pytest.mark.skipif(os.geteuid() != 0, reason="a process of another user takes root")
@each("kind", HELLOS)
def test_a_real_process_of_another_user_is_answered_nothing(started, kind):
    place = started(kind)
    words = [str(NOBODY), *map(str, place), HELLOS[kind].hex()]
    done = subprocess.run(
        [sys.executable, "-c", STRANGER, *words], capture_output=True, text=True, check=True
    )
    assert done.stdout == "\n"
    assert answered(place, HELLOS[kind]) != b"", "its own user is served all the same"


@each("secret", [b"", SECRET], ids=["open", "guarded"])
@each("kind", ["hexkv", "peers", "directory"])
def test_a_line_says_how_each_listener_knows_who_asks(started, caplog, kind, secret):
    caplog.clear()
    known = "show that they know the secret" if secret else f"are processes of user {os.geteuid()}"
    with caplog.at_level(logging.INFO, "hexkv.listening"):
        place = Address(*started(kind, secret=secret))
    (line,) = caplog.messages
    assert line.startswith(f"listening at {place} (hexkv ")
    assert line.endswith(f": clients {known}")


@each("kind", ["hexkv", "peers", "directory"])
def test_with_a_secret_every_user_is_asked_for_it(started, monkeypatch, kind):
    monkeypatch.setattr(client_check, "own_user", lambda: NOBODY)
    assert answered(started(kind, secret=SECRET), HELLOS[kind]) != b""
