"""Waiting for copies of a device: one of the threads that wait looks for the ends of all.

An event of CUDA can only be waited for without a limit of time, so it is queried. A sleep between
two queries takes at least 0.1 ms, a fiftieth of the time of a long prompt's KV: near the expected
end of a copy into the device there is none. Copies out of it are saves, which run beside a host's
work: a thread that asks again and again would take the interpreter's lock from that. So each way
has a waiter of its own, and no end of a load is seen late because a thread sleeps for a save.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import cache
from threading import Condition, Lock, get_ident
from typing import Protocol

from hexkv.ports import Deadline

_POLL = 50e-6
"""Seconds of a sleep where no end is expected."""

_NEAR = 200e-6
"""Seconds before and behind an expected end without a sleep."""

_AWAY = {True: 1e-3, False: 4e-3}
"""The longest sleep, by way (True: into the device): another thread's copy may end sooner."""

_SHARE = 0.5
"""The share of the time to or since its expected end for which a thread sleeps for a save."""

_UNWOKEN = 0.05
"""The longest sleep of a thread that does not look: one that was interrupted wakes no other."""

_RATE = 50e9
"""Bytes a second, until some were measured."""

_LEAST = 1 << 20
"""Bytes of a copy that tells the rate."""


class Event(Protocol):
    """A point in the work of a stream."""

    def query(self) -> bool:
        """True if the work before it is done."""
        ...


class Direction:
    """Copies one way, one after the other: when the next one is expected to end."""

    def __init__(self) -> None:
        self._rates = deque[float](maxlen=16)
        """Of the last copies. Those that began behind other work look slower."""

        self._behind = deque[float](maxlen=16)
        """Of those queued behind another copy, from end to end: none looks faster than it is."""

        self._due = 0.0
        """The expected end of all that is queued, before ``late`` is added."""

        self._ended = 0.0
        """The last end that was seen."""

        self.late = 0.0
        """Seconds by which copies end later than was expected when they were queued."""

    def expect(self, size: int, now: float) -> float:
        """Return when a copy of *size* bytes, queued *now*, is due."""
        rate = max(self._behind or self._rates, default=_RATE)
        self._due = max(now - self.late, self._due) + size / rate
        return self._due

    def learn(self, copy: Queued, now: float) -> None:
        """Note the end of *copy*."""
        behind, seconds = copy.begun < self._ended, now - max(copy.begun, self._ended)
        self._ended = now
        self.late = now - copy.due
        if copy.size >= _LEAST and seconds > 0:
            (self._behind if behind else self._rates).append(copy.size / seconds)


class Queued:
    """Copies under way: a :class:`~hexkv.ports.Transfer`, done once *events* have passed."""

    def __init__(
        self, events: Sequence[Event], size: int, *, into: bool, waiter: Waiter | None = None
    ) -> None:
        """*size* bytes cross the bus, *into* the device or out of it."""
        self._waiter = waiter or waiter_of_process(into=into)
        self._events = events
        self.size = size
        self.into = into
        self.done = not events
        self.error: Exception | None = None
        """Raised by an event, once perhaps: each wait for these copies raises it from then on."""

        self.begun, self.due = self._waiter.expect(self)

    def passed(self) -> bool:
        """True if the copies are done; queries their events. Raise what one of them raises."""
        if self.error is not None:
            raise self.error
        try:
            self.done = self.done or all(event.query() for event in self._events)
        except Exception as error:
            self.error = error
            raise
        return self.done

    def wait(self, deadline: Deadline) -> bool:
        return self.passed() or self._waiter.wait(self, deadline)


class Waiter:
    """Looks for the ends of copies. Safe from any thread."""

    def __init__(
        self, now: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._now = now
        self._sleep = sleep
        self._lock = Lock()
        self._changed = Condition(self._lock)
        self._direction = Direction()
        self._copies: list[Queued] = []
        """Those that a thread waits for."""

        self._looker: int | None = None
        """The thread that looks for all."""

    def expect(self, copy: Queued) -> tuple[float, float]:
        """Return now, and when *copy*, just queued, is due."""
        with self._lock:
            now = self._now()
            return now, self._direction.expect(copy.size, now)

    def wait(self, copy: Queued, deadline: Deadline) -> bool:
        """Wait for *copy*. Return False if *deadline* passes first; raise what its event raises."""
        me = get_ident()
        try:
            with self._lock:
                self._copies.append(copy)
            while not copy.done and not deadline.expired:
                if copy.error is not None:
                    raise copy.error
                with self._lock:
                    if self._looker is None:
                        self._looker = me
                    elif _under_way(copy):
                        self._changed.wait(min(deadline.remaining(), _UNWOKEN))
                if self._looker == me:
                    self._look(copy, deadline)
            return copy.done
        finally:
            looked = self._looker == me
            if looked:
                self._looker = None  # before any call: an interrupt comes behind one
            with self._lock:
                if copy in self._copies:
                    self._copies.remove(copy)
                if looked:
                    self._changed.notify_all()  # another thread looks from now on

    def _look(self, own: Queued, deadline: Deadline) -> None:
        """Look for the ends of all copies until *own* has ended, or *deadline* passes."""
        while True:
            with self._lock:
                left = [copy for copy in self._copies if _under_way(copy)]
                if len(left) < len(self._copies):
                    self._changed.notify_all()  # some failed, or were queried by other threads
            ended = [copy for copy in left if _passed(copy, own)]
            if ended:
                with self._lock:
                    now = self._now()
                    for copy in ended:
                        self._direction.learn(copy, now)
                    self._changed.notify_all()
            if not _under_way(own) or deadline.expired:
                return
            now = self._now()
            naps = [self._nap(copy, now) for copy in left if not copy.done]
            # Nothing but the interpreter's lock is given away near an end.
            self._sleep(min(naps, default=0.0))

    def _nap(self, copy: Queued, now: float) -> float:
        """Return the seconds to sleep for *copy*: none if a load is expected to end about now."""
        ahead = copy.due + self._direction.late - now
        if not copy.into:
            return min(max(_POLL, _SHARE * abs(ahead)), _AWAY[False])
        least = 0.0 if ahead > -_NEAR else _POLL
        return min(max(ahead - _NEAR, least), _AWAY[True])


def _under_way(copy: Queued) -> bool:
    return not copy.done and copy.error is None


def _passed(copy: Queued, own: Queued) -> bool:
    """True if *copy* is done. Its own thread raises what its event raises."""
    try:
        return copy.passed()
    except Exception:
        if copy is own:
            raise
        return False


@cache
def waiter_of_process(*, into: bool) -> Waiter:
    """Return the waiter of this process for copies *into* a device, or for those out of it."""
    del into  # one for each
    return Waiter()
