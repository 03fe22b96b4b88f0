"""Serdes that keep every promise, for tests to break."""

from __future__ import annotations

import zlib
from itertools import accumulate, pairwise
from struct import Struct

import pytest

from hexkv.contracts.serde import SerdeContract
from hexkv.ports import CorruptFrame, DType, ErrorBound

HEAD = Struct("<4sIQ")
"""Magic, bytes of the payload, bytes of the chunk; then four bytes per layer, then the layers."""

EXPONENTS = {DType.BFLOAT16: 0x7F80, DType.FLOAT16: 0x7C00, DType.FLOAT32: 0x7F800000}
"""The bits of each float type that are all set where it is no finite number."""


class PlainSerde:
    """Each layer through zlib, or as it was: the shortest serde that keeps every promise."""

    name = "plain/1"
    lossless = True
    per_layer = True

    def bound(self, raw_bytes):
        return HEAD.size + raw_bytes * 5

    def encode(self, chunk, layout, tokens, into):
        spans = [layout.layer_span(layer, tokens) for layer in range(layout.layers)]
        parts = [self.deflate(chunk[first:last]) for first, last in spans]
        return self.assemble(parts, len(chunk), into)

    def deflate(self, layer):
        packed = zlib.compress(layer, 1)
        return packed if len(packed) < len(layer) else layer

    def assemble(self, parts, raw_bytes, into):
        sizes = Struct(f"<{len(parts)}I").pack(*map(len, parts))
        body = sizes + b"".join(parts)
        payload = HEAD.pack(b"PLN1", HEAD.size + len(body), raw_bytes) + body
        into[: len(payload)] = payload
        return len(payload)

    def index_bytes(self, layout):
        return HEAD.size + 4 * layout.layers

    def layer_parts(self, start, payload_bytes, layout, tokens):
        if len(start) < self.index_bytes(layout):
            raise CorruptFrame("short")
        magic, size, raw_bytes = HEAD.unpack_from(start)
        if (magic, size, raw_bytes) != (b"PLN1", payload_bytes, layout.chunk_bytes(tokens)):
            raise CorruptFrame("not plain")
        sizes = Struct(f"<{layout.layers}I").unpack_from(start, HEAD.size)
        bounds = list(accumulate(sizes, initial=self.index_bytes(layout)))
        if bounds[-1] != payload_bytes:
            raise CorruptFrame("does not add up")
        return list(pairwise(bounds))

    def decode_layer(self, part, layer, layout, tokens, into):
        into[:] = part if len(part) == len(into) else self.inflate(part, len(into))

    def inflate(self, part, size):
        inflater = zlib.decompressobj()
        try:
            layer = inflater.decompress(part, size)
        except zlib.error as error:
            raise CorruptFrame("damaged") from error
        if len(layer) != size or not inflater.eof or inflater.unused_data:
            raise CorruptFrame("another length")
        return layer

    def decode(self, payload, layout, tokens, into):
        parts = self.layer_parts(payload, len(payload), layout, tokens)
        for layer, (start, end) in enumerate(parts):
            first, last = layout.layer_span(layer, tokens)
            self.decode_layer(payload[start:end], layer, layout, tokens, into[first:last])


class CutSerde(PlainSerde):
    """Floats without their lowest bit, if they are finite; no layers of its own."""

    lossless = False
    per_layer = False
    cut = 1
    share = 2.0**-7

    def encode(self, chunk, layout, tokens, into):
        cut, size = bytearray(chunk), layout.dtype.itemsize
        if layout.dtype in EXPONENTS:
            for at in range(0, len(cut), size):
                if self.finite(cut[at : at + size], EXPONENTS[layout.dtype]):
                    cut[at] &= 255 - self.cut
        return super().encode(cut, layout, tokens, into)

    def finite(self, element, exponent):
        return int.from_bytes(element, "little") & exponent != exponent

    def error(self, layout, layer, plane):
        return ErrorBound(self.share if layout.dtype in EXPONENTS else 0.0)


class PlainContract(SerdeContract):
    Make = PlainSerde

    @pytest.fixture
    def serde(self):
        return self.Make()
