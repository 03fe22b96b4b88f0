"""The calls of one engine: counted, one at a time in each thread, until the engine closes.

Every call enters by the engine's door, which refuses calls that could deadlock. A signal handler
or a finalizer interrupts its thread at any point, perhaps with the engine's locks held and its
lists half changed. Its call raises ``EngineBusy`` instead of waiting for code that continues only
after it; a call that releases something is deferred to the end of the interrupted one.
"""

from __future__ import annotations

import logging
from _thread import start_new_thread
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from threading import Condition, RLock, local
from threading import Lock as Flag
from typing import ParamSpec, TypeVar
from warnings import warn
from weakref import finalize, ref

from hexkv.core.home import Home
from hexkv.core.memory.background import LANE
from hexkv.core.requests.pipeline import Pipeline
from hexkv.ports import Deadline, EngineBusy, EngineClosed, Health

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Deadlines:
    """The longest waits of calls, in seconds."""

    lookup: float = 1.0
    retrieve: float = 10.0
    store: float = 30.0
    close: float = 30.0
    pin: float = 600.0
    """The time after which the owner of a pin that is not ended counts as vanished."""


class Caller:
    """The door's state of one thread."""

    __slots__ = ("inside", "later")

    def __init__(self) -> None:
        self.inside = Flag()
        """Held while the thread is in a call. A lock: no signal comes between it and a body."""

        self.later: list[Callable[[], None]] = []
        """Work to do once the thread has left."""


