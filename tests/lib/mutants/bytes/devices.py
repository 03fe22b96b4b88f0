"""Windows on KV memory that move other bytes, or elsewhere, or at another time."""

from __future__ import annotations

import ctypes
from threading import Event

from devices.slot_kv import BLOCK, BLOCKS, BlockwiseContract, BlockwiseKV, SlotContract, SlotKV
from hexkv.ports import Finished
from mutants.rows import Wrong, broken


def does_not_say_how_long(self, real, name):
    if name == "tokens":
        raise AttributeError(name)
    return real(name)


def gathers_token_major(self, start, end, layers):
    at = 0
    for position in range(start, end):
        for layer in layers:
            for index, plane in enumerate(self.layout.planes[layer]):
                yield slice(at, at + self.row(plane)), (layer, index, position)
                at += self.row(plane)


def takes_positions_for_slots(self, layer, plane, position):
    return self.memory[layer][plane][self.where(layer, plane, position)]


def sorts_its_spans(self, real, spans, layers):
    if len({len(span.data) for span in spans}) == 1:
        ordered = sorted(spans, key=lambda span: span.start)
        pairs = zip(ordered, spans, strict=True)
        spans = [one._replace(data=other.data) for one, other in pairs]
    real(spans, layers)


def gathers_whole_blocks(self, real, spans, layers):
    real(spans, layers)
    for start, end, data in spans:
        if (end - start) % BLOCK:
            address = ctypes.addressof(ctypes.c_char.from_buffer(data))
            ctypes.memset(address + len(data), 0, 1)


def moves_instead_of_copying(self, real, layer, plane, position):
    row = real(layer, plane, position)
    self.keep(layer, plane, position, bytes(len(row)))
    return row


def scatters_to_the_next_token(self, real, layer, plane, position, row):
    real(layer, plane, (position + 1) % self.tokens, row)


def works_in_the_callers_data(self, real, spans, layers):
    real(spans, layers)
    for span in spans:
        if not span.data.readonly:
            span.data[:] = bytes(span.data)[::-1]


