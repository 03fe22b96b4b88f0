"""A LoRA adapter changes the KV of the same tokens: who has it shares with nobody who has not."""

import subprocess
import sys

import pytest

from vllm_engines import E2E, PATIENCE, Engine, agree, prompt

pytestmark = pytest.mark.thorough

CHUNK = 64
TOKENS = 700
WHOLE = TOKENS // CHUNK * CHUNK
CONFIG = {
    "chunk": {"size": CHUNK},
    "pool": {"bytes": "256MiB"},
    "tiers": [{"store": "memory", "budget": "192MiB"}],
}
LORA = {"enable_lora": True, "max_lora_rank": 8}
BOTH = (False, True)


@pytest.fixture(scope="module")
def adapter(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lora") / "adapter"
    script = E2E / "tiny_lora.py"
    subprocess.run([sys.executable, str(script), str(folder)], check=True, timeout=PATIENCE)
    return {"lora_name": "tiny", "lora_int_id": 1, "lora_path": str(folder)}


@pytest.fixture(scope="module")
def expected(model, adapter, tmp_path_factory):
    """What a prompt gets without a connector: with the adapter, and without it."""
    words = prompt("adapted", TOKENS)
    with Engine(model, tmp_path_factory.mktemp("lora") / "log", **LORA) as engine:
        return {with_it: engine.generate(words, lora=with_it and adapter) for with_it in BOTH}


def test_prompts_share_only_with_the_same_adapter(start, adapter, expected):
    engine = start(CONFIG, **LORA)
    words = prompt("adapted", TOKENS)
    assert expected[True][0].tokens != expected[False][0].tokens  # it matters which one it is
    for cached in (0, WHOLE):
        for with_it in BOTH:
            answers = engine.generate(words, lora=with_it and adapter)
            assert agree(answers, expected[with_it])
            assert answers[0].cached == cached