class Door:
    """Admits one call per thread at a time, in the process where the engine was opened."""

    def __init__(self) -> None:
        self.home = Home()
        self._callers = local()

    def enter(self) -> Caller:
        """Return this thread's entry. Hold its ``inside`` in a call or step, then :meth:`leave`.

        Raises:
            EngineClosed: this is a forked child.
            EngineBusy: this thread is inside a call.
        """
        if self.home.left:
            self.home.check()
        try:
            caller: Caller = self._callers.caller
        except AttributeError:
            caller = self._caller()
        if caller.inside.locked():
            raise EngineBusy(
                "this thread is in a call of the engine already: a signal handler, a finalizer or "
                "a callback that came in its middle may close the engine or release something, "
                "and do the rest after the call, or in another thread"
            )
        return caller

    def leave(self, caller: Caller) -> None:
        """Do the work that was deferred until *caller* has left."""
        while caller.later and not self.home.left:
            with caller.inside:
                caller.later.pop(0)()

    def do(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return the result of *work*, a call or one step of it. Raises as :meth:`enter`."""
        caller = self.enter()
        try:
            with caller.inside:
                return work(*args, **kwargs)
        finally:
            if caller.later:
                self.leave(caller)

    @contextmanager
    def passing(self) -> Iterator[None]:
        """The same as a context manager, which takes the interpreter three times as long."""
        caller = self.enter()
        try:
            with caller.inside:
                yield
        finally:
            self.leave(caller)

    def give_back(self, work: Callable[[], None]) -> None:
        """Do *work*, which releases something: now, or at the end of the thread's call.

        Never in a forked child, which holds nothing.
        """
        if self.home.left:
            return
        caller = self._caller()
        if caller.inside.locked():
            caller.later.append(work)
            return
        self.do(work)

    @property
    def inside(self) -> bool:
        """True if this thread is in a call."""
        return self._caller().inside.locked()

    def _caller(self) -> Caller:
        try:
            caller: Caller = self._callers.caller
        except AttributeError:
            caller = self._callers.caller = Caller()
        return caller


@dataclass(frozen=True, slots=True)
class _Ending:
    """The parts of an engine to close. None refers to the engine, which they may outlive."""

    requests: Pipeline
    home: Home
    seconds: float
    first: list[Callable[[], None]] = field(default_factory=list)
    """Called first, to end objects beside the engine. Never raise, and do not refer to it."""

    def run(self, until: Deadline | None = None) -> None:
        """Finish queued writes and close the tiers, up to a deadline. Never raises."""
        if until is None:
            until = Deadline.after(self.requests.runtime.clock, self.seconds)
        while self.first:
            self.first.pop()()
        self.requests.runtime.executor.close(LANE)
        if left := self.requests.close(until):
            log.error("closed with leases left, their memory stays allocated: %s", left)

    def abandoned(self) -> None:
        """End an engine that was dropped without having been closed.

        A garbage collection may call this at any point: so a thread of its own does the work, and
        is started in a way that takes no lock.
        """
        if self.home.left:
            return
        advice = "close it, or use it as a context manager"
        try:
            start_new_thread(self.run, ())
        except RuntimeError:  # the machine, or the interpreter at its end, starts no thread
            advice += "; no thread starts that could do it, so its stores stay open"
        warn(
            f"an engine was dropped without close(): {advice}",
            ResourceWarning,
            stacklevel=2,
        )


class _Life:
    """An object that only a call under way refers to."""

    __slots__ = ("__weakref__",)


class Calls:
    """The registry of an engine's calls. Safe from any thread.

    The engine, its cache by key and its administration share one. Once it is no longer referenced,
    the parts of the engine are closed.
    """

    def __init__(self, requests: Pipeline, seconds: float) -> None:
        """Register calls that make *requests*, whose close may take *seconds*."""
        self.door = Door()
        self.state = "open"
        self.frozen = False
        """True while nothing may be stored."""

        self.why = ""
        """Why the host froze the engine."""

        self._requests = requests
        self._chunks = requests.chunks
        self._copier = requests.copier
        self._prefetched = requests.prefetches.waiting
        self._take_back = requests.chunks.sweep
        self._seconds = seconds
        self._clock = requests.runtime.clock
        # Entered directly, not by the condition: no signal comes between it and the body.
        self._lock = RLock()
        self._idle = Condition(self._lock)
        self._numbers = count(1)
        self._owners: dict[str, ref[_Life]] = {}
        """Calls under way, by their names."""

        self._ending = _Ending(requests, self.door.home, seconds)
        self._dropped = finalize(self, self._ending.abandoned)
        # The end of a process kills its threads; the state it leaves is as after a crash.
        self._dropped.atexit = False

    def do(self, work: Callable[[str], T], *, holds: bool = True) -> T:
        """Return the result of *work*, a whole call.

        Its argument is the name under which it leases and pins; without *holds* it does not.
        """
        caller = self.door.enter()
        try:
            with caller.inside:
                life = _Life()
                owner = self._begin(life)
                try:
                    if self._copier.late or self._prefetched or self._chunks.expiring:
                        self._tidy()
                    return work(owner)
                finally:
                    self._end(owner, holds)
        finally:
            if caller.later:
                self.door.leave(caller)

    @contextmanager
    def call(self) -> Iterator[str]:
        """The same as a context manager, which takes the interpreter some times as long."""
        with self.door.passing():
            life = _Life()
            owner = self._begin(life)
            try:
                self._tidy()
                yield owner
            finally:
                self._end(owner)

    @contextmanager
    def in_steps(self) -> Iterator[str]:
        """The same for a call whose steps enter one by one, between the caller's own work."""
        life = _Life()
        with self.door.passing():
            owner = self._begin(life)
        try:
            with self.door.passing():
                self._tidy()
            yield owner
        finally:
            self.door.give_back(partial(self._end, owner))

    def health(self, seconds: float) -> Health:
        """Return the state of the engine and of all below it, which may take *seconds* to query."""
        with self.door.passing():
            if self.state == "open":  # so that no number counts expired holds
                self._tidy()
            below = self._requests.health(Deadline.after(self._clock, seconds))
            # Over a node that is gone the calls of an open engine have no effect.
            state = self.state if below.state or self.state != "open" else ""
            return replace(below, state=state, frozen=self.frozen, why=self.why)

    def at_close(self, work: Callable[[], None]) -> None:
        """Do *work*, which never raises and does not refer to the engine, when that closes."""
        self._ending.first.append(work)

    def close(self) -> None:
        if self.door.home.left:
            return
        if self.door.inside and self.state == "open":
            self.state = "closing"  # refuses new calls, though this one has to end first
        self.door.give_back(self._close)

    def pause(self, until: Deadline) -> None:
        """Refuse calls until :meth:`resume`; wait for those under way up to a deadline."""
        with self._lock:
            if self.state == "open":
                self.state = "paused"
            self._requests.runtime.executor.wait(self._idle, lambda: not self._owners, until)

    def resume(self) -> None:
        """Accept calls again."""
        with self._lock:
            if self.state == "paused":
                self.state = "open"

    def abandon(self) -> None:
        """Refuse calls, and close nothing: another owner has the parts of the engine."""
        with self._lock:
            self.state = "closed"
        self._dropped.detach()

    def _close(self) -> None:
        with self._lock:
            if self.state == "closed":
                return
            self.state = "closing"
            until = Deadline.after(self._clock, self._seconds)
            self._sweep()
            self._requests.runtime.executor.wait(self._idle, lambda: not self._owners, until)
            if self.state != "closing":
                return
            self.state = "closed"
        self._dropped.detach()
        self._ending.run(until)

    def _begin(self, life: _Life) -> str:
        """Register a call, and return its new name.

        Everything held under that name is released at its end. If an asynchronous exception
        prevents that, the next call does it: it detects that this one's life is gone.
        """
        if self._owners:
            self._sweep()
        owner = f"call-{next(self._numbers)}"
        # Listed first, then checked; closing does it in the opposite order. So without a lock
        # either this sees that it is too late, or the close sees a call to wait for.
        self._owners[owner] = ref(life)
        if self.state != "open":
            with self._lock:
                del self._owners[owner]
                self._idle.notify_all()
            raise EngineClosed("the engine was closed")
        return owner

    def _tidy(self) -> None:
        """Release late copies, and prefetches and pins past their time."""
        if self._copier.late:
            self._copier.reap(Deadline(self._clock, 0.0))
        if self._prefetched:
            self._requests.prefetches.reap()
        if self._chunks.expiring:
            self._chunks.expire()

    def _end(self, owner: str, holds: bool = True) -> None:
        """End a call: take back everything that it still *holds*."""
        if self.door.home.left:
            return
        if holds:
            if self._copier.begun:
                self._copier.left(owner, Deadline.after(self._clock, self._seconds))
            self._take_back(owner)
        self._owners.pop(owner, None)
        if self.state != "open":
            with self._lock:
                self._idle.notify_all()

    def _sweep(self) -> None:
        """End the calls that vanished without reaching their end."""
        for owner, life in list(self._owners.items()):
            if life() is None:
                self._end(owner)