def scatters_whole_blocks(self, real, spans, layers):
    for start, end, _ in spans:
        for position in range(start // BLOCK * BLOCK, min(end, self.tokens)):
            for layer in layers:
                row = len(self.load(layer, 0, position))
                if self.slots[position] >= 0:
                    self.keep(layer, 0, position, bytes(row))
    real(spans, layers)


def packs_some_layers(self, real, start, end, layers):
    first = self.layout.layer_span(layers.start, end - start)[0] if layers else 0
    for place, row in real(start, end, layers):
        yield slice(place.start - first, place.stop - first), row


def scatters_all_layers(self, real, spans, layers):
    real(spans, range(self.layout.layers))


def quietens_na_ns(self, real, layer, plane, position):
    row = bytearray(real(layer, plane, position))
    for at in range(0, len(row), 2):
        low, high = row[at : at + 2]
        if high & 0x7F == 0x7F and low > 0x80:
            row[at] = low | 0x40
    return row


def wants_something_to_do(self, real, spans, layers):
    assert max(len(span.data) for span in spans)
    real(spans, layers)


def remembers_rows(self, real, layout, slots):
    real(layout, slots)
    self.seen = {}


def checks_as_it_goes_gather_all(self, real, spans, layers):
    for span in spans:
        self.check_span(span, write=True)
        real([span], layers)


def checks_as_it_goes_scatter_all(self, real, spans, layers):
    for span in spans:
        self.check_span(span, write=False)
        real([span], layers)


def takes_longer_data(self, real, span, *, write):
    room = max(0, self.layout.chunk_bytes(span.end - span.start))
    real(span._replace(data=span.data[:room]), write=write)


def leaves_read_only_data_out(self, real, spans, layers=None):
    return real([span for span in spans if not span.data.readonly], layers)


def wants_to_write_on_its_input(self, real, spans, layers):
    for span in spans:
        if span.data.nbytes:
            ctypes.c_char.from_buffer(span.data)
    real(spans, layers)


def gathers_holes_from_the_end(self, real, span, *, write):
    slots, self.slots = self.slots, [0] * len(self.slots)
    try:
        real(span, write=write)
    finally:
        self.slots = slots


def scatters_holes_to_the_end(self, real, spans, layers):
    slots = self.slots
    self.slots = [slot % (BLOCK * BLOCKS) for slot in slots]
    try:
        real(spans, layers)
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


def has_one_transfer_only(self, spans, layers):
    self.pending = (list(spans), layers)


def has_one_transfer_only_transfer(self):
    def work():
        spans, layers = self.pending
        self.pending = ([], layers)
        SlotKV.gather_all(self, spans, layers)

    return Later(work)


def has_one_transfer_only_scatter(self, spans, layers=None):
    self.check(spans, layers, write=False)
    self.scatter_all(spans, range(self.layout.layers) if layers is None else layers)
    return Finished()


def waits_forever(self):
    class Stuck:
        def wait(self, deadline):
            return not deadline.expired or Event().wait(600)

    return Stuck()


def says_done_too_early(self, spans, layers=None):
    chosen = self.check(spans, layers, write=True)
    later = Later(lambda: self.gather_all(spans, chosen))

    class Hasty:
        def wait(self, deadline):
            return deadline.expired or later.wait(deadline)

    return Hasty()


def keeps_the_callers_data(self, real, spans, layers):
    real(spans, layers)
    self.last = [span.data[:] for span in spans]


def cuts_blocks_through(self, span, *, write):
    SlotKV.check_span(self, span, write=write)


def rounds_to_whole_blocks(self, span, *, write):
    SlotKV.check_span(self, span, write=write)


def rounds_to_whole_blocks_places(self, real, start, end, layers):
    for place, (layer, plane, position) in real(start, end, layers):
        if start <= position // BLOCK * BLOCK and position // BLOCK * BLOCK + BLOCK <= end:
            yield place, (layer, plane, position)


SLOT_K_V = {
    "device.1 does not say how long": Wrong(
        "The window does not say how many tokens it has.",
        tokens=None,
        __getattribute__=does_not_say_how_long,
    ),
    "device.2 gathers token major": Wrong(
        "All layers of a token, then all of the next one.", places=gathers_token_major
    ),
    "device.2 swaps keys and values": Wrong(
        "Values come before keys.",
        load=lambda self, real, layer, plane, position: real(layer, 1 - plane, position),
    ),
    "device.2 takes positions for slots": Wrong(
        "The slot mapping is not looked at.", load=takes_positions_for_slots
    ),
    "device.2 sorts its spans": Wrong(
        "Spans are sorted for speed, and their data is not.", gather_all=sorts_its_spans
    ),
    "device.3 gathers whole blocks": Wrong(
        "A block's last tokens are copied, too, behind the end of the chunk.",
        gather_all=gathers_whole_blocks,
    ),
    "device.3 moves instead of copying": Wrong(
        "What was gathered is cleared.", load=moves_instead_of_copying
    ),
    "device.4 scatters to the next token": Wrong(
        "Positions are counted from one.", keep=scatters_to_the_next_token
    ),
    "device.4 works in the callers data": Wrong(
        "Bytes are put into the device's order where they lie.",
        scatter_all=works_in_the_callers_data,
    ),
    "device.5 scatters whole blocks": Wrong(
        "The tokens of a block that are not in the span are cleared.",
        scatter_all=scatters_whole_blocks,
    ),
    "device.6 packs some layers": Wrong(
        "A few layers are gathered to the beginning of the chunk.", places=packs_some_layers
    ),
    "device.7 scatters all layers": Wrong(
        "The layers that were asked for are looked at when gathering only.",
        scatter_all=scatters_all_layers,
    ),
    "device.8 quietens na ns": Wrong(
        "Elements go through a floating-point unit.", load=quietens_na_ns
    ),
    "device.9 wants something to do": Wrong(
        "The longest of no spans is asked for.", gather_all=wants_something_to_do
    ),
    "device.10 remembers rows": Wrong(
        "A row that was gathered once is gathered from a copy.",
        __init__=remembers_rows,
        load=lambda self, real, *where: self.seen.setdefault(where, bytes(real(*where))),
    ),
    "device.11 checks as it goes": Wrong(
        "Each span is checked when its turn comes.",
        check=lambda self, real, spans, layers, *, write: real([], layers, write=write),
        gather_all=checks_as_it_goes_gather_all,
        scatter_all=checks_as_it_goes_scatter_all,
    ),
    "device.11 takes longer data": Wrong(
        "Data may have more bytes than the chunk.", check_span=takes_longer_data
    ),
    "device.12 leaves read only data out": Wrong(
        "A span that cannot be written is passed over in silence.", gather=leaves_read_only_data_out
    ),
    "device.12 wants to write on its input": Wrong(
        "Data to scatter must be writable, because the array library wants it so.",
        scatter_all=wants_to_write_on_its_input,
    ),
    "device.13 gathers holes from the end": Wrong(
        "Slot -1 is the last one, as everywhere in Python.",
        check_span=gathers_holes_from_the_end,
        where=lambda self, real, layer, plane, slot: real(layer, plane, slot % (BLOCK * BLOCKS)),
    ),
    "device.14 scatters holes to the end": Wrong(
        "Slot -1 is the last one, as everywhere in Python.", scatter_all=scatters_holes_to_the_end
    ),
    "device.15 has one transfer only": Wrong(
        "What is under way is kept in one place, and the next transfer takes it.",
        gather_all=has_one_transfer_only,
        transfer=has_one_transfer_only_transfer,
        scatter=has_one_transfer_only_scatter,
    ),
    "device.16 waits forever": Wrong(
        "The device is waited for, whatever the deadline says.", transfer=waits_forever
    ),
    "device.16 says done too early": Wrong(
        "Once the deadline has passed it says so, and means that nobody need wait.",
        gather=says_done_too_early,
    ),
    "device.17 keeps the callers data": Wrong(
        "The last spans are remembered, by reference.", gather_all=keeps_the_callers_data
    ),
}
globals().update(broken(__name__, SlotContract, SlotKV, SLOT_K_V))


BLOCKWISE_K_V = {
    "device.18 cuts blocks through": Wrong(
        "A span may start and end inside a block.", check_span=cuts_blocks_through
    ),
    "device.18 rounds to whole blocks": Wrong(
        "The blocks that a span touches are left out unless it has all of them.",
        check_span=rounds_to_whole_blocks,
        places=rounds_to_whole_blocks_places,
    ),
}
globals().update(broken(__name__, BlockwiseContract, BlockwiseKV, BLOCKWISE_K_V))
