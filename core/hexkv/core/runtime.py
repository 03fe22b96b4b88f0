"""The runtime of a process, which every part of the core needs; built by the composition root."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from hexkv.ports import CallSink, Clock, Executor, SpanSink, Telemetry, TraceStep

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

    steps: StepRing = field(default_factory=StepRing)
    """The recent steps, with the time that they took."""
