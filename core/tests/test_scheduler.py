"""What one lane promises, with workers that the test moves by hand."""

from asyncio import CancelledError
from collections import deque
from contextlib import suppress
from logging import getLogger

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hexkv.contracts.doubles import ManualClock, RecordingTelemetry, deadline
from hexkv.contracts.kit.cases import each
from hexkv.core.io.breaker import BreakerRules
from hexkv.core.io.rules import LaneRules, Priority, Refused
from hexkv.core.io.scheduler import Lane
from hexkv.core.notices import Notices
from hexkv.ports import CounterName, Deadline


def lines(clock):
    return Notices(getLogger("hexkv"), "tier disk", clock)


class ByHand:
    """An executor whose one worker begins and ends a step when the test says so."""

    def __init__(self, clock):
        self.clock = clock
        self.steps = deque()
        self.begun = deque()
        self.closed = False

    def open(self, lane, workers):
        pass

    def run(self, lane, step):
        if not self.closed:
            self.steps.append(step)

    def wait(self, condition, ready, deadline):
        """Nothing happens while the test waits, but for time."""
        if not ready():
            self.clock.advance(deadline.remaining())
        return ready()

    def close(self, lane):
        self.closed = True

    def begin(self):
        self.begun.append(self.steps.popleft()())

    def end(self):
        completion = self.begun.popleft()
        if completion is not None:
            completion()

    def work(self):
        while self.steps:
            self.begin()
            self.end()


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def executor(clock):
    return ByHand(clock)


@pytest.fixture
def telemetry():
    return RecordingTelemetry()


@pytest.fixture
def lane(clock, executor, telemetry):
    rules = LaneRules(workers=1, queue_bytes=100, breaker=BreakerRules(failures=3))
    return Lane("disk/read", rules, executor, clock, telemetry, lines(clock))


def saying(answer, told=None, well=True):
    """Work that gives *answer*, and tells whether it was to do anything."""

    def work(go):
        if told is not None:
            told.append((answer, go))
        return answer, well if go else None

    return work


def test_a_ticket_gives_the_answer_once_the_step_is_complete(lane, executor, clock):
    ticket = lane.submit(Priority.GET, 10, saying("a"))
    executor.begin()
    assert not ticket.done
    executor.end()
    assert ticket.done
    assert ticket.result == "a"
    assert ticket.wait(deadline(0.0, clock))


def test_what_matters_more_goes_first_and_equals_in_the_order_they_came(lane, executor):
    told = []
    for number, priority in enumerate([Priority.PUT, Priority.GET, *reversed(Priority)]):
        lane.submit(priority, 1, saying((priority, number), told))
    executor.work()
    order = [answer for answer, _ in told]
    assert order == sorted(order)


def test_a_queue_holds_so_many_bytes_until_tasks_end(lane, executor):
    lane.submit(Priority.PUT, 60, saying("a"))
    with pytest.raises(Refused, match="queue full"):
        lane.submit(Priority.PUT, 41, saying("b"))
    lane.submit(Priority.PUT, 40, saying("c"))
    executor.begin()
    with pytest.raises(Refused, match="queue full"):
        lane.submit(Priority.PUT, 1, saying("d"))
    executor.end()
    assert lane.pending_bytes == 40
    lane.submit(Priority.PUT, 60, saying("e"))


def test_a_task_larger_than_the_queue_passes_alone(lane):
    lane.submit(Priority.PUT, 1000, saying("a"))
    with pytest.raises(Refused, match="queue full"):
        lane.submit(Priority.PUT, 1, saying("b"))


def test_a_task_without_bytes_keeps_no_other_from_passing(lane):
    lane.submit(Priority.DELETE, 0, saying("a"))
    lane.submit(Priority.PUT, 1000, saying("b"))
    lane.submit(Priority.DELETE, 0, saying("c"))


def test_an_abandoned_task_that_has_not_begun_does_nothing(lane, executor):
    told = []
    ticket = lane.submit(Priority.GET, 1, saying("a", told))
    ticket.abandon()
    executor.work()
    assert told == [("a", False)]
    assert ticket.done


def test_a_task_that_comes_too_late_does_nothing(lane, executor, clock):
    told = []
    lane.submit(Priority.GET, 1, saying("a", told), deadline(1.0, clock))
    clock.advance(1.0)
    executor.work()
    assert told == [("a", False)]


def test_failures_in_a_row_open_the_breaker_and_are_counted_once(lane, executor, telemetry):
    for _ in range(3):
        lane.submit(Priority.GET, 1, saying("a", well=False))
    executor.work()
    with pytest.raises(Refused, match="tier off"):
        lane.submit(Priority.GET, 1, saying("b"))
    assert telemetry.total(CounterName.BREAKER_OPENED, tier="disk") == 1


def test_a_wait_in_vain_opens_the_breaker_of_a_lane_that_ends_nothing(lane, clock, telemetry):
    ticket = lane.submit(Priority.GET, 1, saying("a"))
    assert not ticket.wait(deadline(5.0, clock))
    assert lane.breaker.state == "open"
    assert telemetry.total(CounterName.BREAKER_OPENED, tier="disk") == 1


def test_a_lane_that_still_ends_tasks_is_slow_and_not_dead(lane, executor, clock):
    lane.submit(Priority.GET, 1, saying("a"))
    ticket = lane.submit(Priority.GET, 1, saying("b"))
    wait = executor.wait

    def busy(condition, ready, until):
        executor.begin()
        executor.end()
        return wait(condition, ready, until)

    executor.wait = busy
    assert not ticket.wait(deadline(5.0, clock))
    assert lane.breaker.state == "closed"


