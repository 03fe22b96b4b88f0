"""Pages that one SGLang stored at its node are read by another one at a node that is a peer."""

from contextlib import ExitStack

import pytest
import torch

from engines.sglang.sglang_pools import PATIENT, backend, host_pool, names, page_of, same, slots
from nodes import Node
from peers.peering import directory_of, eventually, free_address

FRAME = 8 << 10
PAGES = 6
STORED, READ = slots(4, 5, 6, 7, 8, 9), slots(1, 2, 3, 4, 5, 6)


@pytest.fixture
def nodes(tmp_path):
    """Two, each of which serves the other one."""
    with ExitStack() as opened:
        places, found = (free_address(), free_address()), []
        for own, other in (places, places[::-1]):
            (tmp_path / own).mkdir()
            wanted = {
                "tiers": [{"store": "memory", "budget": 64 * FRAME}, {"store": "peers"}],
                "directory": directory_of(other) | {"name": own},
                "peers": {"channel": "tcp", "settings": {"listen": own}},
            }
            node = Node(tmp_path / own, slots=128, frame=FRAME, **wanted)
            found.append(opened.enter_context(node))
        yield found


def at(node):
    """SGLang's extra configuration for hexkv over *node*."""
    return {
        "backend_name": "hexkv",
        "module_path": "hexkv.adapters.sglang.hicache",
        "class_name": "HexKVStorage",
        "interface_v1": 1,
        "model": {"weights": "one"},
        "node": str(node.path),
        "deadlines": PATIENT,
    }


@pytest.mark.parametrize("kind", ["mha", "mla"])
@pytest.mark.parametrize("way", [1, -1], ids=["there", "back"])
def test_what_one_sglang_prefilled_another_one_reads_over_a_peer(nodes, kind, way):
    before, behind = nodes[::way]
    computed, empty = host_pool(kind, "page_first", seed=3), host_pool(kind, "page_first")
    pages, latent = names(PAGES), {"is_mla_model": kind == "mla"}
    with (
        backend(computed, at(before), **latent) as prefill,
        backend(empty, at(behind), **latent) as decode,
    ):
        assert prefill.batch_set_v1(pages, STORED) == [True] * PAGES
        eventually(lambda: decode.batch_exists(pages) == PAGES)
        assert decode.batch_get_v1(pages, READ) == [True] * PAGES
        for number in range(PAGES):
            assert same(page_of(empty, 1 + number), page_of(computed, 4 + number))


def test_a_peer_that_is_gone_is_a_miss(nodes):
    before, behind = nodes
    computed, empty = host_pool("mha", "page_first", seed=3), host_pool("mha", "page_first")
    pages = names(PAGES)
    with backend(computed, at(before)) as prefill, backend(empty, at(behind)) as decode:
        assert prefill.batch_set_v1(pages, STORED) == [True] * PAGES
        eventually(lambda: decode.batch_exists(pages) == PAGES)
        assert decode.batch_get_v1(pages[:2], READ[: len(READ) // 3]) == [True] * 2
        before.stop()
        found = decode.batch_get_v1(pages, READ)
        assert found[:2] == [True] * 2, "what it has had from there is here"
        assert not any(found[2:])
        assert torch.equal(*(page_of(one, at) for one, at in ((empty, 1), (computed, 4))))
        before.start()
