"""What the circuit breaker promises, on a clock that the test moves."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hexkv.contracts.doubles import ManualClock
from hexkv.core.io.breaker import Breaker, BreakerRules

RULES = BreakerRules(failures=3, first_pause=1.0, longest_pause=4.0)


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def breaker(clock):
    return Breaker(clock, RULES)


def opened(breaker):
    assert breaker.failed(at_once=True)
    return breaker


def test_it_opens_after_so_many_failures_in_a_row_and_says_so_once(breaker):
    assert [breaker.failed() for _ in range(5)] == [False, False, True, False, False]
    assert breaker.state == "open"
    assert not breaker.admits()


def test_a_success_in_between_starts_the_count_anew(breaker):
    for _ in range(10):
        breaker.failed()
        breaker.failed()
        breaker.succeeded()
    assert breaker.state == "closed"
    assert breaker.admits()


def test_a_call_that_does_not_answer_opens_it_at_once(breaker):
    assert breaker.failed(at_once=True)
    assert not breaker.admits()


def test_after_the_pause_one_call_passes_as_a_probe_and_no_other(breaker, clock):
    opened(breaker)
    clock.advance(RULES.first_pause)
    assert not breaker.refuses
    assert [breaker.admits() for _ in range(3)] == [True, False, False]
    assert breaker.state == "half open"


def test_asking_whether_it_refuses_is_no_probe(breaker, clock):
    opened(breaker)
    clock.advance(RULES.first_pause)
    assert [breaker.refuses for _ in range(3)] == [False, False, False]
    assert breaker.state == "open"


def test_a_probe_that_succeeds_closes_it(breaker, clock):
    opened(breaker)
    clock.advance(RULES.first_pause)
    assert breaker.admits()
    breaker.succeeded()
    assert breaker.state == "closed"
    assert all(breaker.admits() for _ in range(3))


def test_each_probe_that_fails_doubles_the_pause_up_to_the_longest(breaker, clock):
    opened(breaker)
    for pause in (1.0, 2.0, 4.0, 4.0, 4.0):
        clock.advance(pause - 0.001)
        assert not breaker.admits()
        clock.advance(0.001)
        assert breaker.admits()
        assert not breaker.failed()  # open it was already


def test_a_probe_that_never_answers_is_not_the_last(breaker, clock):
    opened(breaker)
    clock.advance(RULES.first_pause)
    assert breaker.admits()
    clock.advance(RULES.first_pause)
    assert breaker.admits()


def test_failures_of_calls_from_before_it_opened_do_not_lengthen_the_pause(breaker, clock):
    opened(breaker)
    for _ in range(10):
        breaker.failed()
    clock.advance(RULES.first_pause)
    assert breaker.admits()


@given(st.lists(st.sampled_from(["fail", "hang", "ask"]), max_size=60), st.integers(1, 10))
def test_whatever_went_before_one_success_after_the_longest_pause_closes_it(events, threshold):
    clock = ManualClock()
    breaker = Breaker(clock, BreakerRules(threshold, first_pause=1.0, longest_pause=10.0))
    for event in events:
        clock.advance(0.7)
        if event == "ask" or breaker.admits():
            breaker.failed(at_once=event == "hang")
    clock.advance(10.0)
    assert breaker.admits()
    breaker.succeeded()
    assert breaker.state == "closed"
