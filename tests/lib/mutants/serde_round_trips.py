"""Serdes that do not give back what they were given, or not with the room they asked for."""

from __future__ import annotations

import ctypes

from hexkv.ports import CorruptFrame
from mutants.meetings import Overtaking
from plain_serde import HEAD, CutSerde, PlainContract, PlainSerde


class TestHasNoBound(PlainContract):
    """A method of the port is missing."""

    breaks = "serde.1"

    class Make(PlainSerde):
        bound = None
        per_layer = "yes"


class TestHasALongName(PlainContract):
    """Frame headers have room for 32 characters."""

    breaks = "serde.2"

    class Make(PlainSerde):
        name = "plain, the shortest serde that keeps every promise"


class TestKnowsTwoByteElementsOnly(PlainContract):
    """The last byte of an odd number of bytes is lost."""

    breaks = "serde.3"

    class Make(PlainSerde):
        def deflate(self, layer):
            return super().deflate(bytes(layer[: len(layer) & ~1]) + bytes(len(layer) & 1))


class TestTakesAllLayersForTheFirst(PlainContract):
    """Every layer has as many bytes as the first one."""

    breaks = "serde.3"

    class Make(PlainSerde):
        def decode(self, payload, layout, tokens, into):
            parts = self.layer_parts(payload, len(payload), layout, tokens)
            size = layout.layer_span(0, tokens)[1]
            for layer, (start, end) in enumerate(parts):
                target = into[layer * size : (layer + 1) * size]
                self.decode_layer(payload[start:end], layer, layout, tokens, target)


class TestSaysLosslessAndIsNot(PlainContract):
    """Negative zeros become zeros, as they do in arithmetic."""

    breaks = "serde.4"

    class Make(PlainSerde):
        def encode(self, chunk, layout, tokens, into):
            cut = bytes(chunk).replace(b"\x00\x80\x00\x80", bytes(4))
            return super().encode(cut, layout, tokens, into)


class TestDividesByTheSpread(PlainContract):
    """A constant chunk has none."""

    breaks = "serde.4"

    class Make(PlainSerde):
        def encode(self, chunk, layout, tokens, into):
            assert 255 // (max(chunk) - min(chunk))
            return super().encode(chunk, layout, tokens, into)


class TestHopesThatKVShrinks(PlainContract):
    """The bound holds for KV, and not for noise."""

    breaks = "serde.4"

    class Make(PlainSerde):
        def bound(self, raw_bytes):
            return HEAD.size + raw_bytes - raw_bytes // 16


class TestForgetsItsTable(PlainContract):
    """The bound has room for a table of a few layers, not of many."""

    breaks = "serde.5"

    class Make(PlainSerde):
        def bound(self, raw_bytes):
            return HEAD.size + raw_bytes + 64


class TestWorksInTheTarget(PlainContract):
    """What was announced is used as room to work in."""

    breaks = "serde.6"

    class Make(PlainSerde):
        def encode(self, chunk, layout, tokens, into):
            into[self.bound(len(chunk)) - 1] = 7
            return super().encode(chunk, layout, tokens, into)


class TestLeavesZerosOut(PlainContract):
    """A layer of zeros is not written: new buffers hold zeros anyway."""

    breaks = "serde.7"

    class Make(PlainSerde):
        def decode_layer(self, part, layer, layout, tokens, into):
            found = bytearray(len(into))
            super().decode_layer(part, layer, layout, tokens, memoryview(found))
            if any(found):
                into[:] = found


class TestWantsToWriteOnTheChunk(PlainContract):
    """The input must be writable, because ctypes wants it so."""

    breaks = "serde.8"

    class Make(PlainSerde):
        def encode(self, chunk, layout, tokens, into):
            (ctypes.c_char * len(chunk)).from_buffer(chunk)
            return super().encode(chunk, layout, tokens, into)


class TestWantsEvenAddresses(PlainContract):
    """Words are read where words may not start."""

    breaks = "serde.8"

    class Make(PlainSerde):
        def decode(self, payload, layout, tokens, into):
            if ctypes.addressof(ctypes.c_char.from_buffer(into)) % 2:
                raise BufferError("unaligned")
            super().decode(payload, layout, tokens, into)


class TestKeepsTheCallersBuffer(PlainContract):
    """The last chunk is remembered, by reference."""

    breaks = "serde.9"

    class Make(PlainSerde):
        def encode(self, chunk, layout, tokens, into):
            self.last = chunk[:1]
            return super().encode(chunk, layout, tokens, into)


class TestWorksOnItsInput(PlainContract):
    """Where the chunk may be written it is transformed in place."""

    breaks = "serde.9"

    class Make(PlainSerde):
        def encode(self, chunk, layout, tokens, into):
            size = super().encode(chunk, layout, tokens, into)
            if not chunk.readonly:
                chunk[0] ^= 1
            return size


