"""What the core tells the world about itself. Numbers come from outcomes, not intentions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, runtime_checkable

from hexkv.ports.keys import ChunkKey


class CounterName(StrEnum):
    """Totals since the engine was built. Chunks unless the name says otherwise."""

    LOOKUPS = "lookups"
    """Chunks that a retrieve asked for; always equals ``HITS`` + ``MISSES``."""

    HITS = "hits"
    MISSES = "misses"
    STORED = "stored"
    PRESENT = "present"
    """Chunks that a store found already there: nothing was copied."""

    DROPPED = "dropped"
    """Chunks that a store could not keep on a tier."""

    EVICTED = "evicted"
    CORRUPT = "corrupt"
    RETRIES = "retries"
    """Calls of a store that were made again."""

    BREAKER_OPENED = "breaker_opened"
    """Times that a tier's lane was switched off."""

    READ_BYTES = "read_bytes"
    WRITTEN_BYTES = "written_bytes"


class HistogramName(StrEnum):
    """Durations in seconds."""

    READ = "read_seconds"
    WRITE = "write_seconds"
    RETRIEVE = "retrieve_seconds"
    STORE = "store_seconds"


@runtime_checkable
class Telemetry(Protocol):
    """Called from any thread, once per batch; must not block and must not raise."""

    def count(self, counter: CounterName, amount: int, *, tier: str = "", reason: str = "") -> None:
        """Add *amount* to a total."""
        ...

    def observe(self, histogram: HistogramName, seconds: float, *, tier: str = "") -> None:
        """Record one duration."""
        ...


class Change(StrEnum):
    """How a tier's content changed."""

    STORED = "stored"
    REMOVED = "removed"


@dataclass(frozen=True, slots=True)
class CacheEvent:
    """Chunks that appeared on a tier, or left it."""

    change: Change
    tier: str
    keys: Sequence[ChunkKey]


@runtime_checkable
class EventSink(Protocol):
    """Told what each tier holds, for routers and controllers. Must not block or raise."""

    def emit(self, event: CacheEvent) -> None:
        """One change, after it happened."""
        ...
