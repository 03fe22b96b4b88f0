"""The state of an engine and of its tiers, for operators."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TierHealth:
    """The state of one tier."""

    name: str
    chunks: int | None
    """``None`` where only the store knows."""

    used_bytes: int | None
    budget_bytes: int | None
    failures: int
    """Calls that the store answered with an exception, or with ``Failed`` for a chunk."""

    reading: str
    """State of the breaker: ``closed``, ``open`` or ``half open``."""

    writing: str
    queued_bytes: int
    """Bytes of reads and writes that wait or run."""

    indexing: bool
    """Whether the engine is still learning what the store holds."""

    tenants: Mapping[str, int]
    """Bytes in the share of each tenant that has one."""

    last_error: str = ""
    """The call that failed last, and its error; empty before the first one."""

    last_error_time: float | None = None
    """When that was: wall-clock seconds."""


@dataclass(frozen=True, slots=True)
class Health:
    """The state of an engine."""

    state: str
    """``open``, ``paused``, ``closing`` or ``closed``; empty of an open one whose node is gone."""

    frozen: bool
    tiers: tuple[TierHealth, ...]
    pool_bytes: int
    pool_held_bytes: int
    leases: Mapping[str, int]
    """Leases by owner. At rest only tiers hold any."""

    pins: Mapping[str, int]
    """Pinned chunks by owner, summed over tiers."""

    pin_seconds: Mapping[str, float]
    """After how many seconds each owner that has not unpinned is taken for vanished."""

    prefetches: int
    """Prefetches that no retrieve has picked up."""

    why: str = ""
    """Why the host froze the cache and no longer uses it, as when a model's weights change."""
