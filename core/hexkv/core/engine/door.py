"""The door of an engine: every call comes in here, and nothing that could wait for itself.

A signal handler or a finalizer runs in the middle of whatever its thread was doing, which may
have the engine's locks and its lists half changed. It is told so, instead of waiting for what
goes on only after it; but what gives something back is done as soon as that call is over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock as Flag
from threading import local

from hexkv.core.home import Home
from hexkv.ports import EngineBusy


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
        self.home.check()
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

    @contextmanager
    def passing(self) -> Iterator[None]:
        """A call, or one step of it. Raises what :meth:`enter` raises."""
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
        with self.passing():
            work()

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
