"""Prompts that were named lately are not hashed again, and get the names that they would get."""

from array import array
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hexkv.core.keys import prompts
from hexkv.core.keys.chunking import PrefixChunker
from hexkv.core.keys.hashing import SHA256, NamespaceHasher
from hexkv.core.keys.prompts import ChunkHasher
from hexkv.core.keys.recent import RecentPrompts
from hexkv.ports import DType, HashFunction, InvalidTokens, KVLayout, Namespace

CHUNK = 4
PLAIN = Namespace("toy", KVLayout.attention(DType.FLOAT16, layers=1, heads=1, key_width=8))
SPACES = [PLAIN, replace(PLAIN, salt="mine"), replace(PLAIN, lora="adapter")]


@st.composite
def turns(draw):
    """Prompts of several namespaces that begin like others, as lists, arrays or bytes."""
    known, asked = [[]], []
    for _ in range(draw(st.integers(1, 12))):
        parent = draw(st.sampled_from(known))
        kept = draw(st.integers(0, len(parent)))
        known.append(parent[:kept] + draw(st.lists(st.integers(0, 2), max_size=5 * CHUNK)))
        kind = draw(st.sampled_from([list, lambda t: array("I", t), lambda t: as_bytes(t)]))
        asked.append((draw(st.sampled_from(SPACES)), known[-1], kind))
    return asked


def as_bytes(tokens):
    return memoryview(array("I", tokens).tobytes()).cast("I")


@given(turns(), st.integers(0, 2000), st.sampled_from([0, 20, prompts.LEAST]))
def test_a_prompt_has_its_own_names_whatever_was_named_before_it(asked, limit, least):
    hasher = ChunkHasher(PrefixChunker(CHUNK, tail=2), SHA256)
    hasher._recent = recent = RecentPrompts(CHUNK * 4, limit)
    before, prompts.LEAST = prompts.LEAST, least
    try:
        for namespace, tokens, kind in asked:
            given = kind(tokens)
            named = hasher.name(given, namespace)
            packed = memoryview(array("I", tokens)).cast("B")
            expected = NamespaceHasher(namespace, SHA256, PrefixChunker(CHUNK, tail=2))
            assert [*named.keys] == expected.name(packed)
            assert named.ends == expected.cut(packed).ends
            assert sum(kept.size for kept in recent._named) <= limit
            assert len(recent._named) <= 16
            if isinstance(given, array) and given:  # the caller's memory is the caller's again
                given[0] += 7
    finally:
        prompts.LEAST = before


def counted(hashed):
    """A hash that notes in *hashed* of how many bytes it was asked."""

    def digest(data):
        hashed.append(len(data))
        return SHA256.digest(data)

    return HashFunction("counted", digest)


def test_a_short_prompt_that_comes_again_is_not_hashed_again():
    hashed = []
    hasher = ChunkHasher(PrefixChunker(CHUNK), counted(hashed))
    tokens = list(range(3 * CHUNK))
    first = hasher.name(tokens, PLAIN)
    hashed.clear()
    assert hasher.name(array("I", tokens), PLAIN).keys == first.keys
    assert not hashed
    tokens[-1] += 1
    assert hasher.name(tokens, PLAIN).keys[-1] != first.keys[-1], "the same list, of other tokens"
    assert hasher.name(tokens, SPACES[1]).keys[0] != first.keys[0], "another namespace"
    hasher.name([0, 1], PLAIN)
    with pytest.raises(InvalidTokens):
        hasher.name([False, True], PLAIN)


def test_only_what_is_new_of_a_long_prompt_is_hashed():
    hashed = []
    hasher = ChunkHasher(PrefixChunker(256), counted(hashed))
    tokens = array("I", range(100 * 256))
    for prompt, chunks in (
        (tokens, 100),
        (tokens, 0),
        (tokens[: 80 * 256 + 9], 0),
        (tokens + tokens[: 2 * 256], 2),
        (tokens[: 70 * 256] + tokens, 100),
        (tokens + tokens[: 3 * 256], 1),
    ):
        hasher.name(tokens[:5], PLAIN)
        hashed.clear()
        assert len(hasher.name(prompt, PLAIN).keys) == len(prompt) // 256
        assert len(hashed) == chunks
    hasher.name(tokens, SPACES[1])
    assert len(hashed) == 1 + 100 + 1, "another namespace has other names"
