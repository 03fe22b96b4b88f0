"""Two real vLLM engines on one node: one prefills, as routers ask for it, the other one decodes."""

import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from engines.vllm.vllm_engines import BLOCK, E2E, PATIENCE, Engine, Reference, agree, prompt
from nodes import NodeProcess

pytestmark = pytest.mark.thorough

CHUNK = 64
LORA = {"enable_lora": True, "max_lora_rank": 8, "max_loras": 2}
PREFILLS = {
    "in parts": {"max_num_batched_tokens": 100, "enable_chunked_prefill": True},
    "whole": {"max_num_batched_tokens": 4096, "enable_chunked_prefill": False},
}
BORDERS = [
    around + step
    for around in (BLOCK, CHUNK, 2 * CHUNK, 5 * CHUNK, 9 * CHUNK + BLOCK)
    for step in (-1, 0, 1)
]

AT_ONCE = 32
LENGTHS = [
    border + step for border in range(BLOCK, 5 * CHUNK + 1, BLOCK) for step in range(-10, 10)
]
"""Of two hundred prompts: every length around every border of a block, and so of a chunk."""

TURNS = -(-len(LENGTHS) // AT_ONCE)

HANDS_OFF = {"kv_transfer_params": {"hexkv": {"read": False, "write": False}}}


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    root = tmp_path_factory.mktemp("node")
    with NodeProcess(root, pool={"bytes": "1GiB"}, disk=False, memory=200_000) as node:
        yield node


@pytest.fixture(scope="module")
def config(node):
    return {"chunk": {"size": CHUNK}, "node": str(node.path)}


@pytest.fixture(scope="module")
def started(model, start, config, tmp_path_factory):
    """The engine that decodes, and one without a connector, which start beside each other."""
    log = tmp_path_factory.mktemp("reference") / "log"
    with ThreadPoolExecutor(2) as threads:
        alone = threads.submit(Engine, model, log)
        decode = threads.submit(start, config, options={"takes_over": True}, **LORA)
    with alone.result() as engine:
        yield decode.result(), Reference(engine)


@pytest.fixture(scope="module")
def decode(started):
    return started[0]


@pytest.fixture(scope="module")
def reference(started):
    return started[1]


@pytest.fixture(scope="module", params=PREFILLS)
def prefill(request, start, config):
    engine = start(config, options={"hands_over": True}, **LORA, **PREFILLS[request.param])
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def adapter(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lora") / "adapter"
    command = [sys.executable, str(E2E / "tiny_lora.py"), str(folder), "22"]
    subprocess.run(command, check=True, timeout=PATIENCE)
    return {"lora_name": "tiny 1", "lora_int_id": 1, "lora_path": str(folder)}


def hand_over(prefill, decode, *prompts, **said):
    """What the decoder answers once the prefiller has; how much of each prompt it computed."""
    first = prefill.generate(*prompts, tokens=1, **said)
    answers = decode.generate(*prompts, **said)
    for one, all_of_it in zip(first, answers, strict=True):
        assert one.tokens == all_of_it.tokens[:1]
    return answers, [len(words) - got.cached for words, got in zip(prompts, answers, strict=True)]


def check(reference, prefill, decode, *prompts, **said):
    answers, computed = hand_over(prefill, decode, *prompts, **said)
    assert agree(answers, reference(*prompts))
    assert max(computed) <= 1, dict(zip(map(len, prompts), computed, strict=True))


def test_prompts_around_the_borders_of_chunks_and_blocks(reference, prefill, decode):
    for length in BORDERS:
        check(reference, prefill, decode, prompt(f"{prefill.log} {length}", length))


def test_many_at_once_of_any_length(reference, prefill, decode):
    dice = random.Random(str(prefill.log))
    for turn in range(3):
        lengths = [dice.randrange(2, 500) for _ in range(32)]
        words = [prompt(f"{prefill.log} {turn} {i}", length) for i, length in enumerate(lengths)]
        check(reference, prefill, decode, *words)


@pytest.mark.parametrize("turn", range(TURNS))
def test_two_hundred_prompts_of_all_lengths_with_salts_and_adapters(
    reference, prefill, decode, adapter, turn
):
    """In turns of 32 at once, the last one of eight."""
    assert len(LENGTHS) == 200
    for engine in (prefill, decode):  # now it is loaded
        engine.generate(prompt("any", CHUNK), tokens=1, lora=adapter)
    lengths = random.Random(2).sample(LENGTHS, len(LENGTHS))[turn * AT_ONCE :][:AT_ONCE]
    words = [prompt(f"{prefill.log} all {turn} {length}", length) for length in lengths]
    said = ({}, {"salt": f"tenant {turn}"}, {"lora": adapter})[turn % 3]
    if said.get("lora"):
        expected = decode.generate(*words, lora=adapter, extra=HANDS_OFF)
    else:
        expected = reference.at_once(*words)
    answers, computed = hand_over(prefill, decode, *words, **said)
    assert agree(answers, expected)
    assert max(computed) <= 1, dict(zip(map(len, words), computed, strict=True))


def test_a_salt_hands_over_to_its_own_tenant_alone(reference, prefill, decode):
    words = prompt(f"salt {prefill.log}", 333)
    check(reference, prefill, decode, words, salt="one")
    for other in ("two", ""):
        [answer] = decode.generate(words, salt=other)
        assert agree([answer], reference(words))
        assert not answer.cached


def test_an_adapter_hands_over_to_the_same_adapter_alone(reference, prefill, decode, adapter):
    decode.generate(prompt("any", CHUNK), tokens=1, lora=adapter)  # now it is loaded
    words = prompt(f"lora {prefill.log}", 333)
    alone = decode.generate(words, lora=adapter, extra=HANDS_OFF)
    prefill.generate(prompt("any", CHUNK), tokens=1, lora=adapter)
    answers, computed = hand_over(prefill, decode, words, lora=adapter)
    assert agree(answers, alone)
    assert max(computed) <= 1
    assert alone[0].tokens != reference(words)[0].tokens
    [plain] = decode.generate(words)
    assert agree([plain], reference(words))
    assert not plain.cached
