from __future__ import annotations

import json
import zlib
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hexkv.core.frames import CRC32, IDENTITY_BYTES, FrameCodec
from hexkv.ports import (
    KEY_BYTES,
    MAGIC,
    PAGE,
    Checksum,
    ConfigError,
    CorruptFrame,
    FrameHeader,
    frame_bytes,
)

GOLDEN = json.loads(Path(__file__).with_name("golden_frame.json").read_text(encoding="utf-8"))
CODEC = FrameCodec(CRC32)
ADLER = Checksum("adler32", lambda data: zlib.adler32(data).to_bytes(4, "big"))

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
    checksum="crc32",
)

U64 = st.integers(0, 2**64 - 1)
PRINTABLE = st.characters(min_codepoint=0x20, max_codepoint=0x7E)
HEADERS = st.builds(
    FrameHeader,
    key=st.binary(min_size=KEY_BYTES, max_size=KEY_BYTES),
    identity=st.text(PRINTABLE, min_size=1, max_size=IDENTITY_BYTES),
    tokens=U64,
    serde=st.text(PRINTABLE, min_size=1, max_size=32),
    raw_bytes=U64,
    payload_bytes=st.integers(0, 3 * PAGE),
    created=st.floats(0, allow_infinity=False, allow_nan=False),
    checksum=st.just("crc32"),
)


def seal(header=HEADER, payload=None, codec=CODEC):
    """A frame as a store would get it, in memory that held something else before."""
    frame = bytearray(b"\xaa" * frame_bytes(header.payload_bytes))
    payload = bytes(header.payload_bytes) if payload is None else payload
    frame[PAGE : PAGE + len(payload)] = payload
    codec.seal(memoryview(frame), header)
    return frame


def sign(page):
    """Make a header page's own checksum right, whatever it says."""
    page[160:176] = bytes(16)
    page[160:164] = zlib.crc32(page[:PAGE]).to_bytes(4, "little")
    return page


def refuses(frame, said=None, key=None):
    with pytest.raises(CorruptFrame, match=said):
        CODEC.open(memoryview(frame), key)
    return True


def test_the_byte_layout_is_the_committed_one():
    expected = dict(GOLDEN["header"])
    header = FrameHeader(**{**expected, "key": bytes.fromhex(expected["key"])})
    payload = bytes(range(256)) * GOLDEN["payload"]["repeat bytes 0 to 255"]
    frame = seal(header, payload + GOLDEN["payload"]["then"].encode())
    fields = bytes.fromhex(GOLDEN["fields"])
    assert len(fields) == 176
    assert frame[:176] == fields
    assert not any(frame[176:1024])
    assert frame[1024:PAGE] == header.identity.encode().ljust(IDENTITY_BYTES, b"\0")
    assert CODEC.open(memoryview(frame), header.key) == header


@given(HEADERS, st.integers(0, 2**32))
def test_a_frame_opens_to_what_was_sealed(header, seed):
    payload = Random(seed).randbytes(header.payload_bytes)
    frame = memoryview(seal(header, payload))
    assert CODEC.open(frame, header.key) == CODEC.open(frame) == header
    assert CODEC.peek(frame[:PAGE]) == CODEC.peek(frame) == header
    assert frame[PAGE : PAGE + header.payload_bytes] == payload
    assert not any(frame[PAGE + header.payload_bytes :])


@pytest.mark.parametrize(
    "field",
    [
        {"tokens": 0, "raw_bytes": 0},
        {"tokens": 2**64 - 1, "raw_bytes": 2**64 - 1},
        {"payload_bytes": 0},
        {"payload_bytes": 1},
        {"payload_bytes": PAGE},
        {"identity": "i" * IDENTITY_BYTES},
        {"serde": "s" * 32},
        {"created": 0.0},
        {"created": 1.7976931348623157e308},
    ],
)
def test_fields_at_their_limits_come_back(field):
    header = replace(HEADER, **field)
    assert CODEC.open(memoryview(seal(header))) == header


@pytest.mark.parametrize(
    "field",
    [
        {"tokens": -1},
        {"tokens": 2**64},
        {"raw_bytes": 2**64},
        {"payload_bytes": -1},
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
        {"version": 2},
    ],
)
def test_a_header_without_room_for_it_is_not_sealed_and_nothing_is_written(field):
    frame = bytearray(b"\xaa" * 2 * PAGE)
    with pytest.raises(ValueError, match=r"\w"):
        CODEC.seal(memoryview(frame), replace(HEADER, **field))
    assert frame == b"\xaa" * 2 * PAGE


@pytest.mark.parametrize("length", [PAGE, 2 * PAGE - 1, 2 * PAGE + 1, 3 * PAGE])
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


