"""Who hangs is found out, and nobody is late for what a busy machine did."""

from threading import Event, Thread

import pytest

from hexkv.contracts.kit.waiting import UnderWay, promptly, still_running


class Slow:
    """A thread that ends with the last of so many waits, however long each of them takes."""

    def __init__(self, waits):
        self.waits = waits

    def is_alive(self):
        return self.waits > 0

    def join(self, timeout):
        self.waits -= 1


def test_a_wait_counts_for_what_it_should_have_taken_not_for_what_it_took():
    assert still_running([Slow(100)], 5.0) == []
    hanging = Slow(101)
    assert still_running([Slow(50), hanging], 5.0) == [hanging]


def test_threads_that_have_ended_are_not_waited_for():
    thread = Thread(target=int)
    thread.start()
    thread.join()
    assert still_running([thread], 600.0) == []


def test_a_call_gives_what_it_gives_and_raises_what_it_raises():
    assert promptly(lambda: 5, 60.0) == 5
    with pytest.raises(ZeroDivisionError):
        promptly(lambda: 1 / 0, 60.0)


def test_a_call_that_hangs_is_a_failure():
    released = Event()
    try:
        with pytest.raises(AssertionError, match="no answer within"):
            promptly(released.wait, 0.1)
    finally:
        released.set()


def test_threads_are_told_to_end_and_have_to():
    over, ended = Event(), Event()

    def work():
        over.wait()
        ended.set()

    with UnderWay({"worker": work}, over.set, patience=60.0):
        assert not ended.is_set()
    assert ended.is_set()


def test_a_thread_that_does_not_end_is_named():
    released, late = Event(), "stubborn did not come back"
    with pytest.raises(AssertionError, match=late):
        UnderWay({"stubborn": released.wait}, patience=0.1).__enter__().__exit__(None, None, None)
    released.set()


def test_what_a_thread_raises_tells_more_than_what_came_of_it():
    def fails():
        raise OSError("the cause")

    def wait_for_an_answer():
        with UnderWay({"a": fails}, patience=60.0) as one:
            assert one.late(60.0) == []
            raise AssertionError("nobody answers")

    with pytest.raises(OSError, match="the cause"):
        wait_for_an_answer()
