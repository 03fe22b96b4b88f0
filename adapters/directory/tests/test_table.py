"""The table: a dictionary of sets, in two arrays."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hexkv.adapters.directory.cell import Cell
from hexkv.adapters.directory.table import _FULL, Table
from hexkv.adapters.directory.tags import tags_of
from hexkv.contracts.doubles import ManualClock
from hexkv.ports import ChunkKey, Member

COLUMNS = 70
"""More than a word has."""


def row(columns):
    words = [0, 0]
    for column in columns:
        words[column // 64] |= 1 << column % 64
    return np.array(words, np.uint64)


SOME = st.lists(st.integers(1, 60), min_size=1, max_size=40)
STEPS = st.lists(
    st.tuples(st.sampled_from(["add", "add", "remove", "wipe"]), SOME, st.sampled_from([0, 1, 69])),
    max_size=30,
)


@settings(max_examples=60)
@given(steps=STEPS, spread=st.sampled_from([1, 1 << 52, 0x9E3779B97F4A7C15]))
def test_it_is_a_set_of_columns_for_each_tag(steps, spread):
    """Tags that collide in their first slot, and ones that come twice in a batch, too."""
    table, model = Table(COLUMNS, 1000), {}

    def tag(number):
        return number * spread % 2**64 or 1

    for what, numbers, column in steps:
        tags = np.array([tag(n) for n in numbers], np.uint64)
        if what == "wipe":
            table.wipe(row([column]))
            model = {number: held - {column} for number, held in model.items()}
            continue
        getattr(table, what)(tags, column)
        for number in numbers:
            held = model.setdefault(number, set())
            (held.add if what == "add" else held.discard)(column)
        assert len(table) == sum(map(bool, model.values()))
    everyone = np.array([tag(n) for n in range(1, 61)], np.uint64)
    found = table.rows(everyone)
    for number in range(1, 61):
        assert (found[number - 1] == row(model.get(number, ()))).all(), number


def numbered(start, count):
    return np.arange(start + 1, start + count + 1, dtype=np.uint64) * np.uint64(0x2545F4914F6CDD1D)


@pytest.mark.thorough
def test_it_grows_within_its_bound_and_leaves_out_what_is_beyond():
    table = Table(64, 10_000)
    for start in range(0, 40_000, 1000):
        table.add(numbered(start, 1000), 3)
    assert 10_000 <= len(table) <= 1 << 15
    assert table.nbytes <= 16 << 15
    assert len(table) + table.dropped == 40_000
    assert table.rows(numbered(0, 10_000)).all(), "the first are those that are known"


@pytest.mark.thorough
def test_what_comes_and_goes_takes_no_more_than_what_is_there():
    table = Table(64, 1 << 20)
    for start in range(0, 200_000, 1000):
        table.add(numbered(start, 1000), 0)
        if start >= 4000:
            table.remove(numbered(start - 4000, 1000), 0)
    assert len(table) == 4000
    assert table.nbytes <= 16 * 4 * 5000 / _FULL


def test_a_column_that_is_used_again_knows_nothing_of_before():
    """Each membership but the last of 200 is over; there are 64 columns."""
    cell, keys = Cell(ManualClock()), [ChunkKey(bytes([n]) * 48) for n in range(201)]
    for generation in range(1, 201):
        number = cell.join(Member("ada", generation), 1)
        assert cell.take(number, tags_of([keys[generation]]))
    found = cell.locate(tags_of(keys)).rows
    assert np.count_nonzero(found) == 1
    assert found[200].any()
