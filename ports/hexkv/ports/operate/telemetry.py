"""The core's metrics and events. Numbers come from outcomes, not intentions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, runtime_checkable

from hexkv.ports.keys import ChunkKey


class CounterName(StrEnum):
    """Totals since the engine was built. They count chunks, unless the name has another unit."""

    LOOKUPS = "lookups"
    """Chunks that retrieves requested; always equals ``HITS`` + ``MISSES``."""

    LOOKUP_TOKENS = "lookup_tokens"
    """Tokens in them; always equals ``HIT_TOKENS`` + ``MISSED_TOKENS``."""

    HITS = "hits"
    HIT_TOKENS = "hit_tokens"
    MISSES = "misses"
    MISSED_TOKENS = "missed_tokens"
    STORED = "stored"
    STORED_TOKENS = "stored_tokens"
    PRESENT = "present"
    """Chunks that were already there at a store: nothing was copied."""

    PRESENT_TOKENS = "present_tokens"

    DROPPED = "dropped"
    """Chunks that a store could not keep on a tier."""

    EVICTED = "evicted"
    CORRUPT = "corrupt"
    RETRIES = "retries"
    """Calls of a store that were made again."""

    BREAKER_OPENED = "breaker_opened"
    """Times that a tier's lane was switched off."""

    READ_BYTES = "read_bytes"
    WASTED_BYTES = "wasted_bytes"
    """Bytes of ``READ_BYTES`` that were read for a request and not used by any."""

    WRITTEN_BYTES = "written_bytes"
    LENT_BYTES = "lent_bytes"
    """Bytes of frames that were sent to peers."""

    POOL_RECLAIMS = "pool_reclaims"
    """Times that the pool had no free block and other holders released some."""

    BLEND_REQUESTS = "blend_requests"
    """Requests that might have been blended; the reason is their outcome."""

    BLEND_TOKENS = "blend_tokens"
    """Tokens in them; the reason is ``prefix``, ``reused``, ``recomputed`` or ``computed``."""

    BLEND_SEGMENTS = "blend_segments"
    """Chunks of segments to load; the reason is ``loaded``, or why it was not loaded."""


class HistogramName(StrEnum):
    """Durations in seconds."""

    READ = "read_seconds"
    WRITE = "write_seconds"
    RETRIEVE = "retrieve_seconds"
    STORE = "store_seconds"
    LOAD_WAIT = "load_wait_seconds"
    """Time that a retrieve waited for chunks from their tiers."""

    EVICTED_AGE = "evicted_age_seconds"
    """Time since the last use of an evicted chunk; for a sample of the chunks."""

    REUSE_GAP = "reuse_gap_seconds"
    """Time between two uses of a chunk on a tier; for the same sample."""

    BLEND_SELECT = "blend_select_seconds"
    """Time to choose the tokens that a blended request recomputes."""

    BLEND_ROTATE = "blend_rotate_seconds"
    """Time to rotate the keys of its segments."""

    BLEND_KL = "blend_kl"
    """Nats, not seconds: divergence of blended expectations from full ones, where compared."""


@runtime_checkable
class Telemetry(Protocol):
    """A sink of metrics. Called from any thread, once per batch; must not block or raise."""

    def count(self, counter: CounterName, amount: int, *, tier: str = "", reason: str = "") -> None:
        """Add *amount* to a total."""
        ...

    def observe(self, histogram: HistogramName, seconds: float, *, tier: str = "") -> None:
        """Record one duration."""
        ...


class Change(StrEnum):
    """The kind of a change of a tier's content."""

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
    """A sink of changes of the tiers' content, for routers and controllers."""

    def emit(self, event: CacheEvent) -> None:
        """Receive one change, after it happened. Must not block or raise."""
        ...
