"""The store contract against a real `hexkv serve`, whichever wire the store speaks."""

from contextlib import closing, contextmanager
from typing import ClassVar

import pytest

from hexkv.contracts.faults.proxy import FaultProxy
from hexkv.contracts.store import StoreContract
from servers.lm_servers import (
    SMALL,
    BreakableServer,
    Loopback,
    RawHexkv,
    RawLM,
    Served,
)

SIZE = 16 << 20
"""Bytes of the frames by which the contract measures."""


@contextmanager
def behind_proxy(*options):
    """A server that nobody else needs, and a proxy before it."""
    server = Served(*SMALL, *options)
    try:
        with FaultProxy(("127.0.0.1", server.port)) as proxy:
            yield BreakableServer(server, proxy)
    finally:
        server.stop()


@pytest.fixture(scope="module")
def breakable():
    with behind_proxy() as breakable:
        yield breakable


class Strangers:
    """Values of another client of LMCache's wire, on the same server."""

    NAMES = (b"vllm@some/model@1@0@1234abcd@half", b"no such form", b"hexkv")

    def __init__(self, address):
        self.wire = RawLM(address)
        for number, name in enumerate(self.NAMES):
            content = bytes([number]) * 2000
            self.wire.ask(1, name, len(content), (4, 6, 0, len(content), 0, 0, 0))
            self.wire.sock.sendall(content)

    def look(self):
        found = {}
        for name in self.NAMES:
            self.wire.ask(2, name)
            code, length, *_ = self.wire.answer()
            if code == 200:
                found[name.decode()] = self.wire.exactly(length)
        return found

    def close(self):
        for name in self.NAMES:
            self.wire.ask(1, name, 0, (0, 0, 0, 0, 0, 0, 0))
        self.look()
        self.wire.close()


class OverTheWire(StoreContract):
    kind = "hexkv"
    settings: ClassVar = {}
    back_door = RawHexkv

    @pytest.fixture
    def address(self, server):
        return server.address

    @pytest.fixture
    def store(self, address, open_store):
        return open_store(address, self.kind, **self.settings)

    @pytest.fixture
    def raw(self, address):
        raw = self.back_door(address)
        yield raw
        raw.close()

    @pytest.fixture
    def reopen(self, store, address, open_store):
        opened = [store]

        def again():
            opened[-1].close()
            opened.append(open_store(address, self.kind, **self.settings))
            return opened[-1]

        return again

    @pytest.fixture
    def service(self, breakable):
        return breakable

    @pytest.fixture
    def exposed(self, service, open_store):
        return open_store(service.proxy.address, self.kind, **self.settings)

    @pytest.fixture
    def foreign(self, address):
        with closing(Strangers(address)) as strangers:
            yield strangers.look

    @pytest.fixture
    def limit(self):
        with closing(Loopback(SIZE)) as limit:
            yield limit
