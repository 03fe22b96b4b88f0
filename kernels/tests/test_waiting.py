"""Waits for a device's copies: who looks for their ends, how often, and how late these are seen."""

from concurrent.futures import ThreadPoolExecutor
from threading import Event, Lock

import pytest

from hexkv.contracts.doubles import ManualClock
from hexkv.kernels.waiting import Queued, Waiter, waiter_of_process
from hexkv.ports import Deadline


class Machine:
    """Time that goes on with sleeps and queries, and a bus that makes one copy after the other."""

    def __init__(self, rate):
        self.rate, self.time, self.free, self.sleeps = rate, 0.0, 0.0, []

    def now(self):
        self.time += 1e-7
        return self.time

    def sleep(self, seconds):
        self.sleeps.append(seconds)
        self.time += seconds + (80e-6 if seconds else 1e-6)

    def copy(self, size):
        self.free = max(self.time, self.free) + size / self.rate
        return At(self, self.free)


class At:
    """An event that passes at a time of a machine's."""

    def __init__(self, machine, time):
        self.machine, self.time = machine, time

    def query(self):
        self.machine.time += 1e-6
        return self.machine.time >= self.time


def test_ends_are_seen_at_once_after_few_sleeps():
    size, deadline = 100_000_000, Deadline.after(ManualClock(), 1.0)
    for rate in 54e9, 25e9, 12e9:
        machine = Machine(rate)
        waiter = Waiter(machine.now, machine.sleep)
        queued = []
        for turn in range(12):
            while len(queued) < 2:  # the next step is queued before a copy is waited for
                events = [machine.copy(size)]
                queued.append((Queued(events, size, into=True, waiter=waiter), events[0].time))
            machine.sleeps.clear()
            copy, end = queued.pop(0)
            assert copy.wait(deadline)
            if turn > 3:  # the rate was measured
                assert 0 <= machine.time - end < 10e-6
                assert sum(map(bool, machine.sleeps)) <= 1 + size / rate / 1e-3


@pytest.mark.thorough
def test_the_end_of_a_save_is_seen_soon_and_asked_for_only_after_a_sleep():
    size, deadline = 100_000_000, Deadline.after(ManualClock(), 1.0)
    for rate in 54e9, 12e9:
        machine = Machine(rate)
        waiter = Waiter(machine.now, machine.sleep)
        for turn in range(12):
            events = [machine.copy(size)]
            assert Queued(events, size, into=False, waiter=waiter).wait(deadline)
            if turn > 3:
                assert machine.time - events[0].time < 200e-6
        assert all(machine.sleeps), "what gives the lock away for no time takes it at once"
        assert len(machine.sleeps) <= 12 * (6 + size / rate / 1e-3)


@pytest.mark.thorough
def test_a_save_behind_a_long_step_is_asked_for_rarely_and_no_load_waits_for_that():
    machine, deadline = Machine(54e9), Deadline.after(ManualClock(), 1.0)
    waiter = Waiter(machine.now, machine.sleep)
    for _ in range(4):
        machine.free = machine.time + 50e-3  # the step
        events, began = [machine.copy(1 << 20)], machine.time
        machine.sleeps.clear()
        assert Queued(events, 1 << 20, into=False, waiter=waiter).wait(deadline)
        assert len(machine.sleeps) <= 20
        assert machine.time - events[0].time < max(4.1e-3, (events[0].time - began) / 2)
    assert waiter_of_process(into=True) is not waiter_of_process(into=False)
    assert waiter_of_process(into=True) is waiter_of_process(into=True)


def test_one_of_the_threads_that_wait_looks_for_all():
    inside, most, lock = 0, 0, Lock()

    class After:
        """An event that passes with its last query."""

        def __init__(self, queries):
            self.left = queries

        def query(self):
            nonlocal inside, most
            with lock:
                inside += 1
                most = max(most, inside)
            self.left -= 1
            with lock:
                inside -= 1
            return self.left <= 0

    waiter, clock = Waiter(), ManualClock()
    copies = [Queued([After(40 * n)], 0, into=True, waiter=waiter) for n in range(1, 9)]
    late = Queued([After(1 << 30)], 0, into=False, waiter=waiter)
    with ThreadPoolExecutor(9) as threads:
        over = threads.submit(waiter.wait, late, Deadline.after(clock, 0.0))
        done = [threads.submit(waiter.wait, copy, Deadline.after(clock, 60.0)) for copy in copies]
        assert all(one.result(60) for one in done)
    assert not over.result()
    assert most == 1


def test_a_thread_has_the_end_of_its_own_copy_and_no_error_of_others():
    class Given:
        """An event that answers as set, and notes its first query."""

        def __init__(self):
            self.answer, self.queried = False, Event()

        def query(self):
            self.queried.set()
            answer, self.answer = self.answer, bool(self.answer)  # an error is raised once
            if isinstance(answer, Exception):
                raise answer
            return answer

    waiter, until = Waiter(), Deadline.after(ManualClock(), 60.0)
    events = [Given() for _ in range(3)]
    looking, failing, shared = (Queued([e], 0, into=True, waiter=waiter) for e in events)
    with ThreadPoolExecutor(4) as threads:
        first = threads.submit(waiter.wait, looking, until)
        assert events[0].queried.wait(60)
        others = [threads.submit(waiter.wait, copy, until) for copy in (failing, failing, shared)]
        assert all(event.queried.wait(60) for event in events)
        events[1].answer = ValueError("of one copy")
        for other in others[:2]:  # each thread that waits for the copy
            with pytest.raises(ValueError, match="of one copy"):
                other.result(60)
        with pytest.raises(ValueError, match="of one copy"):  # and each that comes later
            failing.wait(until)
        shared.done = True  # another thread has queried it
        assert others[2].result(60)
        assert not first.done()
        events[0].answer = True
        assert first.result(60)
