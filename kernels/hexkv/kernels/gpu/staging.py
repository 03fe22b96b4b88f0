"""Memory that chunks pass through between a device and the host: kept, and used in turns."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import accumulate, cycle, islice, repeat
from threading import RLock
from time import sleep
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from hexkv.kernels.transfer import Driver, Piece, Stream, driver_of
from hexkv.kernels.waiting import Event

BUFFER = 32 << 20
"""Bytes of a staging buffer, unless a single chunk takes more."""

_BUFFERS = 3
"""DeviceStaging buffers for each way: one is filled, one is emptied, one is between."""

_LEAST = 16 << 20
"""Bytes from which a launch of its own, beside the next copy, is worth its cost."""

_POLL = 1e-4
"""Seconds between two looks for the end of a failed call's copies."""

_SEGMENT = 256 << 10
"""Bytes of small tables until the next turn."""

ALIGNED = 16
"""Bytes to a multiple of which chunks begin in a buffer, and tables in the ring."""

Table: TypeAlias = npt.NDArray[np.int64]


Launch: TypeAlias = Callable[..., None]
"""Queues launches; takes the buffer, if there is one, the small table, and those that are kept."""


class Passage(NamedTuple):
    """Copies through one buffer, and the launches between it and pages."""

    pieces: Sequence[Piece]
    """Their places are those in the buffer, in this order."""

    rows: Callable[[int], Table]
    """Returns the small table for a buffer at this address."""

    launch: Launch
    room: int
    """Bytes of the buffer."""


class Sent:
    """A table that goes to the device with its first use, and stays there."""

    def __init__(self, rows: Table) -> None:
        self.rows = rows
        self._there: torch.Tensor | None = None
        self._event: Event | None = None

    def on(self, staging: DeviceStaging, stream: Stream) -> torch.Tensor:
        """Return the table for work on *stream*. The caller has *staging* for itself."""
        driver = staging.driver
        if self._there is None:
            there = driver.memory(max(self.rows.nbytes, 8), stream).view(torch.int64)
            host = staging.written(self.rows, stream)[0]
            driver.send(Piece(host, 0, self.rows.nbytes), there, stream)
            self._event = stream.record_event()
            staging.used(self._event)
            self._there = there  # last: after a failure it is sent anew
        elif self._event is not None:
            stream.wait_event(self._event)
            if self._event.query():
                self._event = None
        driver.keep(self._there, stream)
        return self._there


class _Buffer(NamedTuple):
    memory: torch.Tensor
    base: int
    size: int
    free: Event
    """The end of the last work that uses it."""


class _Segment:
    """A part of the ring of small tables, of the host and of the device."""

    def __init__(self, driver: Driver, size: int, stream: Stream) -> None:
        pinned = driver.pinned(size)
        self.size = size
        self.home = pinned.data_ptr()
        self.host: Table = pinned.numpy().view(np.int64)
        self.there = driver.memory(size, stream).view(torch.int64)
        self.made: Event | None = stream.record_event()
        """Before it, earlier work of that stream may use the memory that torch returned."""

        self.at = 0
        self.uses: list[Event] = []

    def fits(self, size: int) -> bool:
        return self.at + size <= self.size


