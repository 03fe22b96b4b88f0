"""A double of ``torch.cuda`` that records what is queued where, and knows what comes before what.

Streams, events and the host have vector clocks: how far each stream is known to be done. Two uses
of one memory, one of which writes, of which neither is known to come before the other, are a
race, whatever the schedule at hand does. The host learns of an event only when it asks, and the
answer is drawn at random: so one run shows many schedules.
"""

from contextlib import contextmanager


class Race(AssertionError):
    """Two uses of one memory in no order."""


class Recorder:
    """Streams of one device, and the host."""

    def __init__(self, random):
        self.random = random
        self.host = {}
        self.uses = {}
        self.streams = 0
        self.default = Stream(self)
        self.current = [self.default]

    def use(self, stream, name, reads=(), writes=()):
        """Queue work on *stream*; for the host's own, *stream* is ``None``."""
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
                    raise Race(f"{name} uses {memory} while {what} may still be under way")
            mine = (None, 0) if stream is None else (stream.number, stream.length)
            before.append((*mine, write, name))

    def maybe(self):
        return self.random.random() < 0.5


class Event:
    def __init__(self, stream):
        self.recorder, self.clock = stream.recorder, dict(stream.clock)

    def query(self):
        """Whether the work is done, which the host knows from then on. Drawn until it is."""
        if all(self.recorder.host.get(s, 0) >= at for s, at in self.clock.items()):
            return True
        if self.recorder.maybe():
            merge(self.recorder.host, self.clock)
            return True
        return False

    def synchronize(self):
        merge(self.recorder.host, self.clock)


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
        merge(self.clock, other.clock)

    def synchronize(self):
        merge(self.recorder.host, self.clock)


def merge(into, clock):
    for stream, at in clock.items():
        into[stream] = max(into.get(stream, 0), at)


@contextmanager
def recorded(random, monkeypatch):
    """``torch.cuda`` with the streams of a new :class:`Recorder`."""
    import torch

    recorder = Recorder(random)

    @contextmanager
    def entered(stream):
        recorder.current.append(stream)
        try:
            yield
        finally:
            recorder.current.pop()

    with monkeypatch.context() as patch:
        patch.setattr(torch.cuda, "is_available", lambda: True)
        patch.setattr(torch.cuda, "device_count", lambda: 1)
        patch.setattr(torch.cuda, "current_device", lambda: 0)
        patch.setattr(torch.cuda, "Stream", lambda device=None: Stream(recorder))
        patch.setattr(torch.cuda, "current_stream", lambda device=None: recorder.current[-1])
        patch.setattr(torch.cuda, "stream", entered)
        yield recorder
