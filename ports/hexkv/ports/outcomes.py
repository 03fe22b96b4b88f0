"""The outcomes of an operation for one chunk.

Every batch returns a sequence of one outcome per chunk, in the order of the request. A miss is
a value, never an exception, and a batch may mix all of them. The core treats a value that is not
of exactly one of these classes, or has a field of another type, as a failure.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hexkv.ports.reasons import Reason

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
