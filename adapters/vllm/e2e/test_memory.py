"""Hits from memory, in the engine that stored them: whole, partial, shared, many at once."""

import pytest

from engines.vllm.vllm_engines import BLOCK, agree, prompt
from processes import until

CHUNK = 64
CONFIG = {
    "chunk": {"size": CHUNK},
    "pool": {"bytes": "256MiB"},
    "tiers": [{"store": "memory", "budget": "192MiB"}],
}


@pytest.fixture(scope="module")
def engine(start):
    """Prefills 512 tokens a step: every longer prompt is computed in parts."""
    return start(CONFIG, by_name=True, max_num_batched_tokens=512)


def whole(tokens):
    """Tokens in blocks that are full, where the last chunk of a prompt ends."""
    return tokens // BLOCK * BLOCK


def test_the_first_time_everything_is_computed_and_the_second_time_loaded(engine, same):
    words = prompt("twice", 900)
    assert same(engine, words) == [0]
    assert same(engine, words) == [whole(900)]


def test_at_least_one_token_of_a_whole_prompt_is_computed(engine, same):
    words = prompt("exact", 8 * CHUNK)
    assert same(engine, words) == [0]
    [cached] = same(engine, words)
    assert 8 * CHUNK - BLOCK <= cached < len(words)


def test_each_turn_of_a_conversation_loads_what_the_one_before_it_left(engine, same):
    words, left = prompt("longer", 1000), 0
    for tokens in (BLOCK - 1, 100, 150, 190, 500, 530, 1000):
        assert same(engine, words[:tokens]) == [left]
        left = whole(tokens)
    branch = words[:500] + prompt("another turn", 100)
    assert same(engine, branch) == [whole(500)]
    assert same(engine, words[:530]) == [whole(530)]


def test_prompts_share_what_they_begin_with_and_no_more(engine, same):
    common = prompt("common", 5 * CHUNK)
    same(engine, common + prompt("first", 300))
    assert same(engine, common + prompt("second", 300)) == [len(common)]


def test_eight_prompts_at_once_are_computed_and_loaded_at_once(engine, same):
    prompts = [prompt(f"crowd {n}", 300 + 70 * n) for n in range(8)]
    assert same(engine, *prompts) == [0] * 8
    assert same(engine, *prompts) == [whole(len(words)) for words in prompts]


def test_a_prompt_that_is_shorter_than_a_block_is_just_computed(engine, same):
    words = prompt("short", BLOCK - 1)
    assert same(engine, words) == [0]
    assert same(engine, words) == [0]


@pytest.mark.parametrize("refused", ["read", "write"])
def test_a_request_may_refuse_to_read_or_to_write(engine, same, reference, refused):
    words = prompt(f"refuses to {refused}", 400)
    refuses = {"kv_transfer_params": {"hexkv": {refused: False}}}
    if refused == "read":
        same(engine, words)
    answers = engine.generate(words, extra=refuses)
    assert agree(answers, reference(words))
    assert answers[0].cached == 0
    assert same(engine, words) == [whole(400) if refused == "read" else 0]


def test_vllm_counts_the_tokens_that_were_loaded(engine, same):
    before = engine.metrics()
    words = prompt("counted", 400)
    same(engine, words)
    same(engine, words)
    until(lambda: counted(engine, before, "vllm:external_prefix_cache_hits_total") == whole(400))
    assert counted(engine, before, "vllm:prompt_tokens_cached_total") == whole(400)


def counted(engine, before, name):
    return engine.metrics()[name] - before[name]
