"""Windows on KV memory that move other bytes, or elsewhere, or at another time."""

from __future__ import annotations

import ctypes
from threading import Event

from hexkv.ports import Finished
from slot_kv import BLOCK, BLOCKS, BlockwiseContract, BlockwiseKV, SlotContract, SlotKV


class TestDoesNotSayHowLong(SlotContract):
    """The window does not say how many tokens it has."""

    breaks = "device.1"

    class Make(SlotKV):
        tokens = None

        def __getattribute__(self, name):
            if name == "tokens":
                raise AttributeError(name)
            return super().__getattribute__(name)


class TestGathersTokenMajor(SlotContract):
    """All layers of a token, then all of the next one."""

    breaks = "device.2"

    class Make(SlotKV):
        def places(self, start, end, layers):
            at = 0
            for position in range(start, end):
                for layer in layers:
                    for index, plane in enumerate(self.layout.planes[layer]):
                        yield slice(at, at + self.row(plane)), (layer, index, position)
                        at += self.row(plane)


class TestSwapsKeysAndValues(SlotContract):
    """Values come before keys."""

    breaks = "device.2"

    class Make(SlotKV):
        def load(self, layer, plane, position):
            return super().load(layer, 1 - plane, position)


class TestTakesPositionsForSlots(SlotContract):
    """The slot mapping is not looked at."""

    breaks = "device.2"

    class Make(SlotKV):
        def load(self, layer, plane, position):
            return self.memory[layer][plane][self.where(layer, plane, position)]


class TestSortsItsSpans(SlotContract):
    """Spans are sorted for speed, and their data is not."""

    breaks = "device.2"

    class Make(SlotKV):
        def gather_all(self, spans, layers):
            if len({len(span.data) for span in spans}) == 1:
                ordered = sorted(spans, key=lambda span: span.start)
                pairs = zip(ordered, spans, strict=True)
                spans = [one._replace(data=other.data) for one, other in pairs]
            super().gather_all(spans, layers)


class TestGathersWholeBlocks(SlotContract):
    """A block's last tokens are copied, too, behind the end of the chunk."""

    breaks = "device.3"

    class Make(SlotKV):
        def gather_all(self, spans, layers):
            super().gather_all(spans, layers)
            for start, end, data in spans:
                if (end - start) % BLOCK:
                    address = ctypes.addressof(ctypes.c_char.from_buffer(data))
                    ctypes.memset(address + len(data), 0, 1)


class TestMovesInsteadOfCopying(SlotContract):
    """What was gathered is cleared."""

    breaks = "device.3"

    class Make(SlotKV):
        def load(self, layer, plane, position):
            row = super().load(layer, plane, position)
            self.keep(layer, plane, position, bytes(len(row)))
            return row


class TestScattersToTheNextToken(SlotContract):
    """Positions are counted from one."""

    breaks = "device.4"

    class Make(SlotKV):
        def keep(self, layer, plane, position, row):
            super().keep(layer, plane, (position + 1) % self.tokens, row)


class TestWorksInTheCallersData(SlotContract):
    """Bytes are put into the device's order where they lie."""

    breaks = "device.4"

    class Make(SlotKV):
        def scatter_all(self, spans, layers):
            super().scatter_all(spans, layers)
            for span in spans:
                if not span.data.readonly:
                    span.data[:] = bytes(span.data)[::-1]