@given(st.integers(1, 2 * PAGE), st.data())
def test_any_flipped_bit_of_payload_or_padding_is_refused(payload_bytes, data):
    frame = seal(replace(HEADER, payload_bytes=payload_bytes), b"\x5a" * payload_bytes)
    bit = data.draw(st.integers(PAGE * 8, len(frame) * 8 - 1))
    frame[bit // 8] ^= 1 << bit % 8
    assert refuses(frame, "payload is damaged")
    assert CODEC.peek(memoryview(frame)).payload_bytes == payload_bytes


def test_every_truncation_is_refused():
    frame = seal()
    for length in range(len(frame)):
        assert refuses(frame[:length])


@given(st.binary(min_size=1, max_size=2 * PAGE))
def test_any_extension_is_refused(more):
    assert refuses(seal() + more, "has .* bytes, not 8192")


def test_swapped_payloads_and_headers_are_refused():
    one = seal(payload=b"0123456789")
    other = seal(replace(HEADER, key=OTHER_KEY), payload=b"9876543210")
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
    assert FrameCodec(ADLER).open(memoryview(frame)) == replace(header, checksum="adler32")


@pytest.mark.parametrize("size", [1, 16])
def test_a_checksum_may_have_up_to_sixteen_bytes(size):
    codec = FrameCodec(Checksum("c" * size, lambda data: bytes([len(data) % 251]) * size))
    assert codec.open(memoryview(seal(codec=codec))).checksum == "c" * size


@pytest.mark.parametrize("size", [0, 17])
def test_a_checksum_that_does_not_fit_a_header_is_refused(size):
    with pytest.raises(ConfigError):
        FrameCodec(Checksum("c" * size, lambda data: b"1234"))
    with pytest.raises(ConfigError):
        FrameCodec(CRC32, known=[Checksum("c", lambda data: bytes(size))])


def test_sealed_frames_are_told_from_bare_ones():
    frame = memoryview(seal())
    assert FrameCodec.is_sealed(frame)
    assert not CODEC.is_sealed(memoryview(bytes(PAGE)))
    assert not CODEC.is_sealed(memoryview(b""))
    assert not CODEC.is_sealed(frame[: len(MAGIC) - 1])


@pytest.mark.parametrize(
    ("at", "value", "said"),
    [
        (0, b"HEXKV", "magic"),
        (8, b"\x02", "version 2"),
        (8, b"\x00", "version 0"),
        (128, b"\0" * 16, "algorithm is not known"),
    ],
)
def test_what_is_no_frame_of_this_version_is_refused_with_the_reason(at, value, said):
    frame = seal()
    frame[at : at + len(value)] = value
    assert refuses(sign(frame), said)


@pytest.mark.parametrize(
    ("at", "value", "said"),
    [
        (12, (IDENTITY_BYTES + 1).to_bytes(4, "little"), "none belong"),
        (12, b"\xff\xff\xff\xff", "none belong"),
        (12, b"\x01\0\0\0", "none belong"),
        (12, b"\0\0\0\0", "none belong"),
        (12, b"\xff\0\0\0", "identity is not printable"),
        (32, b"\xff" * 8, "bytes, not"),
        (32, bytes(8), "bytes, not"),
        (40, b"\0\0\0\0\0\0\xf8\x7f", "creation is nan"),
        (40, b"\0\0\0\0\0\0\xf0\x7f", "creation is inf"),
        (40, b"\0\0\0\0\0\0\xf0\xbf", "creation is -1"),
        (96, b"\0", "serde is not printable"),
        (96, b"r\0w", "serde is not printable"),
        (96, b"\x1b[2J", "serde is not printable"),
        (96, b"\xff", "serde is not printable"),
        (96, bytes(32), "serde is not printable"),
        (176, b"\x01", "none belong"),
        (1023, b"\x01", "none belong"),
        (1024, b"\xff", "identity is not printable"),
        (PAGE - 1, b"\x01", "none belong"),
    ],
)
def test_a_header_that_is_wrong_under_a_right_checksum_is_refused(at, value, said):
    frame = seal()
    frame[at : at + len(value)] = value
    assert refuses(sign(frame), said)


@given(st.integers(0, 2**32), st.sampled_from([0, 8, 12, 176, 1024]), st.booleans())
def test_hostile_pages_are_corrupt_frames_and_nothing_worse(seed, kept, signed):
    frame = seal()
    frame[kept:PAGE] = Random(seed).randbytes(PAGE - kept)
    frame[128:144] = b"crc32".ljust(16, b"\0")
    assert refuses(sign(frame) if signed else frame)
    with pytest.raises(CorruptFrame):
        CODEC.peek(memoryview(frame))


@given(st.lists(st.tuples(st.integers(8, 127), st.integers(0, 255)), max_size=6))
def test_hostile_fields_under_a_right_checksum_give_a_header_or_corrupt_frame(changes):
    frame = seal()
    for at, value in changes:
        frame[at] = value
    try:
        header = CODEC.open(memoryview(sign(frame)))
    except CorruptFrame:
        return
    assert seal(header)[:PAGE] == frame[:PAGE], "what opens can be sealed again, to the same"


@given(st.binary(max_size=64))
def test_short_rubbish_is_refused(rubbish):
    assert refuses(rubbish)
    with pytest.raises(CorruptFrame):
        CODEC.peek(memoryview(rubbish))
