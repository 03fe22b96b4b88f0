"""Brings threads together where they may do each other harm.

What only harms where two threads meet at one moment would be caught by luck alone. These let the
broken adapters wait for the moment. The main thread, which works alone, never waits.
"""

from __future__ import annotations

from threading import Barrier, Condition, Event, current_thread, main_thread

PATIENCE = 10.0
"""Seconds that a thread waits for another, and then goes on alone."""


def alone():
    return current_thread() is main_thread()


class HalfDone:
    """What one thread has half done stays so until another has looked at it."""

    def __init__(self):
        self._there = Event()
        self._seen = Event()

    def show(self):
        """Here it is, half done."""
        if not alone():
            self._there.set()
            self._seen.wait(PATIENCE)

    def find(self):
        """Wait until there is something to be seen."""
        if not alone():
            self._there.wait(PATIENCE)

    def seen(self):
        """Now it may be finished."""
        if not alone():
            self._seen.set()


class Overtaking:
    """A thread goes on once another has come as far, the first few times."""

    def __init__(self, times=3):
        self._times = times
        self._turn = Condition()
        self._come = 0

    def wait(self):
        if alone():
            return
        with self._turn:
            self._come += 1
            mine = self._come
            self._turn.notify_all()
            if mine <= self._times:
                self._turn.wait_for(lambda: self._come > mine, PATIENCE)


class InStep:
    """So many threads make each step together: none is a step ahead of another."""

    def __init__(self, threads):
        self._barrier = Barrier(threads, timeout=PATIENCE)

    def wait(self):
        if not alone():
            self._barrier.wait()