class TestScattersWholeBlocks(SlotContract):
    """The tokens of a block that are not in the span are cleared."""

    breaks = "device.5"

    class Make(SlotKV):
        def scatter_all(self, spans, layers):
            for start, end, _ in spans:
                for position in range(start // BLOCK * BLOCK, min(end, self.tokens)):
                    for layer in layers:
                        row = len(self.load(layer, 0, position))
                        if self.slots[position] >= 0:
                            self.keep(layer, 0, position, bytes(row))
            super().scatter_all(spans, layers)


class TestPacksSomeLayers(SlotContract):
    """A few layers are gathered to the beginning of the chunk."""

    breaks = "device.6"

    class Make(SlotKV):
        def places(self, start, end, layers):
            first = self.layout.layer_span(layers.start, end - start)[0] if layers else 0
            for place, row in super().places(start, end, layers):
                yield slice(place.start - first, place.stop - first), row


class TestScattersAllLayers(SlotContract):
    """The layers that were asked for are looked at when gathering only."""

    breaks = "device.7"

    class Make(SlotKV):
        def scatter_all(self, spans, layers):
            super().scatter_all(spans, range(self.layout.layers))


class TestQuietensNaNs(SlotContract):
    """Elements go through a floating-point unit."""

    breaks = "device.8"

    class Make(SlotKV):
        def load(self, layer, plane, position):
            row = bytearray(super().load(layer, plane, position))
            for at in range(0, len(row), 2):
                low, high = row[at : at + 2]
                if high & 0x7F == 0x7F and low > 0x80:
                    row[at] = low | 0x40
            return row


class TestWantsSomethingToDo(SlotContract):
    """The longest of no spans is asked for."""

    breaks = "device.9"

    class Make(SlotKV):
        def gather_all(self, spans, layers):
            assert max(len(span.data) for span in spans)
            super().gather_all(spans, layers)


class TestRemembersRows(SlotContract):
    """A row that was gathered once is gathered from a copy."""

    breaks = "device.10"

    class Make(SlotKV):
        def __init__(self, layout, slots):
            super().__init__(layout, slots)
            self.seen = {}

        def load(self, *where):
            return self.seen.setdefault(where, bytes(super().load(*where)))


class TestChecksAsItGoes(SlotContract):
    """Each span is checked when its turn comes."""

    breaks = "device.11"

    class Make(SlotKV):
        def check(self, spans, layers, *, write):
            return super().check([], layers, write=write)

        def gather_all(self, spans, layers):
            for span in spans:
                self.check_span(span, write=True)
                super().gather_all([span], layers)

        def scatter_all(self, spans, layers):
            for span in spans:
                self.check_span(span, write=False)
                super().scatter_all([span], layers)


class TestTakesLongerData(SlotContract):
    """Data may have more bytes than the chunk."""

    breaks = "device.11"

    class Make(SlotKV):
        def check_span(self, span, *, write):
            room = max(0, self.layout.chunk_bytes(span.end - span.start))
            super().check_span(span._replace(data=span.data[:room]), write=write)


class TestLeavesReadOnlyDataOut(SlotContract):
    """A span that cannot be written is passed over in silence."""

    breaks = "device.12"

    class Make(SlotKV):
        def gather(self, spans, layers=None):
            return super().gather([span for span in spans if not span.data.readonly], layers)


class TestWantsToWriteOnItsInput(SlotContract):
    """Data to scatter must be writable, because the array library wants it so."""

    breaks = "device.12"

    class Make(SlotKV):
        def scatter_all(self, spans, layers):
            for span in spans:
                if span.data.nbytes:
                    ctypes.c_char.from_buffer(span.data)
            super().scatter_all(spans, layers)


class TestGathersHolesFromTheEnd(SlotContract):
    """Slot -1 is the last one, as everywhere in Python."""

    breaks = "device.13"

    class Make(SlotKV):
        def check_span(self, span, *, write):
            slots, self.slots = self.slots, [0] * len(self.slots)
            try:
                super().check_span(span, write=write)
            finally:
                self.slots = slots

        def where(self, layer, plane, slot):
            return super().where(layer, plane, slot % (BLOCK * BLOCKS))


class TestScattersHolesToTheEnd(SlotContract):
    """Slot -1 is the last one, as everywhere in Python."""

    breaks = "device.14"

    class Make(SlotKV):
        def scatter_all(self, spans, layers):
            slots = self.slots
            self.slots = [slot % (BLOCK * BLOCKS) for slot in slots]
            try:
                super().scatter_all(spans, layers)
            finally:
                self.slots = slots


class Later:
    """A copy that is made when somebody waits for it."""

    def __init__(self, work):
        self.work = work
        self.done = False

    def wait(self, deadline):
        if not self.done:
            self.work()
            self.done = True
        return True


class TestHasOneTransferOnly(SlotContract):
    """What is under way is kept in one place, and the next transfer takes it."""

    breaks = "device.15"

    class Make(SlotKV):
        def gather_all(self, spans, layers):
            self.pending = (list(spans), layers)

        def transfer(self):
            def work():
                spans, layers = self.pending
                self.pending = ([], layers)
                SlotKV.gather_all(self, spans, layers)

            return Later(work)

        def scatter(self, spans, layers=None):
            self.check(spans, layers, write=False)
            self.scatter_all(spans, range(self.layout.layers) if layers is None else layers)
            return Finished()


class TestWaitsForever(SlotContract):
    """The device is waited for, whatever the deadline says."""

    breaks = "device.16"

    class Make(SlotKV):
        def transfer(self):
            class Stuck:
                def wait(self, deadline):
                    return not deadline.expired or Event().wait(600)

            return Stuck()


class TestSaysDoneTooEarly(SlotContract):
    """Once the deadline has passed it says so, and means that nobody need wait."""

    breaks = "device.16"

    class Make(SlotKV):
        def gather(self, spans, layers=None):
            chosen = self.check(spans, layers, write=True)
            later = Later(lambda: self.gather_all(spans, chosen))

            class Hasty:
                def wait(self, deadline):
                    return deadline.expired or later.wait(deadline)

            return Hasty()


class TestKeepsTheCallersData(SlotContract):
    """The last spans are remembered, by reference."""

    breaks = "device.17"

    class Make(SlotKV):
        def gather_all(self, spans, layers):
            super().gather_all(spans, layers)
            self.last = [span.data[:] for span in spans]


class TestCutsBlocksThrough(BlockwiseContract):
    """A span may start and end inside a block."""

    breaks = "device.18"

    class Make(BlockwiseKV):
        def check_span(self, span, *, write):
            SlotKV.check_span(self, span, write=write)


class TestRoundsToWholeBlocks(BlockwiseContract):
    """The blocks that a span touches are left out unless it has all of them."""

    breaks = "device.18"

    class Make(BlockwiseKV):
        def check_span(self, span, *, write):
            SlotKV.check_span(self, span, write=write)

        def places(self, start, end, layers):
            for place, (layer, plane, position) in super().places(start, end, layers):
                if start <= position // BLOCK * BLOCK and position // BLOCK * BLOCK + BLOCK <= end:
                    yield place, (layer, plane, position)
