"""The outcomes of an operation for one chunk, and their reasons.

Every batch returns a sequence of one outcome per chunk, in the order of the request. A miss is
a value, never an exception, and a batch may mix all of them. The core treats a value that is not
of exactly one of these classes, or has a field of another type, as a failure.

Results, labels of metrics, the history behind ``explain`` and the tables of the documentation use
the same reasons; a reason is never a bare string.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class Reason(StrEnum):
    """The reasons; each value is the label of metrics and the text in messages."""

    ABSENT = "absent"
    """Nothing is stored under the key, as far as the answering side knows."""
    EVICTED = "evicted"
    """It was removed for room."""
    EXPIRED = "expired"
    """The store removed it because its time was over."""
    LOST = "lost"
    """The store no longer has it, and nothing here deleted it."""
    CLEARED = "cleared"
    """It was deleted on request."""
    MOVED = "moved"
    """It was moved to another tier."""
    NEVER_STORED = "never stored"
    """It was never on the tier, as far as this engine knows."""
    BEHIND_A_MISS = "behind a miss"
    """An earlier chunk is missing, and KV is only useful from the start of a prompt on."""
    SLOWER = "slower than computing"
    """It is there; the model computes it sooner than the tier delivers it."""
    REFUSED = "refused"
    """It is there; the reader has no memory for it."""
    TIER_OFF = "tier off"
    """The tier is not used at present: its breaker is open, or its rules forbid reads."""
    QUEUE_FULL = "queue full"
    """The tier's queue has no room for the work."""
    TIMED_OUT = "timed out"
    """The deadline passed first."""
    NO_ANSWER = "no answer"
    """The store did not answer in time whether it has the chunk."""
    CLOSED = "closed"
    """The tier was closed or detached."""
    INDEXING = "indexing"
    """The tier's content is still being listed."""
    TOO_SHORT = "too short"
    """The tokens fill no chunk."""
    CORRUPT = "corrupt"
    """The store's bytes differ from those stored under the key."""
    UNKNOWN_SERDE = "unknown serde"
    """The chunk was encoded by a serde that is not installed."""
    FAILED = "failed"
    """The store raised an error, or returned a value that the port does not allow."""
    READ_FAILED = "read failed"
    """A read failed or was too late; the chunk may still be there."""
    WRITE_FAILED = "write failed"
    """A write failed; the chunk is not there."""
    DEVICE = "device"
    """The copy from or to the device failed."""
    NOT_COPIED = "not copied"
    """No block of the pool was free for it, or the copy from the device failed."""
    NO_ROOM = "no room"
    """The tier's budget has no room, or its chunks may not be evicted."""
    NOT_INDEXED = "not indexed"
    """It was not written: the tier's content was not counted yet."""
    UNLIKELY = "unlikely"
    """It was not written: chunks like it are seldom requested again."""
    DROPPED = "dropped"
    """It was not written to the tier; the detail has the cause."""
    FAILURES = "failures"
    """Several calls in a row failed: why a breaker opened."""
    PRESENT = "present"
    """It is there."""

    def __repr__(self) -> str:
        return f"Reason.{self.name}"

    @property
    def gone(self) -> bool:
        """True if nothing is stored under the key, for any cause.

        The chunks behind the first one that is gone count as gone for the same reason.
        """
        return self in (Reason.ABSENT, Reason.EVICTED, Reason.EXPIRED, Reason.LOST)


STORE_REASONS = frozenset({Reason.ABSENT, Reason.EVICTED, Reason.EXPIRED, Reason.REFUSED})
"""The reasons with which a store may report a miss."""


@dataclass(frozen=True, slots=True)
class Hit:
    """The chunk's frame is in the sink's buffer."""

    size: int
    """Bytes of the frame."""

    whole: int | None = field(default=None, compare=False)
    """For a part of a frame: bytes of the whole frame, if the store knows."""


@dataclass(frozen=True, slots=True)
class Stored:
    """The chunk is readable from now on, whole."""

    size: int
    """Bytes of the frame; 0 if an equal one was there already and nothing was written."""


@dataclass(frozen=True, slots=True)
class Miss:
    """The chunk is not there. No error: the caller computes it."""

    reason: Reason = Reason.ABSENT
    """One of :data:`STORE_REASONS`."""


@dataclass(frozen=True, slots=True)
class Corrupt:
    """The bytes under the key differ from every frame that was stored there."""

    detail: str


@dataclass(frozen=True, slots=True)
class Failed:
    """The store failed for this chunk."""

    error: Exception


@dataclass(frozen=True, slots=True)
class TimedOut:
    """The deadline passed first. The operation may still happen, and is then ignored.

    A write that timed out may have lost the old frame of its key: see ``ChunkStore.write``.
    """


ReadOutcome = Hit | Miss | Corrupt | Failed | TimedOut
WriteOutcome = Stored | Failed | TimedOut
Outcome = Hit | Stored | Miss | Corrupt | Failed | TimedOut
