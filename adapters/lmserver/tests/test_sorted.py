"""A listing is in order, and a page of it costs what the page has."""

from bisect import bisect_right

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hexkv.adapters.lmserver import _sorted
from hexkv.adapters.lmserver._sorted import SortedKeys

few_keys = st.binary(max_size=2)


@given(st.lists(st.tuples(st.booleans(), few_keys), max_size=300), few_keys, st.integers(1, 50))
def test_keys_are_listed_in_their_order_and_once(changes, cursor, most):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_sorted, "_LONGEST", 4)
        keys, model = SortedKeys(), set()
        for there, key in changes:
            (keys.add if there else keys.discard)(key)
            (model.add if there else model.discard)(key)
        ordered = sorted(model)
        place = bisect_right(ordered, cursor)
        assert keys.after(cursor, most) == ordered[place : place + most]


def test_a_page_of_a_long_listing_looks_at_few_keys():
    class Counted(bytes):
        looks = 0

        def __lt__(self, other):
            Counted.looks += 1
            return bytes.__lt__(self, other)

    keys = SortedKeys()
    for number in range(50_000):
        keys.add(number.to_bytes(4))
    assert keys.after(Counted((30_000).to_bytes(4)), 9) == [
        number.to_bytes(4) for number in range(30_001, 30_010)
    ]
    assert 0 < Counted.looks < 50
    assert max(map(len, keys._runs)) <= _sorted._LONGEST
