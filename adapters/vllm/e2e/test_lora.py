"""A LoRA adapter changes the KV of the same tokens: who has it shares with nobody who has not."""

import shutil
import subprocess
import sys

import pytest

from engines.vllm.vllm_engines import BLOCK, E2E, PATIENCE, agree, prompt

pytestmark = pytest.mark.thorough

CHUNK = 64
TOKENS = 700
WHOLE = TOKENS // BLOCK * BLOCK
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
def served(start, tmp_path_factory):
    """An engine whose tier stays, and how it is started again."""
    root = str(tmp_path_factory.mktemp("lora") / "kv")
    disk = {"store": "disk", "tails": True, "settings": {"root": root}}
    return lambda: start(CONFIG | {"tiers": [disk]}, **LORA)


def alone(engine, words, adapter):
    """What a prompt gets where nothing is loaded and nothing stored."""
    hands_off = {"kv_transfer_params": {"hexkv": {"read": False, "write": False}}}
    answers = engine.generate(words, lora=adapter, extra=hands_off)
    assert answers[0].cached == 0
    return answers


def test_only_prompts_with_the_weights_that_were_loaded_share(served, folders):
    engine, adapter = served(), request(folders / "served")
    words = prompt("adapted", TOKENS)
    expected = {with_it: alone(engine, words, with_it and adapter) for with_it in BOTH}
    assert expected[True][0].tokens != expected[False][0].tokens  # it matters which one it is
    shutil.copytree(folders / "second", folders / "served", dirs_exist_ok=True)
    for cached in (0, WHOLE):
        for with_it in BOTH:
            answers = engine.generate(words, lora=with_it and adapter)
            assert agree(answers, expected[with_it])  # what vLLM has loaded stays
            assert answers[0].cached == cached
        engine.flush()
    engine.close()

    again = served()
    second = alone(again, words, request(folders / "served"))
    assert second[0].tokens != expected[True][0].tokens
    alone(again, prompt("other", CHUNK), request(folders / "first", 2))  # now vLLM has it
    for folder, number, want, cached in (
        ("served", 1, second, 0),
        ("first", 2, expected[True], WHOLE),
    ):
        answers = again.generate(words, lora=request(folders / folder, number))
        assert agree(answers, want)
        assert answers[0].cached == cached
