"""Serdes that each break one promise, on top of one that is correct.

Not collected by itself: ``test_serde_contract`` runs the contract on the classes in here, and
looks at who is caught, and for what.
"""

from __future__ import annotations

import ctypes
import zlib

import pytest

from hexkv.contracts.serde import SerdeContract
from hexkv.contracts.whole import waive
from hexkv.ports import CorruptFrame, DType, ErrorBound
from plain_serde import HEAD, PlainSerde


class PlainContract(SerdeContract):
    Make = PlainSerde

    @pytest.fixture
    def serde(self):
        return self.Make()


class TestCorrect(PlainContract):
    pass


class TestCorrectAndLossy(PlainContract):
    """Bfloat16 without its lower byte, and no layers of its own."""

    class Make(PlainSerde):
        lossless = False
        per_layer = False

        def encode(self, chunk, layout, tokens, into):
            cut = bytearray(chunk)
            cut[::2] = bytes(len(cut) // 2)
            return super().encode(cut, layout, tokens, into)

    @pytest.fixture
    def dtypes(self):
        return {DType.BFLOAT16}

    @pytest.fixture
    def close(self):
        return lambda raw, back, layout: raw[1::2] == back[1::2]


class Cut(PlainSerde):
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


EXPONENTS = {DType.BFLOAT16: 0x7F80, DType.FLOAT16: 0x7C00, DType.FLOAT32: 0x7F800000}


class TestCorrectAndBounded(PlainContract):
    """It says how much is lost, so that nobody needs to say what is near."""

    Make = Cut


# One class per lie from here on. The docstring says what is wrong.


class TestHasNoBound(PlainContract):
    """A method of the port is missing."""

    class Make(PlainSerde):
        bound = None
        per_layer = "yes"


class TestHasALongName(PlainContract):
    """Frame headers have room for 32 characters."""

    class Make(PlainSerde):
        name = "plain, the shortest serde that keeps every promise"


class TestKnowsTwoByteElementsOnly(PlainContract):
    """The last byte of an odd number of bytes is lost."""

    class Make(PlainSerde):
        def deflate(self, layer):
            return super().deflate(bytes(layer[: len(layer) & ~1]) + bytes(len(layer) & 1))


class TestTakesAllLayersForTheFirst(PlainContract):
    """Every layer has as many bytes as the first one."""

    class Make(PlainSerde):
        def decode(self, payload, layout, tokens, into):
            parts = self.layer_parts(payload, len(payload), layout, tokens)
            size = layout.layer_span(0, tokens)[1]
            for layer, (start, end) in enumerate(parts):
                target = into[layer * size : (layer + 1) * size]
                self.decode_layer(payload[start:end], layer, layout, tokens, target)


class TestSaysLosslessAndIsNot(PlainContract):
    """Negative zeros become zeros, as they do in arithmetic."""

    class Make(PlainSerde):
        def encode(self, chunk, layout, tokens, into):
            cut = bytes(chunk).replace(b"\x00\x80\x00\x80", bytes(4))
            return super().encode(cut, layout, tokens, into)


class TestDividesByTheSpread(PlainContract):
    """A constant chunk has none."""

    class Make(PlainSerde):
        def encode(self, chunk, layout, tokens, into):
            assert 255 // (max(chunk) - min(chunk))
            return super().encode(chunk, layout, tokens, into)


class TestHopesThatKVShrinks(PlainContract):
    """The bound holds for KV, and not for noise."""

    class Make(PlainSerde):
        def bound(self, raw_bytes):
            return HEAD.size + raw_bytes - raw_bytes // 16


class TestForgetsItsTable(PlainContract):
    """The bound has room for a table of a few layers, not of many."""

    class Make(PlainSerde):
        def bound(self, raw_bytes):
            return HEAD.size + raw_bytes + 64


class TestWorksInTheTarget(PlainContract):
    """What was announced is used as room to work in."""

    class Make(PlainSerde):
        def encode(self, chunk, layout, tokens, into):
            into[self.bound(len(chunk)) - 1] = 7
            return super().encode(chunk, layout, tokens, into)


class TestLeavesZerosOut(PlainContract):
    """A layer of zeros is not written: new buffers hold zeros anyway."""

    class Make(PlainSerde):
        def decode_layer(self, part, layer, layout, tokens, into):
            found = bytearray(len(into))
            super().decode_layer(part, layer, layout, tokens, memoryview(found))
            if any(found):
                into[:] = found


class TestWantsToWriteOnTheChunk(PlainContract):
    """The input must be writable, because ctypes wants it so."""

    class Make(PlainSerde):
        def encode(self, chunk, layout, tokens, into):
            (ctypes.c_char * len(chunk)).from_buffer(chunk)
            return super().encode(chunk, layout, tokens, into)


class TestWantsEvenAddresses(PlainContract):
    """Words are read where words may not start."""

    class Make(PlainSerde):
        def decode(self, payload, layout, tokens, into):
            if ctypes.addressof(ctypes.c_char.from_buffer(into)) % 2:
                raise BufferError("unaligned")
            super().decode(payload, layout, tokens, into)


class TestKeepsTheCallersBuffer(PlainContract):
    """The last chunk is remembered, by reference."""

    class Make(PlainSerde):
        def encode(self, chunk, layout, tokens, into):
            self.last = chunk[:1]
            return super().encode(chunk, layout, tokens, into)


class TestWorksOnItsInput(PlainContract):
    """Where the chunk may be written it is transformed in place."""

    class Make(PlainSerde):
        def encode(self, chunk, layout, tokens, into):
            size = super().encode(chunk, layout, tokens, into)
            if not chunk.readonly:
                chunk[0] ^= 1
            return size


class TestRemembersWhatItEncoded(PlainContract):
    """The first layer's bytes are kept in the serde, not in the payload."""

    class Make(PlainSerde):
        def encode(self, chunk, layout, tokens, into):
            self.first = bytes(chunk[:8])
            return super().encode(chunk, layout, tokens, into)

        def decode(self, payload, layout, tokens, into):
            super().decode(payload, layout, tokens, into)
            into[:8] = self.first


class TestSharesItsWorkingMemory(PlainContract):
    """All threads work in one attribute."""

    class Make(PlainSerde):
        def deflate(self, layer):
            self.working = layer
            packed = zlib.compress(layer, 1)
            return packed if len(packed) < len(layer) else bytes(self.working)

        def encode(self, chunk, layout, tokens, into):
            self.parts = []
            for layer in range(layout.layers):
                first, last = layout.layer_span(layer, tokens)
                self.parts.append(self.deflate(chunk[first:last]))
            return self.assemble(self.parts, len(chunk), into)


class TestPadsWhatIsCut(PlainContract):
    """What is missing at the end counts as zeros."""

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

    class Make(PlainSerde):
        def decode(self, payload, layout, tokens, into):
            if len(payload) >= HEAD.size:
                payload = payload[: HEAD.unpack_from(payload)[1]]
            super().decode(payload, layout, tokens, into)


class TestFillsWhatThereIs(PlainContract):
    """A shorter chunk is good enough, and a longer one is cut."""

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

    class Make(PlainSerde):
        def inflate(self, part, size):
            layer = zlib.decompress(part)
            if len(layer) != size:
                raise CorruptFrame("another length")
            return layer


class TestStumblesOverNoise(PlainContract):
    """An unknown magic is an error, of another kind."""

    class Make(PlainSerde):
        def layer_parts(self, start, payload_bytes, layout, tokens):
            if len(start) > 4 and start[:4] != b"PLN1":
                raise ValueError("unknown magic")
            return super().layer_parts(start, payload_bytes, layout, tokens)


class TestBelievesClaims(PlainContract):
    """Room is made for what the payload says it has, up to a limit."""

    class Make(PlainSerde):
        def decode(self, payload, layout, tokens, into):
            if len(payload) >= HEAD.size:
                bytearray(min(HEAD.unpack_from(payload)[2], 4 << 20))
            super().decode(payload, layout, tokens, into)


class TestDeclaresLayersAndHasNone(PlainContract):
    """The methods for single layers are missing."""

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

    class Make(PlainSerde):
        def layer_parts(self, start, payload_bytes, layout, tokens):
            parts = super().layer_parts(start, payload_bytes, layout, tokens)
            whole = len(start) == payload_bytes > self.index_bytes(layout)
            return parts if whole else [*parts[1:], parts[0]]


class TestReadsAllForOneLayer(PlainContract):
    """Every layer's part is the whole payload."""

    class Make(PlainSerde):
        def layer_parts(self, start, payload_bytes, layout, tokens):
            super().layer_parts(start, payload_bytes, layout, tokens)
            return [(0, payload_bytes)] * layout.layers

        def decode_layer(self, part, layer, layout, tokens, into):
            first, last = PlainSerde.layer_parts(self, part, len(part), layout, tokens)[layer]
            super().decode_layer(part[first:last], layer, layout, tokens, into)


class TestTrustsParts(PlainContract):
    """A layer's part is not checked, because the whole payload was."""

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


class TestIsFurtherOffThanItSays(PlainContract):
    """Declared is the error of the format it was written for first."""

    class Make(Cut):
        cut = 16


class TestTouchesWhatIsNoNumber(PlainContract):
    """The payload of a NaN changes, and an infinity may become one."""

    class Make(Cut):
        def finite(self, element, exponent):
            return True


class TestDeclaresNothingByABound(PlainContract):
    """Zeros would keep it."""

    class Make(Cut):
        share = 1.0


class TestDropsAPromise(PlainContract):
    """A test is switched off without a word."""

    test_any_bytes_are_kv = None


class TestWaivesAPromise(PlainContract):
    """A test is switched off with a reason."""

    test_any_bytes_are_kv = waive("made for numbers only")
