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

    LOOKUP_TOKENS = "lookup_tokens"
    """Tokens in them; always equals ``HIT_TOKENS`` + ``MISSED_TOKENS``."""

    HITS = "hits"
    HIT_TOKENS = "hit_tokens"
    MISSES = "misses"
    MISSED_TOKENS = "missed_tokens"
    STORED = "stored"
    STORED_TOKENS = "stored_tokens"
    PRESENT = "present"
    """Chunks that a store found already there: nothing was copied."""

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
    """Bytes of ``READ_BYTES`` that were read for a request and that no request used."""

    WRITTEN_BYTES = "written_bytes"
    LENT_BYTES = "lent_bytes"
    """Bytes of frames that were sent to peers."""

    POOL_RECLAIMS = "pool_reclaims"
    """Times that the pool had no block free and something gave some up."""

    BLEND_REQUESTS = "blend_requests"
    """Requests that might have been blended; the reason is what became of them."""

    BLEND_TOKENS = "blend_tokens"
    """Tokens in them; the reason is ``prefix``, ``reused``, ``recomputed`` or ``computed``."""

    BLEND_SEGMENTS = "blend_segments"
    """Chunks of segments that were to be loaded; the reason is ``loaded``, or why it was not."""


class HistogramName(StrEnum):
    """Durations in seconds."""

    READ = "read_seconds"
    WRITE = "write_seconds"
    RETRIEVE = "retrieve_seconds"
    STORE = "store_seconds"
    LOAD_WAIT = "load_wait_seconds"
    """Of a retrieve, while it waited for chunks to come from their tiers."""

    EVICTED_AGE = "evicted_age_seconds"
    """Since the last use of a chunk that is evicted; of a sample of the chunks."""

    REUSE_GAP = "reuse_gap_seconds"
    """Between two uses of a chunk on a tier; of the same sample."""

    BLEND_SELECT = "blend_select_seconds"
    """For the choice of what is computed again of a request that is blended."""

    BLEND_ROTATE = "blend_rotate_seconds"
    """For turning the keys of its segments."""

    BLEND_KL = "blend_kl"
    """Not seconds but nats: how far blended expectations are from full ones, where compared."""


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
