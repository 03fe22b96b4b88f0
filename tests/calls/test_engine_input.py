"""What the engine takes as tokens, windows and layouts, and what it refuses."""

from array import array
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from hexkv.contracts.doubles.heap_kv import HeapKV
from hexkv.contracts.kit.cases import each
from hexkv.core.keys.chunking import PrefixChunker
from hexkv.ports import (
    ConfigError,
    DType,
    InvalidRequest,
    InvalidTokens,
    KVLayout,
    LayoutMismatch,
    Namespace,
)
from prompts import FULL, PROMPT, computed, empty, memory
from rigging import CHUNK, LAYOUT


@each(
    "spell",
    [tuple, lambda t: array("I", t), lambda t: np.array(t), lambda t: torch.tensor(t)],
    ids=["tuple", "array", "numpy", "torch"],
)
def test_tokens_have_many_spellings_and_one_name(rig, spell):
    r = rig([memory()])
    r.engine.store(PROMPT, computed())
    assert r.engine.lookup(spell(PROMPT)).hit_tokens == FULL


@each("tokens", [[], [7], PROMPT[: CHUNK - 1]])
def test_prompts_shorter_than_a_chunk_store_and_hit_nothing(rig, tokens):
    r = rig([memory()])
    assert r.engine.store(tokens, computed(tokens)).stored_tokens == 0
    assert r.engine.lookup(tokens).hit_tokens == 0
    assert r.engine.retrieve(tokens, empty(tokens)).hit_tokens == 0


RELEASED = memoryview(array("I", PROMPT))
RELEASED.release()


@each("tokens", [[-1], [2**32], [1.5], "text", None, 5, [[1, 2]], [None], RELEASED])
def test_wrong_tokens_are_refused(rig, tokens):
    r = rig([memory()])
    with pytest.raises(InvalidTokens):
        r.engine.lookup(tokens)
    with pytest.raises(InvalidTokens):
        r.engine.retrieve(tokens, empty([1]))
    with pytest.raises(InvalidTokens):
        r.engine.store(tokens, empty([1]))
    for prompts in ([PROMPT, tokens], None, 5):
        with pytest.raises(InvalidTokens):
            r.engine.lookup_many(prompts)
    assert r.at_rest()


def test_a_window_of_the_wrong_length_is_refused(rig):
    r = rig([memory()])
    for call in (r.engine.store, r.engine.retrieve):
        with pytest.raises(InvalidRequest, match="addresses 164 positions for 165 tokens"):
            call(PROMPT, HeapKV(LAYOUT, len(PROMPT) - 1))
        with pytest.raises(InvalidRequest, match="not a window"):
            call(PROMPT, object())
        with pytest.raises(InvalidRequest, match="the window has no method 'gather'"):
            call(PROMPT, SimpleNamespace(layout=LAYOUT, tokens=len(PROMPT)))


@each("skip", [-1, len(PROMPT) + 1])
def test_skipping_outside_the_prompt_is_refused(rig, skip):
    with pytest.raises(InvalidRequest, match="skip must be"):
        rig([memory()]).engine.store(PROMPT, computed(), skip=skip)


@each("seconds", [float("nan"), float("inf"), -1.0, 10**400, True, "60"])
def test_a_time_that_is_none_or_never_ends_is_refused(rig, seconds):
    engine = rig([memory()]).engine
    engine.store(PROMPT, computed())
    with pytest.raises(InvalidRequest, match="a time is"):
        engine.pin(PROMPT, "somebody", seconds=seconds)
    with pytest.raises(InvalidRequest, match="a time is"):
        engine.flush(seconds)
    for call in (
        engine.lookup,
        lambda prompt, timeout: engine.lookup_many([prompt], timeout=timeout),
    ):
        with pytest.raises(InvalidRequest, match="a time is"):
            call(PROMPT, timeout=seconds)
    assert engine.health().pins == {}


def test_a_layout_that_does_not_match_is_refused(rig):
    r = rig([memory()])
    other = KVLayout.attention(DType.FLOAT32, layers=3, heads=2, key_width=8, value_width=4)
    with pytest.raises(LayoutMismatch, match="float32"):
        r.engine.store(PROMPT, HeapKV(other, len(PROMPT)))
    with pytest.raises(LayoutMismatch, match="larger than the pool's blocks"):
        r.engine.lookup(PROMPT, namespace=Namespace("big", KVLayout.latent(
            DType.FLOAT32, layers=64, latent_width=512, rope_width=64)))  # fmt: skip


def test_a_chunk_larger_than_a_block_is_refused_when_the_engine_is_built(rig):
    with pytest.raises(ConfigError, match="does not fit a block"):
        rig([memory()], chunker=PrefixChunker(4 * CHUNK))
