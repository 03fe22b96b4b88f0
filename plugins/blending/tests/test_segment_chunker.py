"""Prompts are cut into segments at separators, and at no other place."""

import time
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hexkv.blending.chunking import SegmentChunker
from hexkv.contracts.chunker import ChunkerContract
from hexkv.contracts.kit.cases import each
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


class TestSegmentChunker(ChunkerContract):
    lookahead = 2
    separator = (256, 256)

    @pytest.fixture
    def chunker(self):
        return SegmentChunker(self.separator, maximum=9, minimum=2)

    @pytest.fixture
    def reference(self):
        return lambda prompt: pieces(prompt, list(self.separator), minimum=2, maximum=9)


def pieces(tokens, separator, minimum, maximum):
    """The reference: every segment in pieces, without those that are too short."""
    return [
        (at, min(at + maximum, end))
        for start, end in split(tokens, separator)
        for at in range(start, end, maximum)
        if min(at + maximum, end) - at >= minimum
    ]


@example([256, 256, 0, 1], [0], 1, 5)  # a separator across the bytes of two tokens
@example([16777216, 16777216], [1], 1, 5)
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
