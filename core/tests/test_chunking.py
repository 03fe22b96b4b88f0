from __future__ import annotations

import time
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hexkv.contracts.chunker import ChunkerContract
from hexkv.contracts.kit.cases import each
from hexkv.core.keys.chunking import PrefixChunker, SegmentChunker
from hexkv.core.keys.tokens import pack
from hexkv.ports import ConfigError

# Few distinct tokens make separators meet; these bytes also make them match across tokens.
TOKENS = st.lists(st.sampled_from([0, 1, 256, 65536, 16777216]), max_size=60)
SEPARATOR = st.lists(st.sampled_from([0, 1, 256]), min_size=1, max_size=3)


def cut(chunker, tokens):
    bounds = chunker.cut(pack(tokens))
    return list(zip(bounds.starts, bounds.ends, strict=True))


def split(tokens, separator):
    """The reference: walk over the tokens."""
    pieces, start, at = [], 0, 0
    while at < len(tokens):
        if tokens[at : at + len(separator)] == separator:
            pieces.append((start, at))
            at = start = at + len(separator)
        else:
            at += 1
    return [*pieces, (start, len(tokens))]


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


class TestSegmentChunker(ChunkerContract):
    lookahead = 2
    separator = (256, 256)

    @pytest.fixture
    def chunker(self):
        return SegmentChunker(self.separator, maximum=9, minimum=2)

    @pytest.fixture
    def reference(self):
        return lambda prompt: pieces(prompt, list(self.separator), minimum=2, maximum=9)


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


def test_a_separator_is_not_found_across_the_bytes_of_two_tokens():
    assert cut(SegmentChunker([0]), [256, 256, 0, 1]) == [(0, 2), (3, 4)]
    assert cut(SegmentChunker([1]), [16777216, 16777216]) == [(0, 2)]


def pieces(tokens, separator, minimum, maximum):
    """The reference: every segment in pieces, without those that are too short."""
    return [
        (at, min(at + maximum, end))
        for start, end in split(tokens, separator)
        for at in range(start, end, maximum)
        if min(at + maximum, end) - at >= minimum
    ]


@given(TOKENS, SEPARATOR, st.integers(1, 5), st.integers(0, 5))
def test_every_token_outside_separators_is_in_one_segment_of_at_most_the_maximum(
    tokens, separator, minimum, more
):
    maximum = minimum + more
    bounds = cut(SegmentChunker(separator, maximum=maximum, minimum=minimum), tokens)
    assert bounds == pieces(tokens, separator, minimum, maximum)


@given(TOKENS, TOKENS, SEPARATOR)
def test_pieces_touch_exactly_where_they_are_of_one_segment(left, right, separator):
    bounds = cut(SegmentChunker(separator, maximum=3), [*left, *separator, *right])
    segments = split([*left, *separator, *right], separator)
    for (_, end), (start, _) in pairwise(bounds):
        together = any(first <= end - 1 and start < last for first, last in segments)
        assert (start == end) == together


def test_a_hostile_prompt_is_cut_in_linear_time():
    # Every token looks like a separator from its fourth byte on. Quadratic: minutes.
    packed = pack(np.full(200_000, 16777216, np.uint32))
    began = time.thread_time()  # what the machine does besides costs this thread nothing
    assert SegmentChunker([1], maximum=200_000).cut(packed).ends == [200_000]
    assert time.thread_time() - began < 2


@each(
    ("separator", "limits"),
    [
        ([-1], {}),
        ([1.5], {}),
        ([1], {"minimum": 0}),
        ([1], {"maximum": 0}),
        ([1], {"minimum": 9, "maximum": 8}),
    ],
)
def test_a_separator_or_a_limit_that_means_nothing_is_refused(separator, limits):
    with pytest.raises(ConfigError):
        SegmentChunker(separator, **limits)
