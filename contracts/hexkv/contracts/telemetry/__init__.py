"""The contracts of what hears from a cache: ``Telemetry`` and ``EventSink``."""

from __future__ import annotations

from hexkv.contracts.telemetry._events import EventSinkContract, Held
from hexkv.contracts.telemetry._metrics import TelemetryContract, Total

__all__ = ["EventSinkContract", "Held", "TelemetryContract", "Total"]
