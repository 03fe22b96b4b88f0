"""Windows that decode chunks wrongly, or where they should not."""

from __future__ import annotations

import pytest

from hexkv.contracts.device import Holed
from hexkv.contracts.encoded import EncodedContract
from hexkv.ports import CorruptFrame, DType, Finished, InvalidRequest, KVLayout, Span
from plain_serde import PlainSerde
from slot_kv import BLOCK, RawSlots, SlotKV


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


class TestDecodesWhateverComes(DecodingContract):
    """It says of every serde that it decodes it."""

    breaks = "encoded.1"

    class Make(DecodingKV):
        def decodes(self, serde):
            return True


class TestDecodesTheFirstSpanOnly(DecodingContract):
    """Of several spans the last one stays as it was."""

    breaks = "encoded.2"

    class Make(DecodingKV):
        def scatter_encoded(self, serde, spans):
            return super().scatter_encoded(serde, spans[:1] if len(spans) > 1 else spans)


class TestDecodesOneTooFar(DecodingContract):
    """Each chunk lands one token further on, where there is room."""

    breaks = "encoded.2"

    class Make(DecodingKV):
        def scatter(self, spans, layers=None):
            return super().scatter(
                [Span(s.start + 1, s.end + 1, s.data) if s.end < 20 else s for s in spans], layers
            )


class TestRoundsOnTheWay(DecodingContract):
    """Another decoder, which is nearly right."""

    breaks = "encoded.2"

    class Make(DecodingKV):
        def decoded(self, serde, span):
            into = super().decoded(serde, span)
            into[-1] ^= 1
            return into


class TestDecodesInPlace(DecodingContract):
    """It uses the payload as room to work in."""

    breaks = "encoded.3"

    class Make(DecodingKV):
        def decoded(self, serde, span):
            into = super().decoded(serde, span)
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


class TestBelievesSpans(DecodingContract):
    """A span before the first token wraps around, one behind the last is cut."""

    breaks = "encoded.4"

    class Make(DecodingKV):
        def admit(self, spans):
            pass

        def check_span(self, span, *, write):
            pass

        def scatter_all(self, spans, layers):
            for start, end, data in spans:
                for place, (layer, plane, position) in self.places(start, end, layers):
                    self.keep(layer, plane, position % self.tokens, data[place])


class TestRefusesLate(DecodingContract):
    """What comes before a span that is refused has moved by then."""

    breaks = "encoded.4"

    class Make(DecodingKV):
        def scatter_encoded(self, serde, spans):
            for span in spans:
                super().scatter_encoded(serde, [span])
            return Finished()


class TestBelievesPayloads(DecodingContract):
    """What cannot be decoded is taken for zeros."""

    breaks = "encoded.5"

    class Make(DecodingKV):
        def decoded(self, serde, span):
            try:
                return super().decoded(serde, span)
            except CorruptFrame:
                return memoryview(bytearray(self.layout.chunk_bytes(span.end - span.start)))


class TestFillsHoles(DecodingContract):
    """What has no place lands in the first one."""

    breaks = "encoded.6"

    class Make(DecodingKV):
        def scatter_all(self, spans, layers):
            for start, end, data in spans:
                for place, (layer, plane, position) in self.places(start, end, layers):
                    there = position if self.slots[position] >= 0 else 0
                    self.keep(layer, plane, there, data[place])


class TestBringsAllLayers(DecodingContract):
    """Of a payload of which some layers are there, all are brought."""

    breaks = "encoded.7"

    class Make(DecodingKV):
        def scatter_encoded_layers(self, serde, spans, layers):
            return super().scatter_encoded_layers(serde, spans, range(layers.stop))
