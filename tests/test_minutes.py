"""``make test`` stays a matter of minutes, and what it leaves out is a matter of choice."""

import re
from itertools import product
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from depth import covering

MOST = 3500
"""Items that it may have; what there is more of has the marker ``thorough``."""


def test_make_test_has_few_items(request):
    taken = [item for item in request.session.items if not left_out(item.iter_markers())]
    assert 1 <= len(taken) <= MOST


def left_out(marks):
    return any(mark.name in ("thorough", "gpu") for mark in marks)


COLUMNS = st.lists(st.integers(1, 6).map(range), min_size=1, max_size=4)


@given(columns=COLUMNS)
def test_a_matrix_is_whole_and_the_part_of_minutes_has_each_value(columns):
    rows = covering(*columns)
    assert [row.values for row in rows] == list(product(*columns))
    few = [row.values for row in rows if not left_out(row.marks)]
    assert len(few) <= max(map(len, columns))
    for number, column in enumerate(columns):
        assert {values[number] for values in few} == set(column)


def test_no_fixture_outlives_its_module_by_mistake():
    """Without an ``__init__.py`` pytest takes a package's fixture for one of the whole session."""
    root = Path(__file__).parents[1]
    files = [*root.glob("tests/**/*.py"), *root.glob("*/*/*/**/*.py")]
    assert Path(__file__) in files
    wrong = re.compile(r"""scope=["']package""")
    assert [str(file) for file in files if wrong.search(file.read_text())] == []
