"""The state of an engine and of its tiers, for operators."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hexkv.ports.runtime._kinds import brief


@dataclass(frozen=True, slots=True)
class TierHealth:
    """The state of one tier."""

    name: str
    chunks: int | None
    """``None`` if only the store knows."""

    used_bytes: int | None
    budget_bytes: int | None
    failures: int
    """Calls that the store answered with an exception, or with ``Failed`` for a chunk."""

    reading: str
    """State of the breaker: ``closed``, ``open`` or ``half open``."""

    writing: str
    queued_bytes: int
    """Bytes of waiting and running reads and writes."""

    indexing: bool
    """True while the engine still lists the store's content."""

    tenants: Mapping[str, int]
    """Bytes in the share of each tenant that has one."""

    last_error: str = ""
    """The last failed call and its error; empty if none has failed."""

    last_error_time: float | None = None
    """Time of that failure, in wall-clock seconds."""

    full: bool = False
    """True if the store had no room for the last chunks, although the budget has."""

    tokens_per_second: float | None = None
    """Tokens per second that its reads bring; ``None`` before the first."""

    __repr__ = brief


@dataclass(frozen=True, slots=True)
class Health:
    """The state of an engine."""

    state: str
    """``open``, ``paused``, ``closing`` or ``closed``; empty if it is open and its node is gone."""

    frozen: bool
    tiers: tuple[TierHealth, ...]
    pool_bytes: int
    pool_held_bytes: int
    leases: Mapping[str, int]
    """Leases by owner. At rest only tiers hold any."""

    pins: Mapping[str, int]
    """Pinned chunks by owner, summed over tiers."""

    pin_seconds: Mapping[str, float]
    """By owner, seconds after which an owner that has not unpinned counts as vanished."""

    prefetches: int
    """The number of prefetches that no retrieve has used yet."""

    why: str = ""
    """Why the host froze the cache and no longer uses it, for instance changed model weights."""

    directory: str | None = None
    """Why the directory does not get this cache's content; empty if it does. ``None``: there is no
    directory."""

    __repr__ = brief
