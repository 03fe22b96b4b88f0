"""A double of ``torch.cuda`` that records what is queued where, and knows what comes before what.

Streams, events and the host have vector clocks: how far each stream is known to be done. Two uses
of one memory, one of which writes, of which neither is known to come before the other, are a
race, whatever the schedule at hand does. The host learns of an event only when it asks, and the
answer is drawn at random: so one run shows many schedules.
"""

from contextlib import contextmanager

import torch

from hexkv.kernels.transfer import Driver
from hexkv.kernels.waiting import Queued
from hexkv.ports.runtime.registration import Registrations


class Race(AssertionError):
    """Two uses of one memory in no order."""


class Captured(AssertionError):
    """What CUDA refuses while a graph is captured, and what ends the capture."""


class Recorder:
    """Streams of one device, and the host."""

    def __init__(self, random):
        self.random = random
        self.host = {}
        self.uses = {}
        self.streams = 0
        self.capturing = None
        self.kept = []
        self.races = []
        self.default = Stream(self)
        self.current = [self.default]

    def use(self, stream, name, reads=(), writes=()):
        """Queue work on *stream*; for the host's own, *stream* is ``None``."""
        if self.capturing is not None and stream is self.capturing.stream:
            self.capturing.nodes.append((name, reads, writes))
            return
        clock = dict(self.host)
        if stream is not None:
            stream.length += 1
            merge(stream.clock, clock)
            stream.clock[stream.number] = stream.length
            clock = stream.clock
        for memory, write in [*((m, False) for m in reads), *((m, True) for m in writes)]:
            before = self.uses.setdefault(memory, [])
            for other, at, wrote, what in before:
                if (write or wrote) and other is not None and clock.get(other, 0) < at:
                    race = Race(f"{name} uses {memory} while {what} may still be under way")
                    self.races.append(race)
                    raise race
            mine = (None, 0) if stream is None else (stream.number, stream.length)
            before.append((*mine, write, name))

    def refuse_capture(self):
        if self.capturing is not None:
            raise Captured("a wait, or a question, while a graph is captured")

    def maybe(self):
        return self.random.random() < 0.5


class Event:
    def __init__(self, stream):
        self.recorder = stream.recorder
        self.clock = {}
        self.record(stream)

    def record(self, stream=None):
        self.clock = dict((stream or self.recorder.current[-1]).clock)

    def query(self):
        """Whether the work is done, which the host knows from then on. Drawn until it is."""
        self.recorder.refuse_capture()  # whichever thread captures, by default
        if all(self.recorder.host.get(s, 0) >= at for s, at in self.clock.items()):
            return True
        if self.recorder.maybe():
            merge(self.recorder.host, self.clock)
            return True
        return False

    def synchronize(self):
        self.recorder.refuse_capture()
        merge(self.recorder.host, self.clock)


class Graph:
    """``torch.cuda.CUDAGraph``: what was queued while it was captured, queued by each replay.

    Between its nodes the order is that of their capture. What waits before it is the stream that it
    is replayed on, as that is then.
    """

    def __init__(self, recorder):
        self.recorder, self.nodes, self.stream = recorder, [], None

    def replay(self):
        for name, reads, writes in self.nodes:
            self.recorder.use(self.recorder.current[-1], name, reads, writes)


