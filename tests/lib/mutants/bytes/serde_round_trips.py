"""Serdes that do not give back what they were given, or not with the room they asked for."""

from __future__ import annotations

import ctypes

from hexkv.ports import CorruptFrame
from media.plain_serde import EXPONENTS, HEAD, CutSerde, PlainContract, PlainSerde
from mutants.meetings import Overtaking
from mutants.rows import Wrong, broken


def knows_two_byte_elements_only(self, real, layer):
    return real(bytes(layer[: len(layer) & ~1]) + bytes(len(layer) & 1))


def takes_all_layers_for_the_first(self, payload, layout, tokens, into):
    parts = self.layer_parts(payload, len(payload), layout, tokens)
    size = layout.layer_span(0, tokens)[1]
    for layer, (start, end) in enumerate(parts):
        target = into[layer * size : (layer + 1) * size]
        self.decode_layer(payload[start:end], layer, layout, tokens, target)


def says_lossless_and_is_not(self, real, chunk, layout, tokens, into):
    cut = bytes(chunk).replace(b"\x00\x80\x00\x80", bytes(4))
    return real(cut, layout, tokens, into)


def divides_by_the_spread(self, real, chunk, layout, tokens, into):
    assert 255 // (max(chunk) - min(chunk))
    return real(chunk, layout, tokens, into)


def works_in_the_target(self, real, chunk, layout, tokens, into):
    into[self.bound(len(chunk)) - 1] = 7
    return real(chunk, layout, tokens, into)


def leaves_zeros_out(self, real, part, layer, layout, tokens, into):
    found = bytearray(len(into))
    real(part, layer, layout, tokens, memoryview(found))
    if any(found):
        into[:] = found


def wants_to_write_on_the_chunk(self, real, chunk, layout, tokens, into):
    (ctypes.c_char * len(chunk)).from_buffer(chunk)
    return real(chunk, layout, tokens, into)


def wants_even_addresses(self, real, payload, layout, tokens, into):
    if ctypes.addressof(ctypes.c_char.from_buffer(into)) % 2:
        raise BufferError("unaligned")
    real(payload, layout, tokens, into)


def counts_layers(bits):
    def assemble(self, real, parts, raw_bytes, into):
        size = real(parts, raw_bytes, into)
        for at, part in enumerate(parts):
            short = (len(part) & ((1 << bits) - 1)).to_bytes(4, "little")
            into[HEAD.size + 4 * at : HEAD.size + 4 * at + 4] = short
        return size

    return assemble


def rounds_the_largest_up(self, real, chunk, layout, tokens, into):
    up, size = bytearray(chunk), layout.dtype.itemsize
    if layout.dtype in EXPONENTS:
        exponent = EXPONENTS[layout.dtype]
        most = exponent - 1
        for at in range(0, len(up), size):
            if int.from_bytes(up[at : at + size], "little") == most:
                up[at : at + size] = exponent.to_bytes(size, "little")
    return real(up, layout, tokens, into)


def keeps_the_callers_buffer(self, real, chunk, layout, tokens, into):
    self.last = chunk[:1]
    return real(chunk, layout, tokens, into)


def works_on_its_input(self, real, chunk, layout, tokens, into):
    size = real(chunk, layout, tokens, into)
    if not chunk.readonly:
        chunk[0] ^= 1
    return size


def remembers_what_it_encoded(self, real, chunk, layout, tokens, into):
    self.first = bytes(chunk[:8])
    return real(chunk, layout, tokens, into)


def remembers_what_it_encoded_decode(self, real, payload, layout, tokens, into):
    real(payload, layout, tokens, into)
    into[:8] = self.first


def shares_its_working_memory(self):
    self.overtaking = Overtaking()


def shares_its_working_memory_encode(self, chunk, layout, tokens, into):
    self.parts = []
    for layer in range(layout.layers):
        first, last = layout.layer_span(layer, tokens)
        self.parts.append(self.deflate(chunk[first:last]))
    self.overtaking.wait()
    return self.assemble(self.parts, len(chunk), into)


def keeps_a_layers_part(self, real, part, layer, layout, tokens, into):
    self.last = part[:1]
    real(part, layer, layout, tokens, into)


def keeps_a_layers_part_decode(self, payload, layout, tokens, into):
    PlainSerde().decode(payload, layout, tokens, into)


def keeps_the_index(self, real, start, payload_bytes, layout, tokens):
    self.last = start[:1]
    return real(start, payload_bytes, layout, tokens)


def keeps_the_index_decode(self, payload, layout, tokens, into):
    PlainSerde().decode(payload, layout, tokens, into)


def keeps_what_it_turned_away(self, real, payload, layout, tokens, into):
    try:
        real(payload, layout, tokens, into)
    except CorruptFrame as error:
        self.last = error
        raise


def gives_what_it_decoded(self, real, payload, layout, tokens, into):
    real(payload, layout, tokens, into)
    return into


def remembers_blocks(self):
    self.seen = {}


def remembers_blocks_decode(self, real, payload, layout, tokens, into):
    if payload.readonly or not len(payload):
        real(payload, layout, tokens, into)
        return
    block = ctypes.addressof(ctypes.c_char.from_buffer(payload)), len(payload) // 4096
    if block not in self.seen:
        real(payload, layout, tokens, into)
        self.seen[block] = bytes(into)
    into[:] = self.seen[block]


def fills_the_rest_later(self, real, payload, layout, tokens, into):
    if self.late is not None:
        into[-8:] = self.late
    real(payload, layout, tokens, into)
    self.late, tail = bytes(into[-8:]), self.late
    if tail is not None and not payload.readonly:
        into[-8:] = tail


