"""Reads of frames in ranges: the same few layers of many chunks, then the next ones.

A range is a group of neighbouring parts of a frame. The first is read together with the header,
which must be that of the prompt's chunk; each part is verified by the worker that read it, in
its place in the leased block. So after the last group the block has the whole frame. If frames
may be encoded, their beginning is read first; each range is read into separate memory, and the
serde decodes its layers into the block, which has the raw chunk after the last one. Or, if the
device decodes, the range stays encoded in the block.

A range that does not arrive intact counts as missing; a read of the whole frame finds out why.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from threading import Lock

from hexkv.core.frames.codec import layer_parts
from hexkv.core.frames.opening import part_span
from hexkv.core.io.rules import Priority, Refused
from hexkv.core.io.ticket import Ticket
from hexkv.core.memory.pool import BlockLease
from hexkv.core.tiers.read.encoding import scratch
from hexkv.core.tiers.read.heads import Head, head_bytes
from hexkv.core.tiers.remembering import announce_returned
from hexkv.core.tiers.runtime import RAW, TierRuntime
from hexkv.core.tiers.tier import Tier
from hexkv.ports import (
    ChunkKey,
    ChunkSpec,
    CorruptFrame,
    CounterName,
    Deadline,
    HistogramName,
    Hit,
    Miss,
    ReadOutcome,
    StoreError,
    frame_bytes,
)

log = logging.getLogger(__name__)

_TASK_BYTES = 4 << 20
"""Bytes of one part of the chunks that a task reads."""

FIRST = 5
"""Groups in which a task reads half as many chunks: so all workers read the data that the host
waits for, and none takes half of the disk for later data. A task costs CPU."""

_BYTES_AHEAD = 256 << 20
_READING = "layer read"
"""The name under which a running read holds its blocks."""


@dataclass(slots=True, eq=False)
class _Strip:
    """Neighbouring chunks of one tier, of which one task reads one range each."""

    tier: Tier
    blocks: dict[int, BlockLease]
    """Blocks by the chunk's number in the hold. Removed chunks are not read."""

    head: int
    """Bytes of each frame to read before its parts; zero if it is raw and they are known."""


@dataclass(slots=True)
class _Flight:
    """One group of parts of a strip under way."""

    strip: _Strip
    group: int
    size: int
    ticket: Ticket[frozenset[int]] | None


