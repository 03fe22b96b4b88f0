"""The checker finds an order of every history that has one, and of no other."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from hexkv.contracts.kit.cases import each
from hexkv.contracts.store.parallel._history import Act, Event, could_be

W, R, C, D = Act.WRITE, Act.READ, Act.CONTAINS, Act.DELETE


def one_by_one(*calls):
    """Calls that do not overlap."""
    return [Event(act, value, 2 * i, 2 * i + 1) for i, (act, value) in enumerate(calls)]


@each(
    "calls",
    [
        [],
        [(R, 0), (C, 0), (D, 0)],
        [(W, 1), (R, 1), (C, 1), (W, 2), (R, 2)],
        [(W, 1), (D, 1), (R, 0), (D, 0), (C, 0)],
    ],
)
def test_what_one_thread_sees_of_a_right_store_is_right(calls):
    assert could_be(one_by_one(*calls))


@each(
    "calls",
    [
        [(R, 1)],
        [(C, 1)],
        [(D, 1)],
        [(W, 1), (R, 0)],
        [(W, 1), (C, 0)],
        [(W, 1), (D, 0)],
        [(W, 1), (W, 2), (R, 1)],
        [(W, 1), (D, 1), (R, 1)],
        [(W, 1), (D, 1), (D, 1)],
    ],
)
def test_what_no_right_store_answers_is_found(calls):
    assert not could_be(one_by_one(*calls))


def test_calls_that_overlap_may_have_come_in_either_order():
    write, again = Event(W, 1, 0, 9), Event(W, 2, 1, 8)
    for last in (1, 2):
        assert could_be([write, again, Event(R, last, 10, 11)])
    assert could_be([write, Event(R, 0, 2, 3), Event(R, 1, 4, 5)])
    assert could_be([write, Event(R, 1, 2, 3), Event(R, 1, 4, 5)])


def test_nobody_sees_the_old_after_somebody_saw_the_new():
    assert not could_be([Event(W, 1, 0, 9), Event(R, 1, 2, 3), Event(R, 0, 4, 5)])


def test_two_deleters_do_not_both_find_the_same_chunk():
    history = [Event(W, 1, 0, 1), Event(D, 1, 2, 5), Event(D, 1, 3, 4)]
    assert not could_be(history)
    assert could_be([*history, Event(W, 2, 2, 5)])


def test_a_chunk_that_may_vanish_vanishes_for_good():
    assert could_be(one_by_one((W, 1), (R, 0), (D, 0)), loses=True)
    assert not could_be(one_by_one((W, 1), (R, 0), (R, 1)), loses=True)
    assert not could_be(one_by_one((W, 1), (C, 0), (R, 1)), loses=True)
    assert not could_be(one_by_one((W, 1), (R, 2)), loses=True)


@st.composite
def histories(draw):
    """What threads saw of a dictionary: a moment for each call, a start and an end."""
    version, events, versions = 0, [], itertools.count(1)
    for moment in range(draw(st.integers(0, 14))):
        act = draw(st.sampled_from(Act))
        match act:
            case Act.WRITE:
                value = version = next(versions)
            case Act.READ:
                value = version
            case Act.CONTAINS:
                value = int(version > 0)
            case Act.DELETE:
                value, version = int(version > 0), 0
        began = 10 * moment - draw(st.integers(0, 40))
        ended = 10 * moment + 1 + draw(st.integers(0, 40))
        events.append(Event(act, value, began, ended))
    return draw(st.permutations(events))


@given(histories())
def test_whatever_could_have_happened_is_accepted(history):
    assert could_be(history)
    assert could_be(history, loses=True)


@given(histories(), st.data())
def test_a_read_of_what_was_never_written_is_found_wherever_it_comes(history, data):
    place = data.draw(st.integers(0, 150))
    assert not could_be([*history, Event(R, 999, place, place + 30)])