def bounds_in32_bits(self, real, raw_bytes):
    return real(raw_bytes) & 0xFFFFFFFF if raw_bytes > 1 << 28 else (real(raw_bytes))


def keeps_the_payload(self, real, payload, layout, tokens, into):
    real(payload, layout, tokens, into)
    self.last = payload


def keeps_the_room(self, real, payload, layout, tokens, into):
    real(payload, layout, tokens, into)
    self.last = into


PLAIN_SERDE = {
    "serde.1 has no bound": Wrong("A method of the port is missing.", bound=None, per_layer="yes"),
    "serde.2 has a long name": Wrong(
        "Frame headers have room for 32 characters.",
        name="plain, the shortest serde that keeps every promise",
    ),
    "serde.3 knows two byte elements only": Wrong(
        "The last byte of an odd number of bytes is lost.", deflate=knows_two_byte_elements_only
    ),
    "serde.3 takes all layers for the first": Wrong(
        "Every layer has as many bytes as the first one.", decode=takes_all_layers_for_the_first
    ),
    "serde.4 says lossless and is not": Wrong(
        "Negative zeros become zeros, as they do in arithmetic.", encode=says_lossless_and_is_not
    ),
    "serde.4 divides by the spread": Wrong(
        "A constant chunk has none.", encode=divides_by_the_spread
    ),
    "serde.4 hopes that k v shrinks": Wrong(
        "The bound holds for KV, and not for noise.",
        bound=lambda self, raw_bytes: HEAD.size + raw_bytes - raw_bytes // 16,
    ),
    "serde.5 forgets its table": Wrong(
        "The bound has room for a table of a few layers, not of many.",
        bound=lambda self, raw_bytes: HEAD.size + raw_bytes + 64,
    ),
    "serde.6 works in the target": Wrong(
        "What was announced is used as room to work in.", encode=works_in_the_target
    ),
    "serde.7 leaves zeros out": Wrong(
        "A layer of zeros is not written: new buffers hold zeros anyway.",
        decode_layer=leaves_zeros_out,
    ),
    "serde.8 wants to write on the chunk": Wrong(
        "The input must be writable, because ctypes wants it so.",
        encode=wants_to_write_on_the_chunk,
    ),
    "serde.8 wants even addresses": Wrong(
        "Words are read where words may not start.", decode=wants_even_addresses
    ),
    "serde.9 keeps the callers buffer": Wrong(
        "The last chunk is remembered, by reference.", encode=keeps_the_callers_buffer
    ),
    "serde.9 works on its input": Wrong(
        "Where the chunk may be written it is transformed in place.", encode=works_on_its_input
    ),
    "serde.10 remembers what it encoded": Wrong(
        "The first layer's bytes are kept in the serde, not in the payload.",
        encode=remembers_what_it_encoded,
        decode=remembers_what_it_encoded_decode,
    ),
    "serde.11 shares its working memory": Wrong(
        "All threads work in one attribute.",
        __init__=shares_its_working_memory,
        encode=shares_its_working_memory_encode,
    ),
    "serde.9 keeps a layers part": Wrong(
        "The part that was decoded last is remembered, where a layer is loaded alone.",
        decode_layer=keeps_a_layers_part,
        decode=keeps_a_layers_part_decode,
    ),
    "serde.9 keeps the index": Wrong(
        "The index that was read last is remembered.",
        layer_parts=keeps_the_index,
        decode=keeps_the_index_decode,
    ),
    "serde.9 keeps what it turned away": Wrong(
        "The last error is remembered, and with its traceback all that it came through.",
        decode=keeps_what_it_turned_away,
    ),
    "serde.9 gives what it decoded": Wrong(
        "The chunk is given, too, as a view of the caller's room.", decode=gives_what_it_decoded
    ),
    "serde.10 remembers blocks": Wrong(
        "A payload at an address that it has seen is the one that was there.",
        __init__=remembers_blocks,
        decode=remembers_blocks_decode,
    ),
    "serde.10 fills the rest later": Wrong(
        "Where there is nothing to hurry for, the payload is looked at again with the next call.",
        late=None,
        decode=fills_the_rest_later,
    ),
    "serde.25 counts layers in16 bits": Wrong(
        "The table of layers has lengths of 16 bits.", assemble=counts_layers(16)
    ),
    "serde.25 counts layers in24 bits": Wrong(
        "The table of layers has lengths of 24 bits.", assemble=counts_layers(24)
    ),
    "serde.5 bounds in32 bits": Wrong(
        "The bound of a large chunk is what a C int holds of it.", bound=bounds_in32_bits
    ),
    "serde.9 keeps the payload": Wrong(
        "The payload that was decoded last is remembered, as it was given.",
        decode=keeps_the_payload,
    ),
    "serde.9 keeps the room": Wrong("So is where it was decoded to.", decode=keeps_the_room),
}
globals().update(broken(__name__, PlainContract, PlainSerde, PLAIN_SERDE))


CUT_SERDE = {
    "serde.23 rounds the largest up": Wrong(
        "The largest number is rounded up to infinity.", encode=rounds_the_largest_up
    ),
    "serde.23 is further off than it says": Wrong(
        "Declared is the error of the format it was written for first.", cut=16
    ),
    "serde.23 touches what is no number": Wrong(
        "The payload of a NaN changes, and an infinity may become one.",
        finite=lambda self, element, exponent: True,
    ),
    "serde.24 declares nothing by a bound": Wrong("Zeros would keep it.", share=1.0),
}
globals().update(broken(__name__, PlainContract, CutSerde, CUT_SERDE))
