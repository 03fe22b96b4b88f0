"""Windows that decode chunks wrongly, or where they should not."""

from __future__ import annotations

import pytest

from devices.slot_kv import BLOCK, RawSlots, SlotKV
from hexkv.contracts.device import Holed
from hexkv.contracts.encoded import EncodedContract
from hexkv.ports import CorruptFrame, DType, Finished, InvalidRequest, KVLayout, Span
from media.plain_serde import PlainSerde
from mutants.rows import Wrong, broken


class DecodingKV(SlotKV):
    """Decodes by the serde's own code, as a device would by its own."""

    def decodes(self, serde):
        return isinstance(serde, PlainSerde)

    def scatter_encoded(self, serde, spans):
        self.admit(spans)
        raw = [Span(s.start, s.end, self.decoded(serde, s)) for s in spans]
        return self.scatter(raw)

    def scatter_encoded_layers(self, serde, spans, layers):
        if not 0 <= layers.start < layers.stop <= self.layout.layers:
            raise InvalidRequest("no such layers")
        self.admit(spans)
        raw = [Span(s.start, s.end, self.decoded_layers(serde, s, layers)) for s in spans]
        return self.scatter(raw, layers)

    def decoded_layers(self, serde, span, layers):
        tokens, payload = span.end - span.start, span.payload
        into = memoryview(bytearray(self.layout.chunk_bytes(tokens)))
        parts = serde.layer_parts(payload, len(payload), self.layout, tokens)
        for layer in layers:
            first, last = self.layout.layer_span(layer, tokens)
            part = payload[slice(*parts[layer])]
            serde.decode_layer(part, layer, self.layout, tokens, into[first:last])
        return into

    def admit(self, spans):
        for start, end, _ in spans:
            if not 0 <= start <= end <= self.tokens:
                raise InvalidRequest("outside of the window")

    def decoded(self, serde, span):
        tokens = span.end - span.start
        into = memoryview(bytearray(self.layout.chunk_bytes(tokens)))
        serde.decode(span.payload, self.layout, tokens, into)
        return into


class DecodingContract(EncodedContract):
    Make = DecodingKV
    layout = KVLayout.attention(DType.BFLOAT16, layers=3, heads=2, key_width=2)
    slots = tuple(block * BLOCK + at for block in (5, 1, 8, 0, 6, 3, 7) for at in range(BLOCK))

    @pytest.fixture
    def serde(self):
        return PlainSerde()

    @pytest.fixture
    def device(self):
        return self.Make(self.layout, list(self.slots))

    @pytest.fixture
    def raw(self, device):
        return RawSlots(self.layout, device, self.slots)

    @pytest.fixture
    def holed(self):
        slots = [-1 if at in (6, 7, 13) else slot for at, slot in enumerate(self.slots)]
        device = self.Make(self.layout, slots)
        return Holed(device, RawSlots(self.layout, device, slots), {6, 7, 13})


def decodes_the_first_span_only(self, real, serde, spans):
    return real(serde, spans[:1] if len(spans) > 1 else spans)


def decodes_one_too_far(self, real, spans, layers=None):
    return real([Span(s.start + 1, s.end + 1, s.data) if s.end < 20 else s for s in spans], layers)


def rounds_on_the_way(self, real, serde, span):
    into = real(serde, span)
    into[-1] ^= 1
    return into


def decodes_in_place(self, real, serde, span):
    into = real(serde, span)
    if not span.payload.readonly:
        span.payload[0] ^= 1
    elif span.payload.obj is not None:
        span.payload.obj[0] ^= 1
    return into


class TestDecodesWhenItLikes(DecodingContract):
    """The wait is over before the payload was looked at: the next one finds it changed."""

    breaks = "encoded.3"

    class Make(DecodingKV):
        late = None

        def scatter_encoded(self, serde, spans):
            self.admit(spans)
            for span in spans:
                self.decoded(serde, span)  # so that what is damaged is refused
            self.late = serde, spans
            return Finished()

        @property
        def memory(self):
            if self.late is not None:
                serde, spans = self.late
                self.late = None
                if any(any(s.payload) for s in spans):
                    self.scatter([Span(s.start, s.end, self.decoded(serde, s)) for s in spans])
            return self.pages

        @memory.setter
        def memory(self, pages):
            self.pages = pages


def keeps_the_payload(self, real, serde, spans):
    self.last = [span.payload[:16] for span in spans]
    return real(serde, spans)


def believes_spans_scatter_all(self, spans, layers):
    for start, end, data in spans:
        for place, (layer, plane, position) in self.places(start, end, layers):
            self.keep(layer, plane, position % self.tokens, data[place])


def refuses_late(self, real, serde, spans):
    for span in spans:
        real(serde, [span])
    return Finished()


def believes_payloads(self, real, serde, span):
    try:
        return real(serde, span)
    except CorruptFrame:
        return memoryview(bytearray(self.layout.chunk_bytes(span.end - span.start)))


def fills_holes(self, spans, layers):
    for start, end, data in spans:
        for place, (layer, plane, position) in self.places(start, end, layers):
            there = position if self.slots[position] >= 0 else 0
            self.keep(layer, plane, there, data[place])


def brings_all_layers(self, real, serde, spans, layers):
    return real(serde, spans, range(layers.stop))


def decodes_a_length_once(self, real, serde, span):
    known = self.__dict__.setdefault("known", {})
    return known.setdefault(span.end - span.start, real(serde, span))


ROWS = {
    "encoded.2 decodes a length once": Wrong(
        "Of two chunks of one length the second gets the KV of the first.",
        decoded=decodes_a_length_once,
    ),
    "encoded.1 decodes whatever comes": Wrong(
        "It says of every serde that it decodes it.", decodes=lambda self, serde: True
    ),
    "encoded.2 decodes the first span only": Wrong(
        "Of several spans the last one stays as it was.",
        scatter_encoded=decodes_the_first_span_only,
    ),
    "encoded.2 decodes one too far": Wrong(
        "Each chunk lands one token further on, where there is room.", scatter=decodes_one_too_far
    ),
    "encoded.2 rounds on the way": Wrong(
        "Another decoder, which is nearly right.", decoded=rounds_on_the_way
    ),
    "encoded.3 decodes in place": Wrong(
        "It uses the payload as room to work in.", decoded=decodes_in_place
    ),
    "encoded.3 keeps the payload": Wrong(
        "The heads of the last payloads stay at hand.", scatter_encoded=keeps_the_payload
    ),
    "encoded.4 believes spans": Wrong(
        "A span before the first token wraps around, one behind the last is cut.",
        admit=lambda self, spans: None,
        check_span=lambda self, span, *, write: None,
        scatter_all=believes_spans_scatter_all,
    ),
    "encoded.4 refuses late": Wrong(
        "What comes before a span that is refused has moved by then.", scatter_encoded=refuses_late
    ),
    "encoded.5 believes payloads": Wrong(
        "What cannot be decoded is taken for zeros.", decoded=believes_payloads
    ),
    "encoded.6 fills holes": Wrong(
        "What has no place lands in the first one.", scatter_all=fills_holes
    ),
    "encoded.7 brings all layers": Wrong(
        "Of a payload of which some layers are there, all are brought.",
        scatter_encoded_layers=brings_all_layers,
    ),
}
globals().update(broken(__name__, DecodingContract, DecodingKV, ROWS))
