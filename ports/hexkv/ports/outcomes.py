"""What became of one chunk in one operation.

Every batch answers with a sequence of one outcome per chunk, in the order of the request. A
miss is a value, never an exception, and a batch may mix all of them. Whatever is not one of
these very classes, or has a field of another type, the core takes for a failure.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hexkv.ports.reasons import Reason

STORE_REASONS = frozenset({Reason.ABSENT, Reason.EVICTED, Reason.EXPIRED, Reason.REFUSED})
"""Why a store may say that it does not give a chunk."""


@dataclass(frozen=True, slots=True)
class Hit:
    """The chunk's frame is in the buffer that the sink gave."""

    size: int
    """Bytes of the frame."""

    whole: int | None = field(default=None, compare=False)
    """Of a part of a frame: bytes of the whole one, if the store knows."""


@dataclass(frozen=True, slots=True)
class Stored:
    """The chunk is readable from now on, whole."""

    size: int
    """Bytes of the frame; 0 where an equal one was there already and nothing was written."""


@dataclass(frozen=True, slots=True)
class Miss:
    """The chunk is not there. No error: the caller computes it."""

    reason: Reason = Reason.ABSENT
    """One of :data:`STORE_REASONS`."""


@dataclass(frozen=True, slots=True)
class Corrupt:
    """Something is stored under the key that was never put there."""

    detail: str


@dataclass(frozen=True, slots=True)
class Failed:
    """The store could not answer for this chunk."""

    error: Exception


@dataclass(frozen=True, slots=True)
class TimedOut:
    """The deadline passed first. What was asked for may still happen, and is then ignored.

    A write that ran out of time may have cost its key the old frame: see ``ChunkStore.write``.
    """


ReadOutcome = Hit | Miss | Corrupt | Failed | TimedOut
WriteOutcome = Stored | Failed | TimedOut
Outcome = Hit | Stored | Miss | Corrupt | Failed | TimedOut