class DeviceStaging:
    """What copies of one device pass through, and is kept: buffers, and a ring of small tables.

    Copies across the bus have a stream of their own for each way, and launches are queued on the
    caller's: so the next chunk crosses while this one is scattered. Nothing waits on the host: a
    buffer is used again behind an event of its last use, a part of the ring once all its events
    have passed, and if they have not, there is another part. Only a call that fails waits, for what
    it has queued. Safe from any thread.
    """

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.lock = RLock()
        """Held while a group of copies and its launch are queued."""

        self._copying = {into: driver.stream() for into in (True, False)}
        self._buffers: dict[bool, deque[_Buffer]] = {True: deque(), False: deque()}
        self._outgrown: list[_Buffer] = []
        self._ring: deque[_Segment] = deque()
        self._words: list[tuple[torch.Tensor, Event]] = []

    def pass_through(
        self, passages: Iterable[Passage], kept: Sequence[Sent], *, into: bool
    ) -> Event | None:
        """Queue copies through buffers, and the launches. Return the event behind all of it.

        Args:
            passages: all but the first are made while that one crosses.
            kept: other tables that the launches read.
            into: the device, and not out of it.
        """
        turns, ended = iter(passages), None
        with self.lock:
            try:
                while some := [*islice(turns, 1 if ended is None else None)]:
                    ended = self._pass(some, kept, into)
                return ended  # noqa: TRY300 - an interrupt here would lose the event
            except BaseException:
                self._failed(into)
                raise

    def _pass(self, passages: Sequence[Passage], kept: Sequence[Sent], into: bool) -> Event:
        driver, launching, copying = self.driver, self.driver.current(), self._copying[into]
        room = max([passage.room for passage in passages])
        buffers = self._ready(room, len(passages), into)
        tables = self._tables(passages, [*buffers], kept, launching)
        for passage in passages:
            memory, base, size, free = buffers[0]
            if into:
                copying.wait_event(free)
                driver.copy(passage.pieces, memory, copying, into=True)
                launching.wait_event(copying.record_event())
                passage.launch(memory, *next(tables))
                ended = launching.record_event()
            else:
                launching.wait_event(free)
                passage.launch(memory, *next(tables))
                copying.wait_event(launching.record_event())
                driver.copy(passage.pieces, memory, copying, into=False)
                ended = copying.record_event()
            buffers[0] = _Buffer(memory, base, size, ended)
            buffers.rotate(-1)
        self.used(ended)
        return ended

    def _tables(
        self,
        passages: Sequence[Passage],
        buffers: Sequence[_Buffer],
        kept: Sequence[Sent],
        stream: Stream,
    ) -> Iterator[Sequence[torch.Tensor]]:
        """Yield the small table of each passage, which take *buffers* in turns, and those kept.

        Small tables cross together, and on the stream of launches: one of some bytes between two
        copies would hold up the bus for longer than it takes.
        """
        lasting = [sent.on(self, stream) for sent in kept]
        turns = zip(passages, cycle(buffers), strict=False)
        rows = [passage.rows(buffer.base).reshape(-1) for passage, buffer in turns]
        # Each is aligned: Triton compiles a kernel anew for a table that is not.
        places = [len(one) + -len(one) % (ALIGNED // 8) for one in rows]
        starts = [*accumulate(places, initial=0)]
        together = np.zeros(starts.pop(), np.int64)
        for one, start in zip(rows, starts, strict=True):
            together[start : start + len(one)] = one
        there = self.send(together, stream)
        for one, start in zip(rows, starts, strict=True):
            yield there[start : start + len(one)], *lasting

    def in_place(self, rows: Table, kept: Sequence[Sent], launch: Launch) -> Event:
        """Queue launches on memory that the device reaches. Return the event behind them."""
        launching = self.driver.current()
        with self.lock:
            try:
                tables = [sent.on(self, launching) for sent in kept]
                launch(self.send(rows, launching), *tables)
                ended = launching.record_event()
                self.used(ended)
                return ended  # noqa: TRY300 - as above
            except BaseException:
                self._failed()
                raise

    @contextmanager
    def word(self) -> Iterator[torch.Tensor]:
        """Yield an int64 of the host's memory, zero, that launches of the context may write.

        A launch reaches it across the bus, so one that is rarely written costs nothing else: no
        copy, and no wait for one. It is kept until the launches are over.
        """
        memory = self.driver.pinned(8).view(torch.int64)
        memory.numpy()[0] = 0
        try:
            yield memory
        finally:
            # The memory is torch's, which does not know of the launches.
            with self.lock:
                under_way = [pair for pair in self._words if not pair[1].query()]
                self._words = [*under_way, (memory, self.driver.current().record_event())]

    def send(self, rows: Table, stream: Stream) -> torch.Tensor:
        """Queue a small table on *stream*; an event behind its last use goes to :meth:`used`."""
        host, start = self.written(rows, stream)
        there = self._ring[0].there
        self.driver.send(Piece(host, start, rows.nbytes), there, stream)
        return there[start // 8 : (start + rows.nbytes) // 8]

    def written(self, rows: Table, stream: Stream) -> tuple[int, int]:
        """Write *rows* to the ring in the host's memory, for work of *stream*.

        Returns:
            their address, and their first byte in the part of the ring whose turn it is.
        """
        size = rows.nbytes
        if not self._ring or not self._ring[0].fits(size):
            self._turn(size)
        segment = self._ring[0]
        if segment.made is not None:
            stream.wait_event(segment.made)
            if segment.made.query():
                segment.made = None
        start, segment.at = segment.at, segment.at + size + size % ALIGNED
        segment.host[start // 8 : (start + size) // 8] = rows.reshape(-1)
        return segment.home + start, start

    def used(self, event: Event) -> None:
        """Note the end of work with the tables written since the last call."""
        self._ring[0].uses.append(event)

    def _failed(self, into: bool | None = None) -> None:
        """Wait for all launches, and copies *into* or out of the device, queued before a failure.

        To the caller a call that raises has nothing under way: the memory of chunks is used again.
        """
        ended = self.driver.current().record_event()
        if into is not None:
            self._copying[into].wait_event(ended)
            ended = self._copying[into].record_event()
            ways = self._buffers
            ways[into] = deque(buffer._replace(free=ended) for buffer in ways[into])
        if self._ring:
            self.used(ended)
        while not ended.query():
            sleep(_POLL)

    def _turn(self, size: int) -> None:
        """Begin the next part of the ring: one that no work uses, or a new one."""
        for _ in range(len(self._ring)):
            self._ring.rotate(-1)
            segment = self._ring[0]
            if all(event.query() for event in segment.uses):
                segment.at, segment.uses = 0, []
                if segment.fits(size):
                    return
        made = _Segment(self.driver, max(_SEGMENT, size), self.driver.current())
        self._ring.appendleft(made)

    def _ready(self, size: int, count: int, into: bool) -> deque[_Buffer]:
        """Return the buffers of a way in turns, of which the next *count* have at least *size*."""
        found = self._buffers[into]
        if self._outgrown:
            self._outgrown = [old for old in self._outgrown if not old.free.query()]
        for turn in range(min(_BUFFERS, count)):
            if len(found) < _BUFFERS:
                found.insert(turn, self._made(size, self._copying[into]))
            elif found[turn].size < size:
                self._outgrown.append(found[turn])
                found[turn] = self._made(size, self._copying[into])
        return found

    def _made(self, size: int, stream: Stream) -> _Buffer:
        size = max(size, min(BUFFER, 4 * size))
        memory = self.driver.memory(size, stream)
        # Memory that torch returns may be in use by earlier work of that stream.
        return _Buffer(memory, memory.data_ptr(), size, stream.record_event())


@cache
def staging_on(device: torch.device) -> DeviceStaging:
    """Return the staging of *device*, which all windows of the process on it share."""
    return DeviceStaging(driver_of(device))


def grouped(
    hosts: Sequence[int], sizes: Sequence[int], groups: int
) -> Iterator[tuple[int, list[Piece]]]:
    """Yield the number of each group's first chunk, and its pieces.

    There are at most *groups* of them, unless these do not fit into buffers.

    Args:
        hosts: addresses of the chunks.
        sizes: their bytes.
        groups: a launch is queued for each.
    """
    enough = max(_LEAST, -(-sum(sizes) // groups))
    start, at = 0, 0
    places: list[int] = []
    for number, size in enumerate(sizes):
        if places and (at >= enough or at + size > BUFFER):
            yield start, _pieces(hosts[start:number], places, sizes[start:number])
            start, at, places = number, 0, []
        places.append(at)
        at += size + -size % ALIGNED
    if places:
        yield start, _pieces(hosts[start:], places, sizes[start:])


def _pieces(hosts: Sequence[int], places: Sequence[int], sizes: Sequence[int]) -> list[Piece]:
    # By column: calling the class for each row takes three times as long.
    return list(map(tuple.__new__, repeat(Piece), zip(hosts, places, sizes, strict=True)))
