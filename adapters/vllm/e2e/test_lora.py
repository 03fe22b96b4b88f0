"""A LoRA adapter changes the KV of the same tokens: who has it shares with nobody who has not."""

import shutil
import subprocess
import sys

import pytest

from vllm_engines import E2E, PATIENCE, Engine, agree, prompt

CHUNK = 64
TOKENS = 700
WHOLE = TOKENS // CHUNK * CHUNK
CONFIG = {
    "chunk": {"size": CHUNK},
    "pool": {"bytes": "256MiB"},
}
LORA = {"enable_lora": True, "max_lora_rank": 8, "max_loras": 2}
BOTH = (False, True)


def request(folder, number=1):
    return {"lora_name": f"tiny {number}", "lora_int_id": number, "lora_path": str(folder)}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """An adapter, one that was trained longer, and a place where either lies."""
    parent = tmp_path_factory.mktemp("lora")
    for name, seed in (("first", "22"), ("second", "23")):
        command = [sys.executable, str(E2E / "tiny_lora.py"), str(parent / name), seed]
        subprocess.run(command, check=True, timeout=PATIENCE)
    shutil.copytree(parent / "first", parent / "served")
    return parent


@pytest.fixture(scope="module")
def expected(model, folders, tmp_path_factory):
    """What a prompt gets without a connector: with the first adapter, without, with the second."""
    words = prompt("adapted", TOKENS)
    adapters = {
        True: request(folders / "first"),
        False: None,
        "second": request(folders / "second", 2),
    }
    with Engine(model, tmp_path_factory.mktemp("lora") / "log", **LORA) as engine:
        return {which: engine.generate(words, lora=lora) for which, lora in adapters.items()}


@pytest.fixture(scope="module")
def served(start, tmp_path_factory):
    """An engine whose tier stays, and how it is started again."""
    disk = {"store": "disk", "settings": {"root": str(tmp_path_factory.mktemp("lora") / "kv")}}
    return lambda: start(CONFIG | {"tiers": [disk]}, **LORA)


def test_only_prompts_with_the_weights_that_were_loaded_share(served, folders, expected):
    engine, adapter = served(), request(folders / "served")
    words = prompt("adapted", TOKENS)
    engine.generate(words[:CHUNK], lora=adapter)  # now vLLM has it
    shutil.copytree(folders / "second", folders / "served", dirs_exist_ok=True)
    assert expected[True][0].tokens != expected[False][0].tokens  # it matters which one it is
    for cached in (0, WHOLE):
        for with_it in BOTH:
            answers = engine.generate(words, lora=with_it and adapter)
            assert agree(answers, expected[with_it])
            # One chunk came with the request that had the adapter loaded.
            assert answers[0].cached == (cached or (CHUNK if with_it else 0))
        engine.flush()
    engine.close()

    again = served()
    for folder, number, which, cached in (("served", 1, "second", 0), ("first", 2, True, WHOLE)):
        adapter = request(folders / folder, number)
        again.generate(prompt("other", CHUNK), lora=adapter)
        answers = again.generate(words, lora=adapter)
        assert agree(answers, expected[which])
        assert answers[0].cached == cached
