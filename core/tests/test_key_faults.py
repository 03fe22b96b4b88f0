"""Which chunks are barred because they cannot be read, and which failures count against stores."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hexkv.contracts.doubles import ManualClock, chunk_key
from hexkv.core.tiers.stores.key_faults import FIRST_BAR, LONGEST_BAR, KeyFaults
from hexkv.ports import Failed, Hit, Miss, StoreError, StoreFull, StoreUnreachable, TimedOut

A, B, C = (chunk_key(name) for name in "abc")
BAD, GONE = Failed(StoreError("bad sector")), Failed(StoreUnreachable("no connection"))
WELL = Hit(4096)


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def faults(clock):
    return KeyFaults(clock)


def test_the_second_failure_in_a_row_bars_a_chunk(faults):
    faults.read([A], [BAD])
    assert faults.once(A)
    assert faults.barred([A]) == []
    faults.read([A], [BAD])
    assert not faults.once(A)
    assert faults.barred([A, B]) == [A]
    assert list(faults.without([A, B], [True, True])) == [False, True]


def test_what_was_read_in_between_begins_anew(faults):
    for outcome in (BAD, WELL, BAD, Miss(), BAD):
        faults.read([A], [outcome])
    assert faults.barred([A]) == []


def test_a_bar_ends_and_the_next_failure_bars_for_twice_as_long(faults, clock):
    pause = FIRST_BAR
    faults.read([A], [BAD])
    for _ in range(6):
        faults.read([A], [BAD])
        clock.advance(pause - 1)
        assert faults.barred([A])
        clock.advance(1)
        assert not faults.barred([A])
        pause = min(2 * pause, LONGEST_BAR)


def test_a_store_that_is_not_reached_is_no_fault_of_its_chunks(faults):
    for _ in range(5):
        faults.read([A], [GONE])
        assert faults.reads_well([A], [GONE]) is False
    assert not faults.barred([A])


def test_a_chunk_is_at_fault_where_its_store_answers_something_else(faults):
    faults.read([A], [GONE])
    faults.answered()
    faults.read([A], [GONE])
    assert faults.barred([A])
    assert not faults.take_fresh()[A].alone, "nothing is removed that may only be out of reach"


@pytest.mark.parametrize("beside", [[], [WELL]])
def test_a_chunk_may_be_removed_where_the_store_brings_others(faults, beside):
    for _ in range(2):
        faults.read([A, B][: 1 + len(beside)], [BAD, *beside])
    ((key, barred),) = faults.take_fresh().items()
    assert (key, barred.alone) == (A, bool(beside))
    assert not faults.take_fresh()


def test_one_chunk_counts_against_its_store_once(faults):
    well = []
    for _ in range(5):
        faults.read([A], [BAD])
        well.append(faults.reads_well([A], [BAD]))
    assert well == [False, None, None, None, None]
    faults.read([B], [WELL])
    faults.read([A], [BAD])
    assert faults.reads_well([A], [BAD]) is False, "something else was brought meanwhile"


def test_many_chunks_count_against_their_store(faults):
    for number in range(9):
        key = chunk_key(str(number))
        faults.read([key], [BAD])
        assert faults.reads_well([key], [BAD]) is False
    assert faults.reads_well([A], [TimedOut()]) is False
    assert faults.reads_well([A], [BAD]) is False, "the whole call failed: it was not noted"


def test_one_chunk_that_cannot_be_written_counts_against_its_store_once(faults):
    assert [faults.writes_well([A], [BAD], [BAD]) for _ in range(3)] == [False, None, None]
    assert faults.writes_well([A, B], [BAD, BAD], [BAD, BAD]) is False
    assert faults.writes_well([A], [GONE], [GONE]) is False
    assert faults.writes_well([A], [Failed(StoreFull("full"))], [Failed(StoreFull("full"))]) is True
    assert faults.writes_well([A], [BAD], [BAD]) is False


ANSWERS = st.sampled_from([WELL, Miss(), BAD, GONE, TimedOut()])


@given(st.lists(st.lists(st.tuples(st.sampled_from([A, B, C]), ANSWERS), min_size=1, max_size=3)))
def test_only_chunks_that_failed_twice_since_they_were_read_are_barred(calls):
    faults, row = KeyFaults(ManualClock()), dict.fromkeys((A, B, C), 0)
    for call in calls:
        answers = dict(call)
        faults.read(list(answers), list(answers.values()))
        for key, outcome in answers.items():
            if isinstance(outcome, Failed):
                row[key] += 1
            elif not isinstance(outcome, TimedOut):
                row[key] = 0
    barred = faults.barred([A, B, C])
    assert all(row[key] >= 2 for key in barred)
    assert set(faults.noted) == {key for key, failures in row.items() if failures}
