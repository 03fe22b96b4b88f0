"""The runtime of a process, which every part of the core needs; built by the composition root."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import inf
from threading import Condition, local
from weakref import ref

from hexkv.ports import CallSink, Clock, Deadline, Executor, Serde, SpanSink, Telemetry, TraceStep

MOST = 4096
"""The number of steps that are kept: some 600 kB."""

StepFields = tuple[str, str, float, float, str, str, float, int, str]
"""The fields of a :class:`~hexkv.ports.TraceStep`."""


class StepRing:
    """The newest steps. Safe from any thread.

    Always on, so recording a step is an append to a bounded deque: no lock, no object but a tuple.
    """

    __slots__ = ("_rows", "add", "extend")

    def __init__(self, most: int = MOST) -> None:
        self._rows: deque[StepFields] = deque(maxlen=most)
        self.add = self._rows.append
        """Record the fields of a :class:`~hexkv.ports.Step`, in order."""

        self.extend = self._rows.extend
        """Record the fields of several."""

    def steps(self) -> list[TraceStep]:
        """Return all steps, in the order in which they ended."""
        return [TraceStep._make(row) for row in self._rows.copy()]


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """Clock, executor, telemetry, and sinks of traces and records."""

    clock: Clock
    executor: Executor
    telemetry: Telemetry
    calls: CallSink | None = None
    """Receives each call of the engine, if calls are recorded."""

    spans: SpanSink | None = None
    """Traces calls, if given."""

    serdes: Mapping[str, Serde] = field(default_factory=dict)
    """Every serde that frames may have been written with, by name."""

    steps: StepRing = field(default_factory=StepRing)
    """The recent steps, with the time that they took."""


_LONGEST = 80e-6
"""Seconds of work after which a pause takes place. Pauses are at most some 0.1 ms of work apart."""

_PAUSE = 30e-6
"""Seconds of a pause. A thread that waits for the interpreter's lock needs some to wake up: a lock
that is given away and taken at once stays where it is."""

Pause = Callable[[], object]
"""Lets other threads run, between two parts of a thread's work."""

no_pause: Pause = bool
"""Does nothing, in C: nothing computes beside this work."""


_OVER = 5e-3
"""Seconds after which a thread has waited, or lost the interpreter's lock, in any case."""


class _Step:
    """A stretch of a host's own thread."""

    __slots__ = ("__weakref__",)


class _Here(local):
    since = -inf
    """The time of this thread's last pause, or at which it began to work beside a host."""

    step: ref[_Step] | None = None
    """While it is alive, this thread takes no pauses. An interrupt may end it at any place."""


_here = _Here()


class Stretch:
    """The work of one thread beside a host's, between two pauses for other threads.

    A thread that works on in Python keeps the interpreter's lock for 5 ms, unless it waits. All
    stretches of a thread are one: a store's, and those of its writes to tiers in memory.
    """

    __slots__ = ("_changed", "_runtime")

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._changed: Condition | None = None
        now = runtime.clock.now()
        if not 0 <= now - _here.since < _OVER:
            _here.since = now

    def pause(self) -> None:
        """Give the interpreter's lock away if the work since the last pause was long.

        Never with a lock held.
        """
        clock = self._runtime.clock
        if clock.now() - _here.since < _LONGEST or (_here.step and _here.step()):
            return
        if self._changed is None:
            self._changed = Condition()
        with self._changed:
            # The time is read last: a wait until a time that is over gives no lock away.
            until = Deadline(clock, clock.now() + _PAUSE)
            self._runtime.executor.wait(self._changed, _never, until)
        _here.since = clock.now()


@contextmanager
def unpaused() -> Iterator[None]:
    """Let this thread, which is a host's own, take no pauses within the context."""
    step = _Step()
    before, _here.step = _here.step, ref(step)
    try:
        yield
    finally:
        _here.step = before


def _never() -> bool:
    return False
