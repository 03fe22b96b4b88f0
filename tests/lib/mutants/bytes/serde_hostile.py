"""Serdes that trust their payloads, or give one layer for another."""

from __future__ import annotations

import zlib

from hexkv.ports import CorruptFrame
from media.plain_serde import HEAD, PlainContract, PlainSerde
from mutants.rows import Wrong, broken


def pads_what_is_cut(self, real, payload, layout, tokens, into):
    if len(payload) >= HEAD.size:
        missing = HEAD.unpack_from(payload)[1] - len(payload)
        payload = memoryview(bytes(payload) + bytes(max(0, min(missing, len(into)))))
    real(payload, layout, tokens, into)


def pads_what_is_cut_inflate(self, part, size):
    try:
        return zlib.decompressobj().decompress(part, size).ljust(size, b"\0")
    except zlib.error as error:
        raise CorruptFrame("damaged") from error


def ignores_a_tail(self, real, payload, layout, tokens, into):
    if len(payload) >= HEAD.size:
        payload = payload[: HEAD.unpack_from(payload)[1]]
    real(payload, layout, tokens, into)


def fills_what_there_is(self, real, start, payload_bytes, layout, tokens):
    try:
        return real(start, payload_bytes, layout, tokens)
    except CorruptFrame:
        tokens = HEAD.unpack_from(start)[2] // layout.token_bytes
        return real(start, payload_bytes, layout, tokens)


def lets_errors_through(self, part, size):
    layer = zlib.decompress(part)
    if len(layer) != size:
        raise CorruptFrame("another length")
    return layer


def stumbles_over_noise(self, real, start, payload_bytes, layout, tokens):
    if len(start) > 4 and start[:4] != b"PLN1":
        raise ValueError("unknown magic")
    return real(start, payload_bytes, layout, tokens)


def believes_claims(self, real, payload, layout, tokens, into):
    if len(payload) >= HEAD.size:
        bytearray(min(HEAD.unpack_from(payload)[2], 4 << 20))
    real(payload, layout, tokens, into)


def declares_layers_and_has_none(self, payload, layout, tokens, into):
    parts = PlainSerde.layer_parts(self, payload, len(payload), layout, tokens)
    for layer, (start, end) in enumerate(parts):
        first, last = layout.layer_span(layer, tokens)
        self.decode_one(payload[start:end], layer, layout, tokens, into[first:last])


def declares_layers_and_has_none_getattribute(self, real, name):
    if name == "decode_layer":
        raise AttributeError(name)
    return real(name)


def gives_the_next_layer(self, real, start, payload_bytes, layout, tokens):
    parts = real(start, payload_bytes, layout, tokens)
    whole = len(start) == payload_bytes > self.index_bytes(layout)
    return parts if whole else [*parts[1:], parts[0]]


def reads_all_for_one_layer(self, real, start, payload_bytes, layout, tokens):
    real(start, payload_bytes, layout, tokens)
    return [(0, payload_bytes)] * layout.layers


def reads_all_for_one_layer_decode_layer(self, real, part, layer, layout, tokens, into):
    first, last = PlainSerde.layer_parts(self, part, len(part), layout, tokens)[layer]
    real(part[first:last], layer, layout, tokens, into)


def trusts_parts(self, part, layer, layout, tokens, into):
    found = part if len(part) == len(into) else zlib.decompressobj().decompress(part)
    into[: len(found)] = found


def trusts_parts_decode(self, payload, layout, tokens, into):
    parts = self.layer_parts(payload, len(payload), layout, tokens)
    for layer, (start, end) in enumerate(parts):
        first, last = layout.layer_span(layer, tokens)
        target = into[first:last]
        PlainSerde.decode_layer(self, payload[start:end], layer, layout, tokens, target)


ROWS = {
    "serde.12 pads what is cut": Wrong(
        "What is missing at the end counts as zeros.",
        decode=pads_what_is_cut,
        inflate=pads_what_is_cut_inflate,
    ),
    "serde.13 ignores a tail": Wrong(
        "What follows the payload is of no interest.", decode=ignores_a_tail
    ),
    "serde.14 fills what there is": Wrong(
        "A shorter chunk is good enough, and a longer one is cut.",
        layer_parts=fills_what_there_is,
        inflate=lambda self, part, size: zlib.decompress(part)[:size].ljust(size, b"\0"),
    ),
    "serde.15 lets errors through": Wrong(
        "Damage surfaces as whatever the library raises.", inflate=lets_errors_through
    ),
    "serde.16 stumbles over noise": Wrong(
        "An unknown magic is an error, of another kind.", layer_parts=stumbles_over_noise
    ),
    "serde.17 believes claims": Wrong(
        "Room is made for what the payload says it has, up to a limit.", decode=believes_claims
    ),
    "serde.20 declares layers and has none": Wrong(
        "The methods for single layers are missing.",
        decode_one=PlainSerde.decode_layer,
        decode=declares_layers_and_has_none,
        __getattribute__=declares_layers_and_has_none_getattribute,
    ),
    "serde.20 gives the next layer": Wrong(
        "Parts are counted from one.", layer_parts=gives_the_next_layer
    ),
    "serde.21 reads all for one layer": Wrong(
        "Every layer's part is the whole payload.",
        layer_parts=reads_all_for_one_layer,
        decode_layer=reads_all_for_one_layer_decode_layer,
    ),
    "serde.22 trusts parts": Wrong(
        "A layer's part is not checked, because the whole payload was.",
        decode_layer=trusts_parts,
        decode=trusts_parts_decode,
    ),
}
globals().update(broken(__name__, PlainContract, PlainSerde, ROWS))
