"""Weights that are loaded into a running engine: answers are theirs, and nothing of it is kept."""

import subprocess
import sys

import pytest

from engines.vllm.vllm_engines import BLOCK, E2E, PATIENCE, Engine, Reference, offloading, prompt

pytestmark = pytest.mark.thorough

TOKENS = 700
WHOLE = TOKENS // BLOCK * BLOCK


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    """A folder with other weights of the same model."""
    folder = tmp_path_factory.mktemp("other") / "weights"
    command = [sys.executable, str(E2E / "tiny_llama.py"), str(folder), "21"]
    subprocess.run(command, check=True, timeout=PATIENCE)
    return folder


@pytest.fixture(scope="module")
def others(other, tmp_path_factory):
    """What prompts get with them, without a connector."""
    with Engine(other, tmp_path_factory.mktemp("others") / "log") as engine:
        yield Reference(engine).same


@pytest.mark.parametrize("way", ["connector", "offloading"])
def test_no_kv_is_used_or_kept_under_weights_that_did_not_compute_it(
    start, same, others, model, other, tmp_path, way
):
    disk = {"store": "disk", "tails": True, "settings": {"root": str(tmp_path / "kv")}}
    config = {"pool": {"bytes": "256MiB"}, "tiers": [{"store": "memory"}, disk]}
    one, new = prompt("one", TOKENS), prompt("new", TOKENS)

    def begin():
        if way == "connector":
            return start(config)
        return start({}, transfer=offloading(config), enable_prefix_caching=True)

    def hits(engine, words, right=same):
        [cached] = right(engine, words)
        engine.flush()
        engine.reset()
        return cached

    engine = begin()
    assert hits(engine, one) == 0
    assert hits(engine, one) == WHOLE
    engine.sleep(1)
    assert hits(engine, one) == WHOLE, "its files are on the disk, and in memory"
    engine.call("reload_weights")
    assert hits(engine, one) == WHOLE, "they are the same weights"
    engine.call("reload_weights", weights_path=str(other))
    for words in (one, new, one, new):
        assert hits(engine, words, others) == 0
    assert engine.said("the model's weights were replaced (reload_weights)")
    engine.call("reload_weights", weights_path=str(model))
    assert hits(engine, one) == 0, "it computed with others"
    engine.close()

    again = begin()
    assert hits(again, one) == WHOLE
    assert hits(again, new) == 0
    again.ask("scale", factor=1.25)
    assert again.said("the model's weights were replaced (apply_model)")
    again.close()
