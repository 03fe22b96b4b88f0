"""Administration keeps its contract over its socket, of an engine and of a node."""

from contextlib import contextmanager, suppress

import pytest

from configured import CHUNK, built
from hexkv.adapters.admin.api import connect
from hexkv.contracts.chunk_cache._base import TOKENS
from hexkv.ports import Selection, StoreUnreachable
from nodes import Node, NodeProcess
from operating.administration import TENANTS, AdministrationContract, Managed, short_folder
from processes import until


class TestOverItsSocket(AdministrationContract):
    @pytest.fixture
    def managed(self, tmp_path):
        with short_folder() as folder:
            admin = {"address": str(folder / "rank{rank}.sock")}
            with built(tmp_path / "disk", tenants=TENANTS, admin=admin) as engine:
                yield Managed(engine, connect(str(folder / "rank0.sock")), CHUNK, engine.close)


@contextmanager
def administered_node(root):
    """A node that serves its administration, and an engine that uses it."""
    with short_folder() as folder:
        address = folder / "admin.sock"
        node = Node(root, slots=64, memory=48, tenants=TENANTS, admin={"address": str(address)})
        with node, node.engine() as engine:
            node.served.serve_admin()
            yield Managed(engine, connect(str(address)), TOKENS, node.stop)


@pytest.mark.thorough
class TestThroughANode(AdministrationContract):
    @pytest.fixture
    def managed(self, tmp_path):
        with administered_node(tmp_path) as managed:
            yield managed


def test_an_engine_over_a_node_sees_what_is_done_to_the_node(tmp_path):
    with administered_node(tmp_path) as managed:
        keys = managed.store()
        assert managed.admin.clear(Selection(keys=keys[3:])).done == 6
        assert managed.hit() == 3
        managed.admin.freeze()
        managed.store(1)
        assert managed.hit(1) == 0
        assert managed.engine.health().frozen is False


@pytest.mark.thorough
def test_a_node_serves_it_beside_its_socket_and_so_does_what_takes_it_over(tmp_path):
    with NodeProcess(tmp_path, slots=64, memory=48) as node:
        address = f"{node.path}.admin"

        def state():
            with suppress(StoreUnreachable):
                return connect(address).status().state

        assert state() == "open"
        with node.engine() as engine:
            keys = Managed(engine, connect(address), TOKENS, engine.close).store()
            before = node.process.pid
            node.take_over()
            assert node.process.pid != before
            until(lambda: state() == "open")
            assert connect(address).lookup(keys) == ["memory"] * len(keys)
