"""Serdes that trust their payloads, or give one layer for another."""

from __future__ import annotations

import zlib

from hexkv.ports import CorruptFrame
from plain_serde import HEAD, PlainContract, PlainSerde


class TestPadsWhatIsCut(PlainContract):
    """What is missing at the end counts as zeros."""

    breaks = "serde.12"

    class Make(PlainSerde):
        def decode(self, payload, layout, tokens, into):
            if len(payload) >= HEAD.size:
                missing = HEAD.unpack_from(payload)[1] - len(payload)
                payload = memoryview(bytes(payload) + bytes(max(0, min(missing, len(into)))))
            super().decode(payload, layout, tokens, into)

        def inflate(self, part, size):
            try:
                return zlib.decompressobj().decompress(part, size).ljust(size, b"\0")
            except zlib.error as error:
                raise CorruptFrame("damaged") from error


class TestIgnoresATail(PlainContract):
    """What follows the payload is of no interest."""

    breaks = "serde.13"

    class Make(PlainSerde):
        def decode(self, payload, layout, tokens, into):
            if len(payload) >= HEAD.size:
                payload = payload[: HEAD.unpack_from(payload)[1]]
            super().decode(payload, layout, tokens, into)


class TestFillsWhatThereIs(PlainContract):
    """A shorter chunk is good enough, and a longer one is cut."""

    breaks = "serde.14"

    class Make(PlainSerde):
        def layer_parts(self, start, payload_bytes, layout, tokens):
            try:
                return super().layer_parts(start, payload_bytes, layout, tokens)
            except CorruptFrame:
                tokens = HEAD.unpack_from(start)[2] // layout.token_bytes
                return super().layer_parts(start, payload_bytes, layout, tokens)

        def inflate(self, part, size):
            return zlib.decompress(part)[:size].ljust(size, b"\0")


class TestLetsErrorsThrough(PlainContract):
    """Damage surfaces as whatever the library raises."""

    breaks = "serde.15"

    class Make(PlainSerde):
        def inflate(self, part, size):
            layer = zlib.decompress(part)
            if len(layer) != size:
                raise CorruptFrame("another length")
            return layer


class TestStumblesOverNoise(PlainContract):
    """An unknown magic is an error, of another kind."""

    breaks = "serde.16"

    class Make(PlainSerde):
        def layer_parts(self, start, payload_bytes, layout, tokens):
            if len(start) > 4 and start[:4] != b"PLN1":
                raise ValueError("unknown magic")
            return super().layer_parts(start, payload_bytes, layout, tokens)


class TestBelievesClaims(PlainContract):
    """Room is made for what the payload says it has, up to a limit."""

    breaks = "serde.17"

    class Make(PlainSerde):
        def decode(self, payload, layout, tokens, into):
            if len(payload) >= HEAD.size:
                bytearray(min(HEAD.unpack_from(payload)[2], 4 << 20))
            super().decode(payload, layout, tokens, into)


class TestDeclaresLayersAndHasNone(PlainContract):
    """The methods for single layers are missing."""

    breaks = "serde.20"

    class Make(PlainSerde):
        decode_one = PlainSerde.decode_layer

        def decode(self, payload, layout, tokens, into):
            parts = PlainSerde.layer_parts(self, payload, len(payload), layout, tokens)
            for layer, (start, end) in enumerate(parts):
                first, last = layout.layer_span(layer, tokens)
                self.decode_one(payload[start:end], layer, layout, tokens, into[first:last])

        def __getattribute__(self, name):
            if name == "decode_layer":
                raise AttributeError(name)
            return super().__getattribute__(name)


class TestGivesTheNextLayer(PlainContract):
    """Parts are counted from one."""

    breaks = "serde.20"

    class Make(PlainSerde):
        def layer_parts(self, start, payload_bytes, layout, tokens):
            parts = super().layer_parts(start, payload_bytes, layout, tokens)
            whole = len(start) == payload_bytes > self.index_bytes(layout)
            return parts if whole else [*parts[1:], parts[0]]


class TestReadsAllForOneLayer(PlainContract):
    """Every layer's part is the whole payload."""

    breaks = "serde.21"

    class Make(PlainSerde):
        def layer_parts(self, start, payload_bytes, layout, tokens):
            super().layer_parts(start, payload_bytes, layout, tokens)
            return [(0, payload_bytes)] * layout.layers

        def decode_layer(self, part, layer, layout, tokens, into):
            first, last = PlainSerde.layer_parts(self, part, len(part), layout, tokens)[layer]
            super().decode_layer(part[first:last], layer, layout, tokens, into)


class TestTrustsParts(PlainContract):
    """A layer's part is not checked, because the whole payload was."""

    breaks = "serde.22"

    class Make(PlainSerde):
        def decode_layer(self, part, layer, layout, tokens, into):
            found = part if len(part) == len(into) else zlib.decompressobj().decompress(part)
            into[: len(found)] = found

        def decode(self, payload, layout, tokens, into):
            parts = self.layer_parts(payload, len(payload), layout, tokens)
            for layer, (start, end) in enumerate(parts):
                first, last = layout.layer_span(layer, tokens)
                target = into[first:last]
                PlainSerde.decode_layer(self, payload[start:end], layer, layout, tokens, target)
