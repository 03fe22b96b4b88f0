"""One SGLang prefills, others go on with its prompts, none told of another: at one node, or two."""

from contextlib import ExitStack

import pytest

from engines.sglang.sglang_engines import PAGE, PATIENT, behind, linked, prompt
from hexkv.contracts.chunk_cache._base import soon
from nodes import NodeProcess
from peers.peering import directory_of, free_address
from processes import until

pytestmark = pytest.mark.thorough

LENGTHS = [pages * PAGE + step for pages in (3, 6) for step in (-1, 0, 1, 20)]

POOL = {"pool": {"bytes": "256MiB", "provider": "shared"}, "memory": 40_000, "disk": False}


@pytest.fixture(params=["one node", "two that are peers"])
def nodes(request, tmp_path):
    """That of who prefills, and that of who decodes."""
    with ExitStack() as opened:
        if request.param == "one node":
            node = opened.enter_context(NodeProcess(tmp_path, **POOL))
            yield node, node
            return
        places, found = (free_address(), free_address()), []
        for own, other in (places, places[::-1]):
            wanted = {
                "tiers": [{"store": "memory", "budget": "200MiB"}, {"store": "peers"}],
                "directory": directory_of(other) | {"name": own},
                "peers": {"channel": "tcp", "settings": {"listen": own}},
            }
            found.append(opened.enter_context(NodeProcess(tmp_path, **POOL | wanted)))
        yield found


def test_decoders_load_every_whole_page_that_a_prefiller_computed(nodes, start, same):
    """Behind HiCache and with the linker; what is behind the last whole page they compute."""
    prefills, decodes = ({"node": str(node.path), "deadlines": PATIENT} for node in nodes)
    prompts = [prompt(f"prefilled {length}", length) for length in LENGTHS]
    client = nodes[0].client()
    prefill = start(**behind(**prefills))
    prefill.generate(*prompts, tokens=1)
    pages = sum(length // PAGE for length in LENGTHS)
    until(lambda: client.health(soon()).tiers[0].chunks == pages)
    prefill.pause()  # it is there, and an idle SGLang never rests
    # The last token is always computed, and with it its page.
    loaded = [(length - 1) // PAGE * PAGE for length in LENGTHS]
    for settings, found in ((behind(**decodes), "storage"), (linked(**decodes), "host")):
        decode = start(**settings)
        answers = same(decode, *prompts)
        assert [getattr(answer, found) for answer in answers] == loaded
        decode.kill()
    prefill.kill()
    client.close()
    for node in nodes:
        node.at_rest()