class TestRemembersWhatItEncoded(PlainContract):
    """The first layer's bytes are kept in the serde, not in the payload."""

    breaks = "serde.10"

    class Make(PlainSerde):
        def encode(self, chunk, layout, tokens, into):
            self.first = bytes(chunk[:8])
            return super().encode(chunk, layout, tokens, into)

        def decode(self, payload, layout, tokens, into):
            super().decode(payload, layout, tokens, into)
            into[:8] = self.first


class TestSharesItsWorkingMemory(PlainContract):
    """All threads work in one attribute."""

    breaks = "serde.11"

    class Make(PlainSerde):
        def __init__(self):
            self.overtaking = Overtaking()

        def encode(self, chunk, layout, tokens, into):
            self.parts = []
            for layer in range(layout.layers):
                first, last = layout.layer_span(layer, tokens)
                self.parts.append(self.deflate(chunk[first:last]))
            self.overtaking.wait()
            return self.assemble(self.parts, len(chunk), into)


class TestIsFurtherOffThanItSays(PlainContract):
    """Declared is the error of the format it was written for first."""

    breaks = "serde.23"

    class Make(CutSerde):
        cut = 16


class TestTouchesWhatIsNoNumber(PlainContract):
    """The payload of a NaN changes, and an infinity may become one."""

    breaks = "serde.23"

    class Make(CutSerde):
        def finite(self, element, exponent):
            return True


class TestDeclaresNothingByABound(PlainContract):
    """Zeros would keep it."""

    breaks = "serde.24"

    class Make(CutSerde):
        share = 1.0


class TestKeepsALayersPart(PlainContract):
    """The part that was decoded last is remembered, where a layer is loaded alone."""

    breaks = "serde.9"

    class Make(PlainSerde):
        def decode_layer(self, part, layer, layout, tokens, into):
            self.last = part[:1]
            super().decode_layer(part, layer, layout, tokens, into)

        def decode(self, payload, layout, tokens, into):
            PlainSerde().decode(payload, layout, tokens, into)


class TestKeepsTheIndex(PlainContract):
    """The index that was read last is remembered."""

    breaks = "serde.9"

    class Make(PlainSerde):
        def layer_parts(self, start, payload_bytes, layout, tokens):
            self.last = start[:1]
            return super().layer_parts(start, payload_bytes, layout, tokens)

        def decode(self, payload, layout, tokens, into):
            PlainSerde().decode(payload, layout, tokens, into)


class TestKeepsWhatItTurnedAway(PlainContract):
    """The last error is remembered, and with its traceback all that it came through."""

    breaks = "serde.9"

    class Make(PlainSerde):
        def decode(self, payload, layout, tokens, into):
            try:
                super().decode(payload, layout, tokens, into)
            except CorruptFrame as error:
                self.last = error
                raise


class TestGivesWhatItDecoded(PlainContract):
    """The chunk is given, too, as a view of the caller's room."""

    breaks = "serde.9"

    class Make(PlainSerde):
        def decode(self, payload, layout, tokens, into):
            super().decode(payload, layout, tokens, into)
            return into


class TestRemembersBlocks(PlainContract):
    """A payload at an address that it has seen is the one that was there."""

    breaks = "serde.10"

    class Make(PlainSerde):
        def __init__(self):
            self.seen = {}

        def decode(self, payload, layout, tokens, into):
            if payload.readonly or not len(payload):
                super().decode(payload, layout, tokens, into)
                return
            block = ctypes.addressof(ctypes.c_char.from_buffer(payload)), len(payload) // 4096
            if block not in self.seen:
                super().decode(payload, layout, tokens, into)
                self.seen[block] = bytes(into)
            into[:] = self.seen[block]


class TestFillsTheRestLater(PlainContract):
    """Where there is nothing to hurry for, the payload is looked at again with the next call."""

    breaks = "serde.10"

    class Make(PlainSerde):
        late = None

        def decode(self, payload, layout, tokens, into):
            if self.late is not None:
                into[-8:] = self.late
            super().decode(payload, layout, tokens, into)
            self.late, tail = bytes(into[-8:]), self.late
            if tail is not None and not payload.readonly:
                into[-8:] = tail


class TestBoundsIn32Bits(PlainContract):
    """The bound of a large chunk is what a C int holds of it."""

    breaks = "serde.5"

    class Make(PlainSerde):
        def bound(self, raw_bytes):
            return (
                super().bound(raw_bytes) & 0xFFFFFFFF
                if raw_bytes > 1 << 28
                else (super().bound(raw_bytes))
            )


class TestKeepsThePayload(PlainContract):
    """The payload that was decoded last is remembered, as it was given."""

    breaks = "serde.9"

    class Make(PlainSerde):
        def decode(self, payload, layout, tokens, into):
            super().decode(payload, layout, tokens, into)
            self.last = payload


class TestKeepsTheRoom(PlainContract):
    """So is where it was decoded to."""

    breaks = "serde.9"

    class Make(PlainSerde):
        def decode(self, payload, layout, tokens, into):
            super().decode(payload, layout, tokens, into)
            self.last = into
