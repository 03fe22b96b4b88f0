"""The server keeps the contract of observers."""

from contextlib import closing
from http.client import HTTPConnection

import pytest

from hexkv.adapters.observe.feed import Feed
from hexkv.adapters.observe.observer import ServerObserver
from hexkv.adapters.observe.settings import ServerSettings
from hexkv.contracts.observer import CHUNK, ObserverContract, Reading
from hexkv.contracts.telemetry import EventSinkContract
from hexkv.plugins.clock import SystemClock
from operating.collectors import collecting
from operating.routers import Router
from processes import PATIENCE, held_port

pytestmark = pytest.mark.thorough


def ask(port, path):
    """What an answer says; ``None`` if nobody listens."""
    with closing(HTTPConnection("127.0.0.1", port, timeout=PATIENCE)) as connection:
        try:
            connection.request("GET", path)
            return connection.getresponse().read().decode()
        except ConnectionError:
            return None


class TestServer(ObserverContract):
    @pytest.fixture
    def ports(self):
        return {name: held_port() for name in ("address", "events", "replay")}

    @pytest.fixture
    def collector(self):
        with collecting() as collector:
            yield collector

    @pytest.fixture
    def observer(self, ports, collector):
        places = {name: f"127.0.0.1:{port}" for name, port in ports.items()}
        block = {"events_block": CHUNK, "events_beat": 0.05}
        settings = ServerSettings(**places, **block, traces=collector.url)
        return ServerObserver(settings, SystemClock())

    @pytest.fixture
    def reading(self, ports):
        def unready():
            said = ask(ports["address"], "/readyz")
            return None if said is None else said.strip().removesuffix("ok")

        return Reading(lambda: ask(ports["address"], "/metrics"), unready)

    @pytest.fixture
    def announced(self, ports):
        with Router(ports["events"], ports["replay"], CHUNK) as router:

            def announced(tokens):
                router.listen()
                return router.match(tokens)[-1]

            yield announced

    @pytest.fixture
    def collected(self, collector):
        return lambda: len(collector.spans)


class TestFeed(EventSinkContract):
    """What the server publishes from."""

    @pytest.fixture
    def sink(self):
        feed = Feed({"memory": True, "disk": False}, block=16, model="m", limit=1 << 20)
        with closing(feed):
            yield feed

    @pytest.fixture
    def end(self, sink):
        return sink.close
