"""A node keeps the contract of its socket, which other implementations are checked by."""

import json

import pytest

from hexkv.adapters.node.blackbox import NodeSocketContract
from hexkv.contracts.check.command import run
from hexkv.ports import StoreUnreachable
from nodes import FRAME, ClientLimits, Node


@pytest.mark.thorough
class TestNodeSocket(NodeSocketContract):
    @pytest.fixture
    def node(self, tmp_path):
        with Node(tmp_path, disk=False, limits=ClientLimits(8 * FRAME)) as node:
            yield node.path
            node.at_rest()


def test_a_node_is_checked_from_outside(tmp_path, capsys):
    with Node(tmp_path, disk=False, limits=ClientLimits(8 * FRAME)) as node:
        code = run([f"node://{node.path}", "--black-box", "--json", "-"])
        node.at_rest()
    (card,) = json.loads(capsys.readouterr().out)["cards"]
    assert {line["number"]: line["reason"] for line in card["promises"] if line["reason"]} == {}
    assert code == 0
    assert card["held"] == ["L0", "L1", "L2", "L3", "L4", "L5"]
    with pytest.raises(StoreUnreachable):
        run([f"node://{tmp_path}/none.sock", "--black-box"])