def test_a_lane_is_not_blamed_for_time_that_others_used_up_or_callers_did_not_give(
    lane, executor, clock
):
    def late(_):
        clock.advance(1.0)
        return None, False

    for _ in range(5):
        lane.submit(Priority.GET, 1, late, Deadline.after(clock, 1.0, usual=10.0))
        executor.work()
    over = deadline(0.0, clock)
    ticket = lane.submit(Priority.GET, 1, saying("a"))
    assert not ticket.wait(over)
    for _ in range(2):
        assert not ticket.wait(Deadline.after(clock, 2.0, usual=10.0))
        with pytest.raises(Refused, match="queue full"):
            lane.admit(Priority.GET, [100], Deadline.after(clock, 2.0, usual=10.0))
    assert lane.breaker.state == "closed"
    assert not ticket.wait(Deadline.after(clock, 2.0, usual=10.0))
    assert lane.breaker.state == "open"


def test_puts_are_held_back_and_nothing_else_is(lane, executor):
    told = []
    lane.hold()
    lane.submit(Priority.PUT, 1, saying("put", told))
    lane.submit(Priority.DELETE, 1, saying("delete", told))
    executor.work()
    assert told == [("delete", True)]
    lane.unhold()
    executor.work()
    assert told == [("delete", True), ("put", True)]


def test_closing_settles_what_waits_and_refuses_the_rest(lane, executor):
    told = []
    running = lane.submit(Priority.GET, 1, saying("running", told))
    executor.begin()
    waiting = lane.submit(Priority.GET, 1, saying("waiting", told))
    lane.close()
    assert told == [("running", True), ("waiting", False)]
    assert waiting.done
    assert not running.done
    with pytest.raises(Refused, match="closed"):
        lane.submit(Priority.GET, 1, saying("late"))
    executor.end()
    assert lane.pending == 0
    assert executor.closed


def test_draining_waits_for_all_that_runs_or_waits(lane, executor, clock):
    assert lane.drain(deadline(0.0, clock))
    lane.submit(Priority.PUT, 1, saying("a"))
    assert not lane.drain(deadline(1.0, clock))
    executor.work()
    assert lane.drain(deadline(0.0, clock))


_ACTS = st.one_of(
    st.tuples(st.just("submit"), st.sampled_from(Priority), st.integers(0, 60), st.booleans()),
    st.sampled_from(["begin", "end", "hold", "unhold", "abandon", "pass", "close"]),
)


@given(st.lists(_ACTS, max_size=60))
def test_every_task_is_worked_exactly_once_and_its_bytes_come_back(acts):
    clock = ManualClock()
    executor = ByHand(clock)
    rules = LaneRules(workers=1, queue_bytes=100, breaker=BreakerRules(failures=3))
    lane = Lane("disk/write", rules, executor, clock, RecordingTelemetry(), lines(clock))
    told, tickets = [], []
    for act in acts:
        match act:
            case ("submit", priority, size, well):
                with suppress(Refused):
                    work = saying(len(tickets), told, well)
                    tickets.append(lane.submit(priority, size, work, deadline(5.0, clock)))
            case "begin" if executor.steps:
                executor.begin()
            case "end" if executor.begun:
                executor.end()
            case "hold":
                lane.hold()
            case "unhold":
                lane.unhold()
            case "abandon" if tickets:
                tickets[-1].abandon()
            case "pass":
                clock.advance(1.0)
            case "close":
                lane.close()
        assert lane.pending_bytes <= 100 or lane.pending == 1
    lane.close()
    executor.work()
    while executor.begun:
        executor.end()
    assert sorted(answer for answer, _ in told) == list(range(len(tickets)))
    assert all(ticket.done for ticket in tickets)
    assert (lane.pending, lane.pending_bytes) == (0, 0)


def test_an_abandoned_task_gives_back_what_it_holds_behind_workers_that_hang(lane, executor):
    told = []
    lane.submit(Priority.GET, 60, saying("hangs", told))
    executor.begin()
    ticket = lane.submit(Priority.GET, 40, saying("waits", told))
    with pytest.raises(Refused, match="queue full"):
        lane.submit(Priority.GET, 40, saying("more"))
    ticket.abandon()
    ticket.abandon()
    assert told[-1] == ("waits", False)
    assert ticket.done
    assert lane.pending_bytes == 60
    lane.submit(Priority.GET, 40, saying("more"))


@each("error", [RuntimeError("a bug"), SystemExit("a bug"), CancelledError("a bug")])
def test_work_that_raises_ends_all_the_same(error):
    clock, telemetry = ManualClock(), RecordingTelemetry()
    executor = ByHand(clock)
    rules = LaneRules(workers=1, queue_bytes=100, breaker=BreakerRules(failures=1))
    lane = Lane("disk/read", rules, executor, clock, telemetry, lines(clock))

    def work(go):
        if go:
            raise error
        return None, None

    ticket = lane.submit(Priority.GET, 1, work)
    executor.work()
    assert (ticket.done, ticket.result) == (True, None)
    assert (lane.pending, lane.pending_bytes) == (0, 0)
    assert lane.breaker.refuses
    assert telemetry.total(CounterName.BREAKER_OPENED) == 1
