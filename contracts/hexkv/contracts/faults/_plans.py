"""Faults of a store, and plans that decide when they occur."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from random import Random
from threading import Lock
from typing import NamedTuple, Protocol


class Fault(StrEnum):
    """A fault of a whole call or of one of its chunks."""

    ERROR = "error"
    """The call raises ``StoreUnreachable`` and has done nothing."""

    UNSURE = "unsure"
    """The call does its work and raises all the same, as when an answer is lost."""

    HANG = "hang"
    """The call, and every later one, does not return before ``FaultyStore.release``."""

    CRASH = "crash"
    """The call, and every later one, raises until ``FaultyStore.restart``."""

    FAILED = "failed"
    """The chunk's outcome is ``Failed``; nothing was done for it."""

    UNREADABLE = "unreadable"
    """A read of the chunk fails, and so does each later one, until it is written or deleted."""

    STALE = "stale"
    """The chunk's answer is from before its last change: stored ones miss, deleted ones exist."""

    SHORT = "short"
    """A read answers with a hit but leaves the end of the buffer unfilled."""

    FLIP = "flip"
    """One bit of the frame is wrong: in the buffer of a read, on the medium after a write."""

    SWAP = "swap"
    """A read gives the frame of another chunk."""

    LOST = "lost"
    """A write answers ``Stored`` and keeps nothing."""

    FULL = "full"
    """A write finds no room on the medium."""


_OF_CALLS = frozenset({Fault.ERROR, Fault.UNSURE, Fault.HANG, Fault.CRASH})


class Trouble(NamedTuple):
    """The faults and the duration of one call."""

    call: Fault | None = None
    chunks: Mapping[int, Fault] = {}
    """By position in the batch."""

    seconds: float = 0.0
    """The duration of the call. One that would outlast its deadline answers ``TimedOut``."""


class Plan(Protocol):
    """Decides the faults of each call. Called from any thread."""

    def trouble(self, operation: str, chunks: int) -> Trouble:
        """The trouble of a call of the method *operation* with a batch of *chunks*."""
        ...


class Seeded:
    """Faults at random, the same for the same seed and the same calls.

    Args:
        seed: of the random numbers.
        rates: probability of each fault, per call or per chunk, by its kind.
        seconds: least and greatest duration of a call.
    """

    def __init__(
        self,
        seed: int,
        rates: Mapping[Fault, float] = {},
        seconds: tuple[float, float] = (0.0, 0.0),
    ) -> None:
        self._rng = Random(seed)  # noqa: S311 - no secret
        self._lock = Lock()
        self._calls = [(f, rate) for f, rate in rates.items() if f in _OF_CALLS]
        self._chunks = [(f, rate) for f, rate in rates.items() if f not in _OF_CALLS]
        self._seconds = seconds

    def trouble(self, operation: str, chunks: int) -> Trouble:
        del operation
        with self._lock:
            met = {i: f for i in range(chunks if self._chunks else 0) if (f := self._of_chunk())}
            call = self._drawn(self._calls) if self._calls else None
            least, most = self._seconds
            return Trouble(call, met, least + (most - least) * self._rng.random() if most else 0.0)

    def _of_chunk(self) -> Fault | None:
        return self._drawn(self._chunks)

    def _drawn(self, rates: Sequence[tuple[Fault, float]]) -> Fault | None:
        drawn = self._rng.random()
        for fault, rate in rates:
            drawn -= rate
            if drawn < 0:
                return fault
        return None


class Scripted:
    """Faults by the number of the call: ``Scripted(read=[None, Fault.FLIP])`` spoils the second.

    A fault of chunks applies to all chunks of the call. After its script an operation has none.
    """

    def __init__(
        self,
        *,
        contains: Sequence[Fault | None] = (),
        read: Sequence[Fault | None] = (),
        write: Sequence[Fault | None] = (),
        delete: Sequence[Fault | None] = (),
        scan: Sequence[Fault | None] = (),
        put_lease: Sequence[Fault | None] = (),
    ) -> None:
        self._left = {
            "contains": iter(contains),
            "read": iter(read),
            "write": iter(write),
            "delete": iter(delete),
            "scan": iter(scan),
            "put_lease": iter(put_lease),
        }
        self._lock = Lock()

    def trouble(self, operation: str, chunks: int) -> Trouble:
        with self._lock:
            fault = next(self._left.get(operation, iter(())), None)
        if fault is None or fault in _OF_CALLS:
            return Trouble(fault)
        return Trouble(None, dict.fromkeys(range(chunks), fault))
