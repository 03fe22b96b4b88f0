"""Segments are found at any offset of a prompt, and nothing is found that is not there."""

from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hexkv.blending import anywhere
from hexkv.blending.anywhere import WindowFinder
from hexkv.blending.chunking import SegmentChunker
from hexkv.contracts.segment_finder import SegmentFinderContract
from hexkv.core.keys.hashing import NamespaceHasher
from hexkv.core.keys.tokens import pack
from hexkv.ports import DType, KVLayout, Namespace

LAYOUT = KVLayout.attention(DType.FLOAT16, layers=1, heads=1, key_width=2)
KEYER = NamespaceHasher(Namespace("toy", LAYOUT), chunker=SegmentChunker(maximum=512))


def named(tokens, after=None):
    return KEYER.name_ends(pack(tokens), 0, [len(tokens)], after)[0]


@pytest.mark.thorough
class TestWindowFinder(SegmentFinderContract):
    @pytest.fixture
    def finder(self):
        return WindowFinder(KEYER, self.budget, self.least)

    @pytest.fixture
    def name(self):
        return lambda tokens, after: named([*tokens], after)


@pytest.mark.thorough
class TestWindowFinderOfShortChunks(TestWindowFinder):
    """Windows of two tokens, at all of them."""

    least = 4


@settings(max_examples=80, deadline=None)
@given(
    st.integers(1, 40),
    st.lists(st.integers(0, 200), min_size=1, max_size=4),
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 40)), max_size=5),
    st.integers(1, 3),
    st.randoms(use_true_random=False),
    st.booleans(),
)
def test_every_stored_piece_is_found_at_every_offset_also_if_all_windows_collide(
    least, longer, order, letters, dice, collide
):
    """Texts of few tokens look like one another; hashes that are all the same cost time only."""
    finder = WindowFinder(KEYER, 1 << 20, least)
    pieces = [
        [9 + n, *dice.choices(range(letters), k=least + more)] for n, more in enumerate(longer)
    ]
    with pytest.MonkeyPatch.context() as patch:
        if collide:
            patch.setattr(anywhere, "hash", len, raising=False)
        for piece in pieces:
            assert finder.add(named(piece), pack(piece))
        prompt, want = [], []
        for which, gap in order:
            prompt += dice.choices(range(letters), k=gap)
            piece = pieces[which % len(pieces)]
            want.append((named(piece), len(prompt), len(prompt) + len(piece), 0))
            prompt += piece
        found = finder.find(pack(array("I", prompt)))
    assert [*found] == want
