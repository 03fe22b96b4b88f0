"""What clients of a node tell each other of the chunks that they compute."""

import pytest

from hexkv.contracts.announcing import CLIENTS, AnnouncingContract, now, some, soon
from hexkv.contracts.chunk_cache._base import LAYOUT, TOKENS
from hexkv.ports import SHARED_OWNER, ChunkSpec, InvalidRequest
from nodes import Node, NodeProcess
from processes import until


class TestOverANode(AnnouncingContract):
    @pytest.fixture
    def node(self, tmp_path):
        with Node(tmp_path) as node:
            yield node
            node.at_rest()
            assert not len(node.served.announced)

    @pytest.fixture
    def clients(self, node):
        clients = {name: node.client() for name in CLIENTS}
        yield clients
        for client in clients.values():
            client.close()

    @pytest.fixture
    def seen(self, clients):
        return clients.__getitem__

    @pytest.fixture
    def publish(self, clients):
        def publish(name, keys):
            specs = [ChunkSpec(key, "{}", LAYOUT, TOKENS) for key in keys]
            leases = clients[name].allocate(specs, "test", soon())
            assert len(leases) == len(keys)
            clients[name].publish(leases, None, soon()).wait(soon())
            for lease in leases:
                lease.release()

        return publish

    @pytest.fixture
    def vanish(self, clients):
        return lambda name: clients[name].close()


def test_a_node_that_is_gone_or_another_one_expects_nothing(tmp_path):
    """Who waited looks again, and computes."""
    with NodeProcess(tmp_path, disk=False) as node:
        ada, bob = node.client(), node.client()
        assert ada.announce("request", "a", some(2), 60.0, soon()) == 2
        assert list(bob.expect(some(2), "b", now())) == [True, True]
        node.take_over()
        assert list(bob.expect(some(2), "b", soon())) == [False, False]
        assert ada.withdraw("request", soon()) == 0
        node.kill()
        assert ada.announce("request", "a", some(2), 60.0, soon()) == 0
        assert list(bob.expect(some(2), "b", soon())) == [False, False]
        ada.close()
        bob.close()


@pytest.mark.thorough
def test_a_shared_pin_outlives_its_client_and_is_ended_by_whoever_knows_it(tmp_path):
    with Node(tmp_path, disk=False) as node:
        ada, bob = node.client(), node.client()
        specs = [ChunkSpec(key, "{}", LAYOUT, TOKENS) for key in some(2)]
        leases = ada.allocate(specs, "test", soon())
        ada.publish(leases, None, soon()).wait(soon())
        for lease in leases:
            lease.release()
        shared = f"{SHARED_OWNER}name"
        assert ada.pin(shared, some(2), 60.0) == ada.pin("own", some(2), 60.0) == 2
        assert bob.unpin("own") == 0
        with pytest.raises(InvalidRequest, match="an hour"):
            ada.pin(f"{SHARED_OWNER}long", some(2), 3_601.0)
        ada.close()
        until(lambda: list(node.served.health().pins) == [shared])
        assert bob.unpin(shared) == 2
        assert not node.served.health().pins
        bob.close()