class Queue(Driver):
    """What windows queue through buffers and tables, on the recorder's streams.

    Copies are made at once, so that a launch finds the tables that it would find; what they touch
    is recorded. A slot is a page; *blocks* names the memory of chunks by their addresses.
    """

    def __init__(self, recorder, blocks):
        super().__init__(torch.device("cpu"))
        self.recorder, self.blocks = recorder, blocks

    def memory(self, size, stream):
        return self.kept(super().memory(size, stream))

    def pinned(self, size):
        return self.kept(super().pinned(size))

    def kept(self, memory):
        self.recorder.kept.append(memory)  # so that no other gets its address
        return memory

    def stream(self):
        return torch.cuda.Stream()

    def current(self):
        return torch.cuda.current_stream()

    def send(self, table, there, stream):
        host, at, size = table
        whence, to = of_bytes(host, size), of_bytes(there.data_ptr() + at, size)
        self.recorder.use(None, "the host, which writes a table,", writes=whence)
        super().copy([table], there, None, into=True)
        self.recorder.use(stream_of(stream), "a table on its way", reads=whence, writes=to)

    def copy(self, pieces, there, stream, *, into):
        for host, at, size in pieces:
            pair = [("block", self.blocks[host])], parts(there[at : at + size])
            reads, writes = pair if into else pair[::-1]
            self.recorder.use(stream_of(stream), "a copy across the bus", reads, writes)

    def launch(self, kernel, grid, planes, chunks, slots, *given, SCATTER, **constants):  # noqa: N803
        pages, buffers = [], []
        for address, place, tokens in chunks.view(-1, 3).tolist():
            row = given[1] * constants["ROW"] * constants["WORD"].primitive_bitwidth // 8
            buffers += of_bytes(address, tokens * row)
            pages += [self.page(given[0], slot) for slot in slots[place : place + tokens].tolist()]
        reads, writes = (buffers, pages) if SCATTER else (pages, buffers)
        tables = [part for table in (planes, chunks, slots) for part in parts(table)]
        self.recorder.use(torch.cuda.current_stream(), "a launch", [*reads, *tables], writes)

    def page(self, first, slot):
        """Return the name of a slot's memory in the planes of a launch, from *first* on."""
        del first
        return "page", slot

    def transfer(self, event, size, *, into):
        return Queued([event], size, into=into)


def stream_of(stream):
    """The recorder's own, which a mutant may have wrapped."""
    return getattr(stream, "stream", stream)


def parts(memory):
    return of_bytes(memory.data_ptr(), memory.numel() * memory.element_size())


def of_bytes(first, size):
    """Names of the parts of 16 bytes of memory."""
    return [("part", at) for at in range(first // 16, -(-(first + size) // 16))]


class Stream:
    def __init__(self, recorder, device="cuda:0"):
        self.recorder, self.device = recorder, device
        self.number, self.length, self.clock = recorder.streams, 0, {}
        recorder.streams += 1

    def record_event(self):
        return Event(self)

    def wait_event(self, event):
        merge(self.clock, event.clock)

    def wait_stream(self, other):
        self.recorder.refuse_capture()
        merge(self.clock, other.clock)

    def synchronize(self):
        self.recorder.refuse_capture()
        merge(self.recorder.host, self.clock)


def merge(into, clock):
    for stream, at in clock.items():
        into[stream] = max(into.get(stream, 0), at)


@contextmanager
def recorded(random, monkeypatch):
    """``torch.cuda`` with the streams of a new :class:`Recorder`."""
    recorder = Recorder(random)

    @contextmanager
    def entered(stream):
        recorder.current.append(stream)
        try:
            yield
        finally:
            recorder.current.pop()

    @contextmanager
    def captured(graph):
        graph.stream = Stream(recorder)
        with entered(graph.stream):
            recorder.capturing = graph
            try:
                yield
            finally:
                recorder.capturing = None

    with monkeypatch.context() as patch:
        # Memory that later tests map is not this driver's.
        patch.setattr("hexkv.kernels.transfer.REGISTRATIONS", Registrations())
        capturing = lambda: recorder.capturing is not None  # noqa: E731
        patch.setattr(torch.cuda, "is_current_stream_capturing", capturing)
        patch.setattr(torch.cuda, "CUDAGraph", lambda: Graph(recorder))
        patch.setattr(torch.cuda, "graph", captured)
        patch.setattr(torch.cuda, "Event", lambda: Event(recorder.current[-1]))
        patch.setattr(torch.cuda, "is_available", lambda: True)
        patch.setattr(torch.cuda, "device_count", lambda: 1)
        patch.setattr(torch.cuda, "current_device", lambda: 0)
        patch.setattr(torch.cuda, "Stream", lambda device=None: Stream(recorder))
        patch.setattr(torch.cuda, "current_stream", lambda device=None: recorder.current[-1])
        patch.setattr(torch.cuda, "stream", entered)
        yield recorder
    if recorder.races:
        raise recorder.races[0]  # whoever made the use may have caught it
