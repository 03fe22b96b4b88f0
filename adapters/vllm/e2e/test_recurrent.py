"""A model of which some layers keep a state and no KV, behind vLLM's own OffloadingConnector."""

import pytest

from engines.vllm.vllm_engines import BLOCK, Engine, Reference, connector, offloading, prompt

pytestmark = pytest.mark.thorough

TOKENS = 900
WHOLE = TOKENS // BLOCK * BLOCK


@pytest.fixture(scope="session")
def model(built):
    return built("tiny_conv")


@pytest.fixture(scope="module")
def same(model, tmp_path_factory):
    log = tmp_path_factory.mktemp("reference") / "log"
    # With its prefix cache vLLM cuts prompts where states are kept, and rounds accordingly.
    with Engine(model, log, enable_prefix_caching=True) as engine:
        yield Reference(engine).same


def test_states_and_kv_are_loaded_in_the_same_process_and_in_another(start, same, tmp_path_factory):
    root = tmp_path_factory.mktemp("disk")
    tiers = [{"store": "disk", "settings": {"root": str(root)}}]
    transfer = offloading({"pool": {"bytes": "256MiB"}, "tiers": tiers})
    words = prompt("recurrent", TOKENS)
    with start({}, transfer=transfer, enable_prefix_caching=True) as first:
        assert same(first, words) == [0]
        first.flush()
        first.reset()
        assert same(first, words) == [WHOLE]
        [cached] = same(first, words[:500] + prompt("another end", 300))
        assert cached <= 500
    with start({}, transfer=transfer, enable_prefix_caching=True) as second:
        assert same(second, words) == [WHOLE]


def test_the_connector_is_refused_in_one_line(model, tmp_path):
    """By vLLM itself, which cannot make one group of such layers."""
    with pytest.raises(AssertionError, match="one unified type"):
        Engine(model, tmp_path / "log", transfer=connector())
