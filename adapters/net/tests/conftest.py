"""A listener that does nothing but accept, and connections to it."""

import socket
from contextlib import ExitStack

import pytest

from hexkv.adapters.net.address import Address


class Listener:
    """Accepts when it is asked to, and says nothing by itself."""

    def __init__(self, opened):
        self._opened = opened
        self.sock = opened.enter_context(socket.create_server(("127.0.0.1", 0)))
        self.sock.settimeout(60)
        self.address = Address(*self.sock.getsockname())

    def accept(self):
        peer, _ = self.sock.accept()
        peer.settimeout(60)
        return self._opened.enter_context(peer)


@pytest.fixture
def listener():
    with ExitStack() as opened:
        yield Listener(opened)
