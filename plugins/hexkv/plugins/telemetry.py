"""Telemetry for those who want none."""

from __future__ import annotations

from hexkv.ports import Counter, Histogram


class NoTelemetry:
    """Forgets what it is told."""

    __slots__ = ()

    def count(self, counter: Counter, amount: int, *, tier: str = "", reason: str = "") -> None:
        """Nothing."""

    def observe(self, histogram: Histogram, seconds: float, *, tier: str = "") -> None:
        """Nothing."""