class RangeReader:
    """Reads chunks of one hold range by range, ahead of their use. For one thread."""

    def __init__(
        self, runtime: TierRuntime, wanted: Sequence[ChunkSpec], stays: Collection[str] = ()
    ) -> None:
        """Read chunks of *wanted*; those of the serdes in *stays* stay encoded."""
        self._runtime = runtime
        self._stays = stays
        self._wanted = wanted
        self._strips: list[_Strip] = []
        self._narrow: list[_Strip] = []
        """Smaller strips of the same chunks, for the first groups."""

        self._flights: deque[_Flight] = deque()
        self._bytes = 0
        self._groups: Sequence[range] = ()
        self._headed = False
        self._group = 0
        self._at = 0
        self._parts: dict[int, tuple[int, ...]] = {}
        self._spans: dict[tuple[int, int], tuple[int, int]] = {}
        """For raw frames: spans by their tokens, and the first part of a group."""

        self._heads: dict[int, Head] = {}
        self._lock = Lock()
        self._left: dict[int, int] = {}
        """By group: strips that have not all arrived. Under the lock, as ``_awaited``."""

        self._awaited: tuple[int, Callable[[], None]] | None = None

    def serves(self, tier: Tier) -> bool:
        """True if frames on *tier* can be expected to be readable part by part."""
        return (
            not tier.lends and tier.calls.ranges is not None and self._head_bytes(tier) is not None
        )

    def add(self, tier: Tier, blocks: Mapping[int, BlockLease]) -> None:
        """Add chunks to read from *tier*, by their numbers in the hold; before any read."""
        numbers = list(blocks)
        for number in numbers:
            self._parts_of(number)
        part_bytes = max(1, len(blocks[numbers[0]].payload) // len(self._parts_of(numbers[0])))
        head = self._head_bytes(tier) or 0
        for strips, task in ((self._strips, _TASK_BYTES), (self._narrow, _TASK_BYTES // 2)):
            step = max(1, task // part_bytes)
            for at in range(0, len(numbers), step):
                some = {number: blocks[number] for number in numbers[at : at + step]}
                strips.append(_Strip(tier, some, head))

    def leave(self, start: int, end: int) -> None:
        """End the reads of chunks ``[start, end)``; no new read uses their blocks."""
        for strip in (*self._strips, *self._narrow):
            for number in [number for number in strip.blocks if start <= number < end]:
                del strip.blocks[number]

    def divide(self, groups: Sequence[range]) -> None:
        """Set the groups of parts, which are read one after another; before any read."""
        self._groups = groups
        self._left = {group: len(self._strips_of(group)) for group in range(len(groups))}

    def read_ahead(self, group: int, deadline: Deadline) -> None:
        """Begin to read all groups up to *group*, within the limit of bytes under way.

        Only the first before that was taken: the headers that come with it are needed to find
        and verify the others.
        """
        group = min(group, len(self._groups) - 1) if self._headed else 0
        while self._group <= group and (self._bytes < _BYTES_AHEAD or not self._flights):
            strips = self._strips_of(self._group)
            if self._at == len(strips):
                self._group += 1
                self._at = 0
                continue
            flight = self._begin(strips[self._at], self._group, deadline)
            self._flights.append(flight)
            self._bytes += flight.size
            self._at += 1

    def once_whole(self, group: int, then: Callable[[], None]) -> None:
        """Call *then* once all of *group* is here, if it ever is: now, or on a worker.

        For one group at a time.
        """
        with self._lock:
            self._awaited = group, then
        self._tell()

    def _tell(self) -> None:
        with self._lock:
            if self._awaited is None or self._left.get(self._awaited[0]):
                return
            _, then = self._awaited
            self._awaited = None
        then()

    def take(self, group: int, deadline: Deadline) -> list[int]:
        """Wait for *group* of every chunk. Return the numbers of the chunks that lack it."""
        missing: list[int] = []
        self.read_ahead(group, deadline)
        while self._flights and self._flights[0].group == group:
            flight = self._flights.popleft()
            self._bytes -= flight.size
            arrived: frozenset[int] = frozenset()
            if flight.ticket is not None:
                if flight.ticket.wait(deadline):
                    arrived = flight.ticket.result or arrived
                else:
                    flight.ticket.abandon()
            missing.extend(number for number in flight.strip.blocks if number not in arrived)
            self.read_ahead(group, deadline)
        self._headed = True
        return missing

    def name_encoded(self) -> None:
        """Label encoded blocks, once the first group has arrived, with serde and payload."""
        for strip in self._strips:
            for number, block in strip.blocks.items():
                head = self._heads.get(number)
                if head is not None and self._kept(head):
                    block.spec = self._wanted[number]._replace(serde=head.name)
                    block.payload = block.payload[: head.parts[-1]]

    def drop(self) -> None:
        """Cancel all reads. Reads that have begun keep their blocks until they end."""
        for flight in self._flights:
            if flight.ticket is not None:
                flight.ticket.abandon()
        self._flights.clear()
        for strip in (*self._strips, *self._narrow):
            strip.blocks.clear()

    def _strips_of(self, group: int) -> list[_Strip]:
        return self._narrow if group < FIRST else self._strips

    def _kept(self, head: Head) -> bool:
        return head.serde is not None and head.name in self._stays

    def _head_bytes(self, tier: Tier) -> int | None:
        return head_bytes(self._runtime, tier, self._wanted[0].layout)

    def _parts_of(self, number: int) -> tuple[int, ...]:
        head = self._heads.get(number)
        return self._raw_parts(self._wanted[number].tokens) if head is None else head.parts

    def _raw_parts(self, tokens: int) -> tuple[int, ...]:
        parts = self._parts.get(tokens)
        if parts is None:
            parts = self._parts[tokens] = layer_parts(self._wanted[0].layout, tokens)
        return parts

    def _begin(self, strip: _Strip, group: int, deadline: Deadline) -> _Flight:
        numbers, blocks = list(strip.blocks), list(strip.blocks.values())
        mine = dict(zip(numbers, BlockLease.share_run(blocks, _READING), strict=True))
        parts = self._groups[group]
        flight = _Flight(strip, group, self._length(numbers, parts), None)

        def work(go: bool) -> tuple[frozenset[int], bool | None]:
            try:
                read = self._read(strip, parts, mine, deadline) if go else (frozenset(), None)
            finally:
                BlockLease.release_run(list(mine.values()))
            if strip.blocks.keys() <= read[0]:
                with self._lock:
                    self._left[group] -= 1
                self._tell()
            return read

        if mine:
            try:
                # Of no size: the call holds the blocks, not the queue. So it never waits for
                # room while holding blocks that the holders of the room may wait for.
                flight.ticket = strip.tier.submit(Priority.GET, 0, work, deadline)
            except Refused:
                BlockLease.release_run(list(mine.values()))
        return flight

    def _span(self, number: int, parts: range) -> tuple[int, int]:
        """Return the range of *parts* in the frame: the first one begins with the header."""
        head = self._heads.get(number)
        if head is not None:
            return _span_of(head.parts, parts)
        place = self._wanted[number].tokens, parts.start
        span = self._spans.get(place)
        if span is None:
            span = self._spans[place] = _span_of(self._raw_parts(place[0]), parts)
        return span

    def _length(self, numbers: Collection[int], parts: range) -> int:
        """Return the bytes of these ranges together."""
        spans = [self._span(number, parts) for number in numbers]
        return sum([end - start for start, end in spans])

    def _read(
        self, strip: _Strip, parts: range, blocks: Mapping[int, BlockLease], deadline: Deadline
    ) -> tuple[frozenset[int], bool | None]:
        """Return the chunks whose range arrived whole, and whether the store worked."""
        began = self._runtime.clock.now()
        arrived: list[int] = []
        outcomes: dict[ChunkKey, ReadOutcome] = {}
        for number, block in blocks.items():
            if number not in strip.blocks:
                continue
            outcome = self._bring(strip, number, parts, block, deadline)
            outcomes[self._wanted[number].key] = outcome
            if isinstance(outcome, Hit):
                arrived.append(number)
        telemetry, tier = self._runtime.telemetry, strip.tier.name
        size = self._length(arrived, parts)
        telemetry.observe(HistogramName.READ, self._runtime.clock.now() - began, tier=tier)
        telemetry.count(CounterName.READ_BYTES, size, tier=tier)
        announce_returned(self._runtime, strip.tier, (self._wanted[n].key for n in arrived))
        well = strip.tier.calls.faults.reads_well([*outcomes], [*outcomes.values()])
        return frozenset(arrived), well

    def _bring(
        self, strip: _Strip, number: int, parts: range, block: BlockLease, deadline: Deadline
    ) -> ReadOutcome:
        """Bring one range of one chunk into its block; a miss if it is not valid."""
        link, clock = strip.tier.link, self._runtime.clock
        link.began(clock.now())
        outcome: ReadOutcome = Hit(0)
        if strip.head and not parts[0]:
            outcome = self._meet(strip, number, deadline)
        data = block.frame
        if isinstance(outcome, Hit):
            data, outcome = self._fetch(strip, number, parts, block, deadline)
        hit = outcome if isinstance(outcome, Hit) else Hit(0)
        link.arrived(clock.now(), hit.size)
        ends = self._ends(strip, number, hit)
        if hit.size and not (ends and self._open(number, parts, block, data)):
            outcome = Miss()
        tokens = self._wanted[number].tokens * len(parts) / len(self._parts_of(number))
        link.ended(clock.now(), tokens if isinstance(outcome, Hit) else 0)
        return outcome

    def _meet(self, strip: _Strip, number: int, deadline: Deadline) -> ReadOutcome:
        """Read the places of a frame's parts from its beginning."""
        spec, data = self._wanted[number], scratch(strip.head)
        outcome = strip.tier.calls.read_range(spec.key, 0, data, deadline)
        if not isinstance(outcome, Hit):
            return outcome
        try:
            head = Head.of(self._runtime, data, spec)
        except Exception as error:  # noqa: BLE001 - a serde's error must not leave a worker
            log.warning("tier %s: the index of a payload: %s", strip.tier.name, error)
            head = None
        if head is None:
            return Miss()
        self._heads[number] = head
        return outcome

    def _fetch(
        self, strip: _Strip, number: int, parts: range, block: BlockLease, deadline: Deadline
    ) -> tuple[memoryview, ReadOutcome]:
        """Read one range. Return its memory and the store's outcome."""
        start, end = self._span(number, parts)
        head = self._heads.get(number)
        here = head is None or head.serde is None or self._kept(head)
        data = block.frame[start:end] if here else scratch(end - start)
        known = 0
        if head is not None and not parts[0]:  # its beginning is here already
            known = min(len(head.data), end)
            data[:known] = head.data[:known]
        key = self._wanted[number].key
        outcome: ReadOutcome = Hit(0)
        if end - start > known:
            outcome = strip.tier.calls.read_range(key, start + known, data[known:], deadline)
        return data, Hit(end - start, outcome.whole) if isinstance(outcome, Hit) else outcome

    def _open(self, number: int, parts: range, block: BlockLease, data: memoryview) -> bool:
        """Verify a range part by part, and decode it if needed."""
        head = self._heads.get(number)
        if head is None or head.serde is None:
            return self._is_whole(number, parts, block)
        begin, _ = self._span(number, parts)
        try:
            spec = self._wanted[number]
            for part in parts:
                start, end = part_span(head.parts, part)
                own = data[start - begin : end - begin]
                if self._kept(head):
                    self._runtime.codec.check_part(head.data, part, own)
                elif not head.open(self._runtime, part, own, block, spec):
                    return False
        except CorruptFrame:
            return False
        except Exception as error:  # noqa: BLE001 - a serde's error must not leave a worker
            log.warning("serde %s could not decode a verified part: %s", head.name, error)
            return False
        return True

    def _ends(self, strip: _Strip, number: int, hit: Hit) -> bool:
        """True unless the tier knows that the frame's length differs from that in its header."""
        size = strip.tier.index.size(self._wanted[number].key)
        return {size, hit.whole} <= {None, frame_bytes(self._parts_of(number)[-1])}

    def _is_whole(self, number: int, parts: range, block: BlockLease) -> bool:
        ends, codec, frame = self._parts_of(number), self._runtime.codec, block.frame
        spec = self._wanted[number]
        try:
            if not parts[0]:
                it = codec.peek(frame)
                found = it.key, it.serde, it.tokens, it.raw_bytes, it.parts
                if found != (spec.key, RAW, spec.tokens, ends[-1], ends):
                    return False
            for part in parts:
                codec.check_part(frame, part, frame[slice(*part_span(ends, part))])
        except StoreError:
            return False
        return True


def _span_of(ends: tuple[int, ...], parts: range) -> tuple[int, int]:
    """Return the span of neighbouring parts in a frame, with the header before the first one."""
    start = part_span(ends, parts[0])[0] if parts[0] else 0
    return start, part_span(ends, parts[-1])[1]
