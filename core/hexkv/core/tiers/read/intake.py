"""Intake: the only way from a store into memory: whole, verified frames, and their reports."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from hexkv.core.frames.codec import FrameCodec
from hexkv.core.frames.opening import Opening, opened
from hexkv.core.tiers.evicting import evict_soon
from hexkv.core.tiers.remembering import (
    GONE,
    announce_returned,
    remember_reads,
    set_aside,
    withdraw,
)
from hexkv.core.tiers.runtime import TierRuntime
from hexkv.core.tiers.tier import Tier
from hexkv.ports import (
    Change,
    ChunkKey,
    Corrupt,
    CounterName,
    Deadline,
    Failed,
    FrameHeader,
    HistogramName,
    Hit,
    Miss,
    ReadOutcome,
    Reason,
    Sink,
    StoreUnreachable,
    TimedOut,
)


class Frames(Protocol):
    """The memory for whole frames."""

    wrong: set[int]
    """Chunks whose size on the store is that of no valid frame."""

    def room(self, index: int, size: int) -> memoryview | None:
        """See :class:`hexkv.ports.Sink`."""
        ...


class Read(NamedTuple):
    """The result of reading chunks."""

    why: list[Reason | None]
    """The reason why each chunk is unusable; ``None`` for whole ones."""

    well: bool | None
    """True if the store works; ``None`` if that is not known."""

    sizes: list[int]
    """Bytes of each usable frame; 0 for the others."""


class _Some:
    """A sink for some of the chunks of another one."""

    def __init__(self, sink: Sink, which: Sequence[int]) -> None:
        self._sink = sink
        self._which = which

    def room(self, index: int, size: int) -> memoryview | None:
        """See :class:`hexkv.ports.Sink`."""
        return self._sink.room(self._which[index], size)

    def filled(self, index: int, upto: int) -> None:
        """See :class:`hexkv.ports.Sink`."""
        self._sink.filled(self._which[index], upto)


class _Verifying:
    """A sink that verifies frames while they arrive, as far as the store reports progress."""

    def __init__(self, codec: FrameCodec, frames: Frames) -> None:
        self._codec = codec
        self._frames = frames
        self.openings: dict[int, Opening] = {}
        """The opening of each chunk's last buffer."""

    def room(self, index: int, size: int) -> memoryview | None:
        """See :class:`hexkv.ports.Sink`."""
        data = self._frames.room(index, size)
        if data is not None:
            self.openings[index] = opening = Opening(self._codec, data)
            opening.mark()
        return data

    def filled(self, index: int, upto: int) -> None:
        """See :class:`hexkv.ports.Sink`."""
        self.openings[index].filled(upto)


def read_frames(
    runtime: TierRuntime,
    tier: Tier,
    keys: Sequence[ChunkKey],
    frames: Frames,
    judge: Callable[[int, FrameHeader], Reason | None],
    deadline: Deadline,
) -> Read:
    """Read and verify frames, with retries where that may help, and report the results.

    For workers of the tier's lane. Damaged frames are set aside, and chunks that the store lost
    leave the index. The caller reports the number of tokens to the tier's link.

    Args:
        runtime: the runtime of the tier.
        tier: a tier that does I/O.
        keys: the chunks.
        frames: provides the memory.
        judge: called for each frame that arrived and was verified, with its header. It returns the
            reason why the chunk is unusable, or ``None``.
        deadline: for the store.
    """
    with tier.deleting.followed() as since:
        start = runtime.clock.now()
        tier.link.began(start)
        sink = _Verifying(runtime.codec, frames)
        turn = tier.deleting.turn
        outcomes = tier.calls.read(keys, sink, deadline)
        for _ in range(tier.rules.retries):
            again = [
                i
                for i, (key, outcome) in enumerate(zip(keys, outcomes, strict=True))
                if isinstance(outcome, Failed)
                and (may_retry(outcome) or tier.calls.faults.once(key))
            ]
            if not again or deadline.expired:
                break
            runtime.telemetry.count(CounterName.RETRIES, len(again), tier=tier.name)
            answers = tier.calls.read([keys[i] for i in again], _Some(sink, again), deadline)
            for i, outcome in zip(again, answers, strict=True):
                outcomes[i] = outcome
        sizes = [outcome.size if isinstance(outcome, Hit) else 0 for outcome in outcomes]
        tier.link.arrived(runtime.clock.now(), sum(sizes))
        why: list[Reason | None] = []
        for i, (key, outcome) in enumerate(zip(keys, outcomes, strict=True)):
            if isinstance(outcome, Hit):
                found = opened(sink.openings[i], key)
                why.append(found if isinstance(found, Reason) else judge(i, found))
            else:
                missed = _why(outcome, i in frames.wrong)
                had = tier.index.decides or tier.calls.wrote(key)
                why.append(Reason.LOST if missed is Reason.ABSENT and had else missed)
        arrived = [(key, size) for key, size, w in zip(keys, sizes, why, strict=True) if w is None]
        evict_soon(runtime, tier, tier.adopt_foreign(arrived, runtime.clock.wall(), turn))
        runtime.telemetry.observe(HistogramName.READ, runtime.clock.now() - start, tier=tier.name)
        read = sum([size for _, size in arrived])
        runtime.telemetry.count(CounterName.READ_BYTES, read, tier=tier.name)
        damaged = [key for key, w in zip(keys, why, strict=True) if w is Reason.CORRUPT]
        set_aside(runtime, tier, damaged, deadline, since)
        stale = [key for key, w in zip(keys, why, strict=True) if w in GONE and tier.index.decides]
        # A chunk deleted during the read may have been written again.
        gone = tier.let_go([key for key in stale if key not in since])
        # At once: a host that sees the miss may store the prompt again before any worker is free.
        tier.delete(gone, deadline)
        runtime.tell(Change.REMOVED, tier.name, gone)
        remember_reads(runtime, tier.name, keys, outcomes, why)
        well = tier.calls.faults.reads_well(keys, outcomes)
        withdraw(runtime, tier, deadline)
        announce_returned(runtime, tier, (key for key, _ in arrived))
        return Read(why, well, [0 if w else size for size, w in zip(sizes, why, strict=True)])


def _why(outcome: ReadOutcome, wrong: bool) -> Reason:
    """Return why a chunk did not arrive; *wrong*: a refused chunk had an invalid size."""
    match outcome:
        case Miss(reason):
            return Reason.CORRUPT if reason is Reason.REFUSED and wrong else reason
        case Corrupt():
            return Reason.CORRUPT
        case TimedOut():
            return Reason.TIMED_OUT
        case _:  # the tier passes no other outcome; to fall through would mean a hit
            return Reason.FAILED


def may_retry(outcome: object) -> bool:
    """True if a retry may help."""
    return isinstance(outcome, Failed) and isinstance(outcome.error, StoreUnreachable)
