"""The runtime of a process, which every part of the core needs; built by the composition root."""

from __future__ import annotations

from dataclasses import dataclass, field

from hexkv.core.steps import StepRing
from hexkv.ports import CallSink, Clock, Executor, SpanSink, Telemetry


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
