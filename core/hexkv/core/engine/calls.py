"""The calls of one engine: counted in and out, one at a time in each thread, up to its end.

Every call comes in by the engine's door, and nothing that could wait for itself. A signal handler
or a finalizer runs in the middle of whatever its thread was doing, which may have the engine's
locks and its lists half changed. It is told so, instead of waiting for what goes on only after
it; but what gives something back is done as soon as that call is over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from threading import Condition, RLock, local
from threading import Lock as Flag
from typing import ParamSpec, TypeVar
from weakref import finalize, ref

from hexkv.core.engine.ending import Ending
from hexkv.core.engine.half import ChunkHalf
from hexkv.core.home import Home
from hexkv.ports import Deadline, EngineBusy, EngineClosed, Health

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Deadlines:
    """How long calls wait at most, in seconds."""

    lookup: float = 1.0
    retrieve: float = 10.0
    store: float = 30.0
    close: float = 30.0
    pin: float = 600.0
    """After which a pin that nobody ended is taken for one of a vanished owner."""


class Caller:
    """What the door knows of one thread."""

    __slots__ = ("inside", "later")

    def __init__(self) -> None:
        self.inside = Flag()
        """Held while the thread is in a call. A lock: no signal comes between it and a body."""

        self.later: list[Callable[[], None]] = []
        """What is to be done once it is out."""


class Door:
    """Lets a thread in that is not inside yet, in the process where the engine was opened."""

    def __init__(self) -> None:
        self.home = Home()
        self._callers = local()

    def enter(self) -> Caller:
        """Who comes in: to hold its ``inside`` for a call or a step of it, then to :meth:`leave`.

        Raises:
            EngineClosed: this is a forked child.
            EngineBusy: this thread is inside.
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
        """Do what was put off until *caller* is out."""
        while caller.later and not self.home.left:
            with caller.inside:
                caller.later.pop(0)()

    def do(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The answer of *work*, a call or one step of it. Raises what :meth:`enter` raises."""
        caller = self.enter()
        try:
            with caller.inside:
                return work(*args, **kwargs)
        finally:
            if caller.later:
                self.leave(caller)

    @contextmanager
    def passing(self) -> Iterator[None]:
        """The same for a body of its own, which takes the interpreter three times as long."""
        caller = self.enter()
        try:
            with caller.inside:
                yield
        finally:
            self.leave(caller)

    def give_back(self, work: Callable[[], None]) -> None:
        """Do *work*, which gives something back: now, or when the thread's call is over.

        Never in a forked child, which has nothing.
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


class _Life:
    """What only a call that is under way refers to."""

    __slots__ = ("__weakref__",)


class Calls:
    """What every call of an engine stands on. Safe from any thread.

    The engine, its cache by key and its administration share one. Once nobody has it any more,
    what the engine is made of is closed.
    """

    def __init__(self, half: ChunkHalf, seconds: float) -> None:
        """Of an engine over *half*, whose end may take *seconds*."""
        self.door = Door()
        self.state = "open"
        self.frozen = False
        """True while nothing is to be stored."""

        self.why = ""
        """Why the host froze the engine."""

        self._half = half
        self._seconds = seconds
        self._clock = half.runtime.clock
        # Entered itself, not by the condition: no signal comes between it and the body.
        self._lock = RLock()
        self._idle = Condition(self._lock)
        self._numbers = count(1)
        self._owners: dict[str, ref[_Life]] = {}
        """Calls under way, by the name that each has."""

        self._ending = Ending(half, self.door.home, seconds)
        self._dropped = finalize(self, self._ending.abandoned)
        # A process that ends takes its threads along; what it leaves is as after a crash.
        self._dropped.atexit = False

    def do(self, work: Callable[[str], T]) -> T:
        """The answer of *work*, a call from its beginning to its end.

        It is given the name under which it leases and pins.
        """
        caller = self.door.enter()
        try:
            with caller.inside:
                life = _Life()
                owner = self._begin(life)
                try:
                    self._tidy()
                    return work(owner)
                finally:
                    self._end(owner)
        finally:
            if caller.later:
                self.door.leave(caller)

    @contextmanager
    def call(self) -> Iterator[str]:
        """The same for a body of its own, which takes the interpreter three times as long."""
        caller = self.door.enter()
        try:
            with caller.inside:
                life = _Life()
                owner = self._begin(life)
                try:
                    self._tidy()
                    yield owner
                finally:
                    self._end(owner)
        finally:
            if caller.later:
                self.door.leave(caller)

    @contextmanager
    def in_steps(self) -> Iterator[str]:
        """Likewise one whose steps come in by the door one by one, with the caller's between."""
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
        """The state of the engine and of all below it, of which some may take *seconds* to ask."""
        with self.door.passing():
            if self.state == "open":  # so that what is past its time is in no number
                self._tidy()
            below = self._half.health(Deadline.after(self._clock, seconds))
            # Over a node that is gone an open engine takes calls in vain.
            state = self.state if below.state or self.state != "open" else ""
            return replace(below, state=state, frozen=self.frozen, why=self.why)

    def at_close(self, work: Callable[[], None]) -> None:
        """Do *work*, which never raises and does not refer to the engine, when that ends."""
        self._ending.first.append(work)

    def close(self) -> None:
        if self.door.home.left:
            return
        if self.door.inside and self.state == "open":
            self.state = "closing"  # no new calls, though this one has to end first
        self.door.give_back(self._close)

    def pause(self, until: Deadline) -> None:
        """Take no more calls before :meth:`resume`; wait for those under way up to a deadline."""
        with self._lock:
            if self.state == "open":
                self.state = "paused"
            self._half.runtime.executor.wait(self._idle, lambda: not self._owners, until)

    def resume(self) -> None:
        """Take calls again."""
        with self._lock:
            if self.state == "paused":
                self.state = "open"

    def abandon(self) -> None:
        """Take no more calls, and end nothing: somebody else has what the engine is made of."""
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
            self._half.runtime.executor.wait(self._idle, lambda: not self._owners, until)
            if self.state != "closing":
                return
            self.state = "closed"
        self._dropped.detach()
        self._ending.run(until)

    def _begin(self, life: _Life) -> str:
        """Count a call in, under the name that it gets.

        Whatever is held in that name is given back at its end. If an exception out of
        nowhere keeps that from happening, the next call does it: it sees that this one's
        life is gone.
        """
        if self._owners:
            self._sweep()
        owner = f"call-{next(self._numbers)}"
        # Listed first, then asked, and who closes does it the other way round: so without a lock
        # either this sees that it is too late, or the other one that there is a call to wait for.
        self._owners[owner] = ref(life)
        if self.state != "open":
            with self._lock:
                del self._owners[owner]
                self._idle.notify_all()
            raise EngineClosed("the engine was closed")
        return owner

    def _tidy(self) -> None:
        """Give back what is late or past its time."""
        if self._half.copier.late:
            self._half.copier.reap(Deadline(self._clock, 0.0))
        if self._half.prefetches.waiting:
            self._half.prefetches.reap()
        if self._half.expiring:
            self._half.expire()

    def _end(self, owner: str) -> None:
        """A call is over: take back what it still holds."""
        if self.door.home.left:
            return
        if self._half.copier.begun:
            self._half.copier.left(owner, Deadline.after(self._clock, self._seconds))
        self._half.end(owner)
        self._owners.pop(owner, None)
        if self.state != "open":
            with self._lock:
                self._idle.notify_all()

    def _sweep(self) -> None:
        """End the calls that are gone without having come to their end."""
        for owner, life in list(self._owners.items()):
            if life() is None:
                self._end(owner)
