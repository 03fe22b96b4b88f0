"""The runtime of a process, which every part of the core needs; built by the composition root."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from threading import Condition

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

_PAUSE = 10e-6
"""Seconds of a pause. A thread that waits for the interpreter's lock needs some to wake up: a lock
that is given away and taken at once stays where it is."""

Pause = Callable[[], object]
"""Lets other threads run, between two parts of a thread's work."""

no_pause: Pause = bool
"""Does nothing, in C: nothing computes beside this work."""


class Stretch:
    """The work of one thread beside a host's, between two pauses for other threads.

    A thread that works on in Python keeps the interpreter's lock for 5 ms, unless it waits.
    """

    __slots__ = ("_changed", "_runtime", "_since")

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._since = runtime.clock.now()
        self._changed: Condition | None = None

    def pause(self) -> None:
        """Give the interpreter's lock away if the work since the last pause was long.

        Never with a lock held.
        """
        clock = self._runtime.clock
        now = clock.now()
        if now - self._since < _LONGEST:
            return
        if self._changed is None:
            self._changed = Condition()
        with self._changed:
            self._runtime.executor.wait(self._changed, _never, Deadline(clock, now + _PAUSE))
        self._since = clock.now()


def _never() -> bool:
    return False
