"""Windows on KV memory that copy late, or again, or cannot count beyond 32 bits."""

from __future__ import annotations

import ctypes

from mutants.devices import Later
from slot_kv import SlotContract, SlotKV


class TestGathersLate(SlotContract):
    """Rows are copied when somebody waits for them."""

    breaks = "device.10"

    class Make(SlotKV):
        def gather(self, spans, layers=None):
            chosen, spans = self.check(spans, layers, write=True), list(spans)
            return Later(lambda: self.gather_all(spans, chosen))


class Again(Later):
    """A copy that is made each time when somebody waits for it."""

    def wait(self, deadline):
        self.work()
        return True


class TestGathersForEveryWait(SlotContract):
    """Each wait copies once more."""

    breaks = "device.16"

    class Make(SlotKV):
        def gather(self, spans, layers=None):
            chosen, spans = self.check(spans, layers, write=True), list(spans)
            self.gather_all(spans, chosen)
            return Again(lambda: self.gather_all(spans, chosen))


class TestScattersForEveryWait(SlotContract):
    """Each wait copies once more."""

    breaks = "device.16"

    class Make(SlotKV):
        def scatter(self, spans, layers=None):
            chosen, spans = self.check(spans, layers, write=False), list(spans)
            return Again(lambda: self.scatter_all(spans, chosen))


class TestTakesLengthsFor32Bits(SlotContract):
    """The sizes of buffers are compared as C's ints."""

    breaks = "device.11"

    class Make(SlotKV):
        def check_span(self, span, *, write):
            data = span.data
            if data.nbytes >= 1 << 32:
                data = data[: data.nbytes & 0xFFFFFFFF]
            super().check_span(span._replace(data=data), write=write)


class TestTakesPositionsFor32Bits(SlotContract):
    """Positions become C's ints on the way to a kernel, before they are checked."""

    breaks = "device.11"

    class Make(SlotKV):
        def check(self, spans, layers, *, write):
            return super().check([self.narrow(span) for span in spans], layers, write=write)

        def places(self, start, end, layers):
            return super().places(ctypes.c_int(start).value, ctypes.c_int(end).value, layers)

        def narrow(self, span):
            start, end = ctypes.c_int(span.start).value, ctypes.c_int(span.end).value
            return span._replace(start=start, end=end)


class TestKeepsTheSpans(SlotContract):
    """The last spans are remembered, as they were given."""

    breaks = "device.17"

    class Make(SlotKV):
        def gather_all(self, spans, layers):
            super().gather_all(spans, layers)
            self.last = list(spans)
