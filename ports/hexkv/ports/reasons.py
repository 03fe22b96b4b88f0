"""Why a chunk was not loaded, is not kept, or was not stored: one enumeration for all of it.

Outcomes, results, metrics' labels, the history behind ``explain`` and the documents' tables all
speak in these words; a reason is never a bare string.
"""

from __future__ import annotations

from enum import StrEnum


class Reason(StrEnum):
    """One word per reason; its value is the label of metrics and the text in messages."""

    ABSENT = "absent"
    """Nothing is stored under the key, as far as the answering side knows."""

    EVICTED = "evicted"
    """It was removed for room."""

    EXPIRED = "expired"
    """The store removed it because its time was over."""

    LOST = "lost"
    """The store no longer has what it had, and nothing here deleted it."""

    CLEARED = "cleared"
    """It was deleted on request."""

    MOVED = "moved"
    """It was moved to another tier."""

    NEVER_STORED = "never stored"
    """It was never on the tier, as far as this engine knows."""

    BEHIND_A_MISS = "behind a miss"
    """A chunk before it is missing, and KV is only useful from the start of a prompt on."""

    SLOWER = "slower than computing"
    """It is there; the model computes it sooner than the tier brings it."""

    REFUSED = "refused"
    """It is there; the reader has no memory for it."""

    TIER_OFF = "tier off"
    """The tier is not asked at present: its breaker is open, or its rules say so."""

    QUEUE_FULL = "queue full"
    """The tier's queue has no room for the work."""

    TIMED_OUT = "timed out"
    """The deadline passed first."""

    NO_ANSWER = "no answer"
    """The store was asked whether it has the chunk, and did not answer in time."""

    CLOSED = "closed"
    """The tier was closed or detached."""

    INDEXING = "indexing"
    """The tier's content is still being listed."""

    TOO_SHORT = "too short"
    """The tokens fill no chunk."""

    CORRUPT = "corrupt"
    """What the store gave is not what was put under the key."""

    UNKNOWN_SERDE = "unknown serde"
    """The chunk was encoded by a serde that is not installed."""

    FAILED = "failed"
    """The store raised an error, or gave no answer that the port knows."""

    READ_FAILED = "read failed"
    """A read failed or was too late; the chunk may still be there."""

    WRITE_FAILED = "write failed"
    """A write failed; the chunk is not there."""

    DEVICE = "device"
    """The copy from or to the device failed."""

    NOT_COPIED = "not copied"
    """No block of the pool was free for it, or the copy from the device failed."""

    NO_ROOM = "no room"
    """The tier's budget has no room, or what is there may not go."""

    NOT_INDEXED = "not indexed"
    """Nothing is written before the tier's content was counted."""

    UNLIKELY = "unlikely"
    """It was not written: chunks like it are seldom asked for again."""

    DROPPED = "dropped"
    """It was not written to the tier; the detail says why."""

    FAILURES = "failures"
    """Several calls in a row failed: why a breaker opened."""

    PRESENT = "present"
    """It is there."""

    @property
    def gone(self) -> bool:
        """True if nothing is stored under the key, whatever became of it.

        The chunks behind the first one that is gone count as gone for the same reason.
        """
        return self in (Reason.ABSENT, Reason.EVICTED, Reason.EXPIRED)
