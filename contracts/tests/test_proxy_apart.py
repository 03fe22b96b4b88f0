"""A proxy in a process of its own is as bad a network as one in this."""

import socket
from contextlib import closing
from threading import Thread

import pytest

from hexkv.contracts.faults.apart import ProxyApart

PATIENCE = 60.0


@pytest.fixture
def echo():
    """A server that takes one connection after the other; its address."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve():
            while True:
                try:
                    peer, _ = listener.accept()
                except OSError:
                    return  # the test is over
                with peer:
                    try:
                        while data := peer.recv(1 << 16):
                            peer.sendall(data)
                    except OSError:
                        continue  # that is what the test is about

        thread = Thread(target=serve)
        thread.start()
        yield listener.getsockname()
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(PATIENCE)


@pytest.fixture
def proxy(echo):
    with ProxyApart(echo) as proxy:
        yield proxy


def connect(proxy):
    host, _, port = proxy.address.rpartition(":")
    return closing(socket.create_connection((host, int(port)), PATIENCE))


def exactly(client, size):
    """So many bytes, in however many pieces they come."""
    data = bytearray()
    while len(data) < size and (part := client.recv(size - len(data))):
        data += part
    return bytes(data)


def test_it_passes_everything_until_it_is_told_otherwise_and_when_it_is_mended(proxy):
    with connect(proxy) as client:
        client.sendall(b"hello")
        assert exactly(client, 5) == b"hello"


def test_it_ends_every_connection_while_it_cuts(proxy):
    with connect(proxy) as client:
        proxy.cut()
        assert ended(client)
    proxy.mend()
    with connect(proxy) as client:
        client.sendall(b"again")
        assert exactly(client, 5) == b"again"


def test_it_delays_stalls_and_spoils(proxy):
    with connect(proxy) as client:
        for trouble in (proxy.stall, lambda: proxy.latency(60.0)):
            trouble()
            client.sendall(b"a")
            client.settimeout(0.1)
            with pytest.raises(TimeoutError):
                client.recv(1)
            client.settimeout(PATIENCE)
            proxy.mend()
            assert client.recv(1) == b"a"
        proxy.garbage(64)
        client.sendall(b"b")
        assert exactly(client, 65)[64:] == b"b", "before the reply"


def test_its_end_is_the_end_of_its_connections(echo):
    with ProxyApart(echo) as proxy, connect(proxy) as client:
        proxy.close()
        assert ended(client)


def ended(client):
    try:
        return client.recv(1) == b""
    except ConnectionError:
        return True
