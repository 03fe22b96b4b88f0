from __future__ import annotations

import json
import zlib
from pathlib import Path
from random import Random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hexkv.contracts.kit.cases import each
from hexkv.core.frames.codec import (
    CRC32,
    PARTS,
    FrameCodec,
    layer_parts,
    layers_per_part,
)
from hexkv.core.frames.opening import Opening, opened, part_span
from hexkv.ports import (
    IDENTITY_BYTES,
    KEY_AT,
    KEY_BYTES,
    MAGIC,
    PAGE,
    PIECE,
    ConfigError,
    CorruptFrame,
    DType,
    FrameHeader,
    HashFunction,
    KVLayout,
    Reason,
    frame_bytes,
    names_key,
)

GOLDEN = json.loads(Path(__file__).with_name("golden_frame.json").read_text(encoding="utf-8"))
CODEC = FrameCodec(CRC32)
ADLER = HashFunction("adler32", lambda data: zlib.adler32(data).to_bytes(4, "big"))

KEY = bytes(range(KEY_BYTES))
OTHER_KEY = bytes(reversed(KEY))
HEADER = FrameHeader(
    key=KEY,
    identity='{"model":"m"}',
    tokens=3,
    serde="raw",
    raw_bytes=10,
    payload_bytes=10,
    created=12.5,
    parts=(10,),
    checksum="crc32",
)
THIRDS = HEADER._replace(raw_bytes=9_000, payload_bytes=9_000, parts=(3_000, 6_000, 9_000))

U64 = st.integers(0, 2**64 - 1)
PRINTABLE = st.characters(min_codepoint=0x20, max_codepoint=0x7E)


@st.composite
def headers(draw):
    payload_bytes = draw(st.integers(0, 3 * PAGE))
    ends = draw(st.sets(st.integers(1, max(1, payload_bytes)), max_size=PARTS - 1))
    return FrameHeader(
        key=draw(st.binary(min_size=KEY_BYTES, max_size=KEY_BYTES)),
        identity=draw(st.text(PRINTABLE, min_size=1, max_size=IDENTITY_BYTES)),
        tokens=draw(U64),
        serde=draw(st.text(PRINTABLE, min_size=1, max_size=32)),
        raw_bytes=draw(U64),
        payload_bytes=payload_bytes,
        created=draw(st.floats(0, allow_infinity=False, allow_nan=False)),
        position=draw(st.none() | st.integers(0, 2**64 - 2)),
        parts=tuple(sorted(ends | {payload_bytes})) if payload_bytes else (0,),
        checksum="crc32",
    )


def seal(header=HEADER, payload=None, codec=CODEC):
    """A frame as a store would get it, in memory that held something else before."""
    frame = bytearray(b"\xaa" * frame_bytes(header.payload_bytes))
    payload = bytes(header.payload_bytes) if payload is None else payload
    frame[PAGE : PAGE + len(payload)] = payload
    codec.seal(memoryview(frame), header)
    return frame


def refuses(frame, said=None, key=None):
    with pytest.raises(CorruptFrame, match=said):
        CODEC.open(memoryview(frame), key)
    return True


def test_the_byte_layout_is_the_committed_one():
    said = GOLDEN["header"]
    header = FrameHeader(
        **{**said, "key": bytes.fromhex(said["key"]), "parts": tuple(said["parts"])}
    )
    payload = bytes(range(256)) * GOLDEN["payload"]["repeat bytes 0 to 255"]
    frame = seal(header, payload + GOLDEN["payload"]["then"].encode())
    for at, width, field in ((0, 256, "fields"), (256, 768, "ends"), (1024, 1024, "digests")):
        assert frame[at : at + width] == bytes.fromhex(GOLDEN[field]).ljust(width, b"\0"), field
    assert frame[2048:PAGE] == header.identity.encode().ljust(IDENTITY_BYTES, b"\0")
    assert CODEC.open(memoryview(frame), header.key) == header
    assert names_key(memoryview(frame), header.key)
    assert not names_key(memoryview(frame), OTHER_KEY)
    assert not names_key(memoryview(frame)[KEY_AT:], header.key)


