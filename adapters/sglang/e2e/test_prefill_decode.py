"""One SGLang prefills, others go on with its prompts, all on one node, none told of the others."""

import pytest

from hexkv.contracts.chunk_cache._base import soon
from nodes import NodeProcess
from processes import until
from sglang_engines import PAGE, PATIENT, behind, linked, prompt

pytestmark = pytest.mark.thorough

LENGTHS = [pages * PAGE + step for pages in (3, 6) for step in (-1, 0, 1, 20)]


@pytest.fixture
def node(tmp_path):
    with NodeProcess(tmp_path, pool={"bytes": "256MiB"}, disk=False, memory=40_000) as node:
        yield node


def test_decoders_load_every_whole_page_that_a_prefiller_computed(node, start, same):
    """Behind HiCache and with the linker; what is behind the last whole page they compute."""
    config = {"node": str(node.path), "deadlines": PATIENT}
    prompts = [prompt(f"prefilled {length}", length) for length in LENGTHS]
    client = node.client()
    prefill = start(**behind(**config))
    prefill.generate(*prompts, tokens=1)
    pages = sum(length // PAGE for length in LENGTHS)
    until(lambda: [tier.chunks for tier in client.health(soon()).tiers] == [pages])
    prefill.pause()  # it is there, and an idle SGLang never rests
    # The last token is always computed, and with it its page.
    loaded = [(length - 1) // PAGE * PAGE for length in LENGTHS]
    for settings, found in ((behind(**config), "storage"), (linked(**config), "host")):
        decode = start(**settings)
        answers = same(decode, *prompts)
        assert [getattr(answer, found) for answer in answers] == loaded
        decode.kill()
    prefill.kill()
    client.close()
    node.at_rest()
