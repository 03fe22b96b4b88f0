"""What becomes of a tier when it is not the master that is in trouble, but a node's bytes.

Where nodes find each other by notes that the master keeps, a note can be changed: then the
bytes go through a proxy.
"""

import threading

import pytest

from hexkv.contracts.doubles import ListSink, chunk_key
from hexkv.contracts.faults.apart import ProxyApart
from hexkv.contracts.store import BehindProxy
from hexkv.contracts.store._base import StoreCase
from hexkv.contracts.store.faulty._faults import Faults
from hexkv.contracts.store.faulty._late import LateWrites
from hexkv.ports import Failed, Hit, StoreUnreachable, TimedOut
from processes import held_port, until
from servers.mooncake_servers import LOOPBACK, Master, Node, soon, until_stored

pytestmark = pytest.mark.thorough

KEY = chunk_key("frame")
FRAME = bytes(range(250)) * 9000


@pytest.fixture
def noting(secluded, tmp_path, monkeypatch):
    """A master that keeps notes. A node that is silent is soon forgotten."""
    for name, value in LOOPBACK.items():
        monkeypatch.setenv(name, value)
    with Master(tmp_path, "--client_ttl=6", notes=True) as master:
        yield master


def test_nodes_find_each_other_by_what_the_master_notes(noting, open_store, tmp_path):
    store = open_store(noting.address, metadata=noting.metadata)
    with Node(tmp_path, noting) as node:
        until_stored(store, {KEY: FRAME})
        assert noting.note(node.name)["protocol"] == "tcp"
        sink = ListSink()
        assert store.read([KEY], sink, soon()) == [Hit(len(FRAME))]
        right = sink.data(0) == FRAME
        assert right


def test_memory_lent_under_a_fixed_port_is_still_noted_when_the_rehearsal_has_left(
    noting, open_store
):
    name = f"127.0.0.1:{held_port()}"
    lent = {"local_host": name, "segment_bytes": 64 << 20}
    lender = open_store(noting.address, metadata=noting.metadata, **lent)
    assert lender.contains([KEY], soon()) == [False]
    until(lambda: "hexkv mooncake connect" not in {thread.name for thread in threading.enumerate()})
    assert noting.note(name)["protocol"] == "tcp"
    store = open_store(noting.address, metadata=noting.metadata)
    until_stored(store, {KEY: FRAME})
    assert store.read([KEY], ListSink(), soon()) == [Hit(len(FRAME))]


class NodeService(BehindProxy):
    """The bytes of the only node behind a proxy; the master is at hand all the time."""

    can = BehindProxy.can | {"kill"}

    def __init__(self, proxy, node):
        super().__init__(proxy)
        self._node = node

    def kill(self):
        self._node.kill()

    def start(self):
        # It comes back as another node: nobody needs the proxy any more.
        self._node.start()


class TestNode(Faults, LateWrites, StoreCase):
    """A node is killed and started, and its connections stall, are slow, cut, and garbled."""

    @pytest.fixture
    def service(self, noting, tmp_path):
        with Node(tmp_path, noting) as node:
            target = ("127.0.0.1", noting.note(node.name)["tcp_data_port"])
            with ProxyApart(target) as proxy:
                port = int(proxy.address.rpartition(":")[2])
                noting.change_note(node.name, tcp_data_port=port)
                yield NodeService(proxy, node)

    @pytest.fixture
    def store(self, service, noting, open_store):
        return open_store(noting.address, metadata=noting.metadata)

    def test_it_is_the_bytes_that_go_through_the_proxy(self, service, store):
        until_stored(store, {KEY: FRAME})
        service.stall()
        assert store.contains([KEY], soon()) == [True]
        assert store.read([KEY], ListSink(), soon(0.3)) == [TimedOut()]
        service.cut()
        (outcome,) = store.read([KEY], ListSink(), soon())
        assert isinstance(outcome, Failed)
        assert isinstance(outcome.error, StoreUnreachable)
        service.mend()
        until_stored(store, {KEY: FRAME})