@given(headers(), st.integers(0, 2**32))
def test_a_frame_opens_to_what_was_sealed(header, seed):
    payload = Random(seed).randbytes(header.payload_bytes)
    frame = memoryview(seal(header, payload))
    assert CODEC.open(frame, header.key) == CODEC.open(frame) == header
    assert CODEC.peek(frame[:PAGE]) == CODEC.peek(frame) == header
    assert frame[PAGE : PAGE + header.payload_bytes] == payload
    assert not any(frame[PAGE + header.payload_bytes :])


@each(
    "field",
    [
        {"tokens": 0, "raw_bytes": 0},
        {"tokens": 2**64 - 1, "raw_bytes": 2**64 - 1},
        {"position": 2**64 - 2},
        {"position": None},
        {"payload_bytes": 0, "parts": (0,)},
        {"payload_bytes": 1, "parts": (1,)},
        {"payload_bytes": PAGE, "parts": (PAGE,)},
        {"parts": tuple(range(1, 11))},
        {"payload_bytes": PARTS, "parts": tuple(range(1, PARTS + 1))},
        {"identity": "i" * IDENTITY_BYTES},
        {"serde": "s" * 32},
        {"created": 0.0},
        {"created": 1.7976931348623157e308},
    ],
)
def test_fields_at_their_limits_come_back(field):
    header = HEADER._replace(**field)
    assert CODEC.open(memoryview(seal(header))) == header


@each(
    "field",
    [
        {"tokens": -1},
        {"position": -1},
        {"position": 2**64 - 1},
        {"position": 2**64},
        {"tokens": 2**64},
        {"raw_bytes": 2**64},
        {"payload_bytes": -1},
        {"payload_bytes": -1, "parts": ()},
        {"payload_bytes": 2**48, "parts": ()},
        {"payload_bytes": PARTS + 1, "parts": tuple(range(1, PARTS + 2))},
        {"parts": (5,)},
        {"parts": (11,)},
        {"parts": (0, 10)},
        {"parts": (5, 5, 10)},
        {"parts": (7, 5, 10)},
        {"parts": (5, 10, 10)},
        {"identity": "i" * (IDENTITY_BYTES + 1)},
        {"identity": ""},
        {"identity": "é"},
        {"serde": "s" * 33},
        {"serde": ""},
        {"serde": "a\0b"},
        {"key": KEY[1:]},
        {"key": KEY + b"\0"},
        {"created": -1.0},
        {"created": float("nan")},
        {"created": float("inf")},
        {"version": 1},
        {"version": 3},
    ],
)
def test_a_header_without_room_for_it_is_not_sealed_and_nothing_is_written(field):
    frame = bytearray(b"\xaa" * 2 * PAGE)
    with pytest.raises(ValueError, match=r"\w"):
        CODEC.seal(memoryview(frame), HEADER._replace(**field))
    assert frame == b"\xaa" * 2 * PAGE


@each("length", [PAGE, 2 * PAGE - 1, 2 * PAGE + 1, 3 * PAGE])
def test_a_buffer_of_another_length_is_not_sealed(length):
    with pytest.raises(ValueError, match="10"):
        CODEC.seal(memoryview(bytearray(length)), HEADER)


