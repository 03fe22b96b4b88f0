from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hexkv.contracts.chunker import ChunkerContract
from hexkv.core.keys.chunking import PrefixChunker
from hexkv.core.keys.tokens import pack
from hexkv.ports import ConfigError


def cut(chunker, tokens):
    bounds = chunker.cut(pack(tokens))
    return list(zip(bounds.starts, bounds.ends, strict=True))


class TestPrefixChunker(ChunkerContract):
    @pytest.fixture
    def chunker(self):
        return PrefixChunker(7)

    @pytest.fixture
    def reference(self):
        return lambda prompt: [(at - 7, at) for at in range(7, len(prompt) + 1, 7)]


class TestPrefixChunkerThatKeepsTails(ChunkerContract):
    @pytest.fixture
    def chunker(self):
        return PrefixChunker(7, tail=1)

    @pytest.fixture
    def reference(self):
        return lambda prompt: [(at, min(at + 7, len(prompt))) for at in range(0, len(prompt), 7)]


@given(st.integers(0, 200), st.integers(1, 20), st.integers(0, 4))
def test_prefix_chunks_leave_no_gap_and_miss_only_an_unwanted_tail(count, step, steps):
    size, tail = step * max(steps, 1), step if steps else 0
    bounds = cut(PrefixChunker(size, tail), range(count))
    covered = [position for start, end in bounds for position in range(start, end)]
    assert covered == list(range(count - count % (tail or size)))
    assert all(end - start == size for start, end in bounds[:-1])


def test_a_tail_is_no_other_scheme_but_a_size_is():
    assert PrefixChunker(4).scheme == PrefixChunker(4, tail=1).scheme
    assert PrefixChunker(4).scheme != PrefixChunker(8).scheme


def test_the_default_chunk_has_256_tokens():
    assert cut(PrefixChunker(), range(600)) == [(0, 256), (256, 512)]


def test_a_chunk_without_tokens_or_of_no_whole_tails_is_refused():
    for sizes in [(0,), (-1,), (8, 3), (8, 16), (8, -1)]:
        with pytest.raises(ConfigError):
            PrefixChunker(*sizes)
