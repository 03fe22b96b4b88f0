"""Windows on KV memory that copy late, or again, or cannot count beyond 32 bits."""

from __future__ import annotations

import ctypes

from devices.slot_kv import SlotContract, SlotKV
from mutants.bytes.devices import Later
from mutants.rows import Wrong, broken


def gathers_late(self, spans, layers=None):
    chosen, spans = self.check(spans, layers, write=True), list(spans)
    return Later(lambda: self.gather_all(spans, chosen))


class Again(Later):
    """A copy that is made each time when somebody waits for it."""

    def wait(self, deadline):
        self.work()
        return True


def gathers_for_every_wait(self, spans, layers=None):
    chosen, spans = self.check(spans, layers, write=True), list(spans)
    self.gather_all(spans, chosen)
    return Again(lambda: self.gather_all(spans, chosen))


def scatters_for_every_wait(self, spans, layers=None):
    chosen, spans = self.check(spans, layers, write=False), list(spans)
    return Again(lambda: self.scatter_all(spans, chosen))


def takes_lengths_for32_bits(self, real, span, *, write):
    data = span.data
    if data.nbytes >= 1 << 32:
        data = data[: data.nbytes & 0xFFFFFFFF]
    real(span._replace(data=data), write=write)


def takes_positions_for32_bits(self, real, spans, layers, *, write):
    return real([self.narrow(span) for span in spans], layers, write=write)


def takes_positions_for32_bits_places(self, real, start, end, layers):
    return real(ctypes.c_int(start).value, ctypes.c_int(end).value, layers)


def takes_positions_for32_bits_narrow(self, span):
    start, end = ctypes.c_int(span.start).value, ctypes.c_int(span.end).value
    return span._replace(start=start, end=end)


def keeps_the_spans(self, real, spans, layers):
    real(spans, layers)
    self.last = list(spans)


ROWS = {
    "device.10 gathers late": Wrong(
        "Rows are copied when somebody waits for them.", gather=gathers_late
    ),
    "device.16 gathers for every wait": Wrong(
        "Each wait copies once more.", gather=gathers_for_every_wait
    ),
    "device.16 scatters for every wait": Wrong(
        "Each wait copies once more.", scatter=scatters_for_every_wait
    ),
    "device.11 takes lengths for32 bits": Wrong(
        "The sizes of buffers are compared as C's ints.", check_span=takes_lengths_for32_bits
    ),
    "device.11 takes positions for32 bits": Wrong(
        "Positions become C's ints on the way to a kernel, before they are checked.",
        check=takes_positions_for32_bits,
        places=takes_positions_for32_bits_places,
        narrow=takes_positions_for32_bits_narrow,
    ),
    "device.17 keeps the spans": Wrong(
        "The last spans are remembered, as they were given.", gather_all=keeps_the_spans
    ),
}
globals().update(broken(__name__, SlotContract, SlotKV, ROWS))