def test_every_flipped_bit_of_the_header_is_refused():
    frame = seal()
    for bit in range(PAGE * 8):
        frame[bit // 8] ^= 1 << bit % 8
        assert refuses(frame)
        with pytest.raises(CorruptFrame):
            CODEC.peek(memoryview(frame))
        frame[bit // 8] ^= 1 << bit % 8
    assert CODEC.open(memoryview(frame)) == HEADER


def broken_parts(frame):
    """Which parts of a frame are refused when they are verified one by one."""
    header = CODEC.peek(memoryview(frame))
    broken = []
    for index in range(len(header.parts)):
        data = memoryview(frame)[slice(*part_span(header.parts, index))]
        try:
            CODEC.check_part(memoryview(frame), index, data)
        except CorruptFrame:
            broken.append(index)
    return broken


@given(headers(), st.data())
def test_any_flipped_bit_of_payload_or_padding_is_refused_and_so_is_its_part_alone(header, data):
    frame = seal(header, b"\x5a" * header.payload_bytes)
    assert broken_parts(frame) == []
    if not header.payload_bytes:
        return
    at = data.draw(st.integers(PAGE, len(frame) - 1))
    frame[at] ^= 1 << data.draw(st.integers(0, 7))
    assert refuses(frame, "payload is damaged")
    spans = [part_span(header.parts, index) for index in range(len(header.parts))]
    assert broken_parts(frame) == [i for i, (start, end) in enumerate(spans) if start <= at < end]


@given(headers())
def test_the_parts_make_up_the_payload_and_its_padding(header):
    spans = [part_span(header.parts, index) for index in range(len(header.parts))]
    assert [start for start, _ in spans] == [PAGE, *(end for _, end in spans[:-1])]
    assert spans[-1][1] == frame_bytes(header.payload_bytes)


PARTED = HEADER._replace(
    raw_bytes=4 * PIECE,
    payload_bytes=4 * PIECE,
    parts=(20_000, PIECE, 2 * PIECE + 7, 4 * PIECE),
)

SMALL = HEADER._replace(raw_bytes=40_000, payload_bytes=40_000, parts=(40_000,))
SENT = {
    header: bytes(seal(header, Random(0).randbytes(header.payload_bytes)))
    for header in (PARTED, SMALL)
}


@given(
    header=st.sampled_from([PARTED, SMALL]),
    told=st.lists(st.integers(0, frame_bytes(4 * PIECE)), max_size=6),
    early=st.booleans(),
    stale=st.booleans(),
    flip=st.none() | st.integers(0, frame_bytes(4 * PIECE) - 1),
)
@example(header=SMALL, told=[1, 32_769], early=True, stale=True, flip=1)
@example(header=SMALL, told=[1, 42_000], early=True, stale=True, flip=42_500)
def test_a_frame_verified_while_it_comes_is_opened_as_one_that_has_come(
    header, told, early, stale, flip
):
    """Told of bytes that are not there yet, or finding an older copy of them, it is not misled."""
    sent = bytearray(SENT[header])
    buffer = memoryview(bytearray(sent) if stale else bytearray(len(sent)))
    if flip is not None:
        sent[flip % len(sent)] ^= 1
    opening = Opening(CODEC, buffer)
    opening.mark()
    done = 0
    for upto in (*sorted(upto for upto in told if upto < len(sent)), len(sent)):
        if early:
            opening.filled(upto)
        buffer[done:upto] = sent[done:upto]
        opening.filled(upto)
        done = upto
    if flip is None:
        assert opening.end(KEY) == CODEC.open(memoryview(sent)) == header
    else:
        assert opened(opening, KEY) is Reason.CORRUPT


def test_a_part_in_the_place_of_another_is_refused():
    frame = seal(THIRDS, b"a" * 3_000 + b"b" * 3_000 + b"c" * 3_000)
    assert broken_parts(frame) == []
    first, second = (slice(*part_span(THIRDS.parts, index)) for index in (0, 1))
    frame[first], frame[second] = frame[second], frame[first]
    assert broken_parts(frame) == [0, 1]
    assert refuses(frame, "part 0 differs")


def test_a_part_that_is_cut_short_is_refused():
    frame = memoryview(seal(THIRDS, b"a" * 9_000))
    start, end = part_span(THIRDS.parts, 2)
    for data in (frame[start : end - 1], frame[start:start], frame[start + 1 : end]):
        with pytest.raises(CorruptFrame):
            CODEC.check_part(frame, 2, data)


def test_parts_whose_short_digests_agree_are_still_told_apart_as_a_whole():
    """A part alone is known by 8 bytes of its digest, the payload by all 16 of each."""
    weak = HashFunction("weak", lambda data: bytes(8) + zlib.crc32(data).to_bytes(4, "little"))
    codec = FrameCodec(weak)
    frame = seal(THIRDS._replace(checksum="weak"), b"a" * 9_000, codec)
    frame[PAGE] ^= 1
    codec.check_part(memoryview(frame), 0, memoryview(frame)[PAGE : PAGE + 3_000])
    with pytest.raises(CorruptFrame, match="its checksum differs"):
        codec.open(memoryview(frame))


def test_a_frame_without_parts_has_one():
    header = CODEC.open(memoryview(seal(HEADER._replace(parts=()))))
    assert header.parts == (10,)


@given(st.integers(1, 3 * PARTS), st.integers(1, 64))
def test_the_parts_of_a_chunk_are_its_layers_or_runs_of_them(layers, tokens):
    layout = KVLayout.attention(DType.FLOAT16, layers=layers, heads=1, key_width=3, value_width=1)
    ends, step = layer_parts(layout, tokens), layers_per_part(layout)
    assert len(ends) <= PARTS
    assert step == 1 or layers > PARTS
    for index, end in enumerate(ends):
        first, last = index * step, min(layers, (index + 1) * step) - 1
        assert (ends[index - 1] if index else 0) == layout.layer_span(first, tokens)[0]
        assert end == layout.layer_span(last, tokens)[1]
    assert ends[-1] == layout.chunk_bytes(tokens)


def test_every_truncation_is_refused():
    frame = seal()
    for length in range(len(frame)):
        assert refuses(frame[:length])


@given(st.binary(min_size=1, max_size=2 * PAGE))
def test_any_extension_is_refused(more):
    assert refuses(seal() + more, "has .* bytes, not 8192")


def test_swapped_payloads_and_headers_are_refused():
    one = seal(payload=b"0123456789")
    other = seal(HEADER._replace(key=OTHER_KEY), payload=b"9876543210")
    assert refuses(one[:PAGE] + other[PAGE:], "payload is damaged")
    assert refuses(other[:PAGE] + one[PAGE:], "payload is damaged")


def test_a_whole_frame_under_another_key_is_refused():
    frame = seal()
    assert refuses(frame, f"of chunk {KEY.hex()}, not {OTHER_KEY.hex()}", OTHER_KEY)
    assert refuses(frame, "is of chunk", KEY[:-1])


def test_a_frame_of_a_known_algorithm_opens_and_one_of_a_strange_is_refused():
    frame = memoryview(seal(codec=FrameCodec(ADLER)))
    assert FrameCodec(CRC32, known=[ADLER]).open(frame).checksum == "adler32"
    assert refuses(frame, "algorithm is not known.*adler32")


def test_sealing_again_with_another_algorithm_makes_that_the_frame_s():
    frame = seal(HEADER, b"0123456789")
    header = CODEC.open(memoryview(frame))
    FrameCodec(ADLER).seal(memoryview(frame), header)
    assert FrameCodec(ADLER).open(memoryview(frame)) == header._replace(checksum="adler32")


@each("size", [1, 16])
def test_a_checksum_may_have_up_to_sixteen_bytes(size):
    codec = FrameCodec(HashFunction("c" * size, lambda data: bytes([len(data) % 251]) * size))
    assert codec.open(memoryview(seal(codec=codec))).checksum == "c" * size


@each("size", [0, 17])
def test_a_checksum_that_does_not_fit_a_header_is_refused(size):
    with pytest.raises(ConfigError):
        FrameCodec(HashFunction("c" * size, lambda data: b"1234"))
    with pytest.raises(ConfigError):
        FrameCodec(CRC32, known=[HashFunction("c", lambda data: bytes(size))])


def test_sealed_frames_are_told_from_bare_ones():
    frame = memoryview(seal())
    assert FrameCodec.is_sealed(frame)
    assert not CODEC.is_sealed(memoryview(bytes(PAGE)))
    assert not CODEC.is_sealed(memoryview(b""))
    assert not CODEC.is_sealed(frame[: len(MAGIC) - 1])
