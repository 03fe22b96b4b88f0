"""One chunk for several engines: what transformers computed, SGLang loads, and the other way.

Nothing says that it is one model but the folder that both have loaded.
"""

import pytest

from engines.sglang.sglang_engines import PAGE, PAGES, PATIENT, TOKENS, behind, frames, prompt
from hexkv.adapters.hf.identity import namespace_of_model
from hexkv.adapters.hf.model import CachedModel
from hexkv.plugins.composition.compose import build
from hexkv.plugins.configuration.config import load
from processes import until


@pytest.fixture
def config(tmp_path):
    return {
        "pool": {"bytes": "128MiB"},
        "deadlines": PATIENT,
        "tiers": [{"store": "disk", "settings": {"root": str(tmp_path)}}],
    }


@pytest.fixture
def hf(transformer, config):
    """An engine of hexkv under transformers, which names pages like SGLang."""
    namespace = namespace_of_model(transformer)
    settings = load(environ={}, overrides=config | {"chunk": {"size": PAGE, "seeded": False}})
    with build(settings, namespace) as engine:
        yield CachedModel(transformer, engine)


def test_transformers_and_sglang_share_chunks_both_ways(hf, start, same, config, tmp_path):
    assert hf.prefill(prompt("from transformers")).stored_tokens == PAGES * PAGE

    engine = start(**behind(namespace="canonical", **config))
    [answer] = same(engine, prompt("from transformers"))
    assert answer.storage == PAGES * PAGE

    assert same(engine, prompt("from sglang"))[0].cached == 0
    until(lambda: len(frames(tmp_path)) == 2 * PAGES)
    engine.kill()
    found = hf.prefill(prompt("from sglang"))
    assert found.hit_tokens == PAGES * PAGE
    assert found.hit_tokens < TOKENS
