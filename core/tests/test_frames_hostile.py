"""Pages that somebody wrote to deceive, under a right checksum or none: refused with a reason."""

from __future__ import annotations

import zlib
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hexkv.contracts.kit.cases import each
from hexkv.core.frames.codec import CRC32, FrameCodec
from hexkv.ports import IDENTITY_BYTES, KEY_BYTES, PAGE, CorruptFrame, FrameHeader, frame_bytes

CODEC = FrameCodec(CRC32)
HEADER = FrameHeader(
    key=bytes(range(KEY_BYTES)),
    identity='{"model":"m"}',
    tokens=3,
    serde="raw",
    raw_bytes=10,
    payload_bytes=10,
    created=12.5,
    parts=(10,),
    checksum="crc32",
)


def seal(header=HEADER):
    """A frame of zeros, in memory that held something else before."""
    frame = bytearray(b"\xaa" * frame_bytes(header.payload_bytes))
    frame[PAGE : PAGE + header.payload_bytes] = bytes(header.payload_bytes)
    CODEC.seal(memoryview(frame), header)
    return frame


def refuses(frame, said=None):
    with pytest.raises(CorruptFrame, match=said):
        CODEC.open(memoryview(frame))
    return True


def sign(page):
    """Make a header page's own checksum right, whatever it says."""
    page[160:176] = bytes(16)
    page[160:164] = zlib.crc32(page[:PAGE]).to_bytes(4, "little")
    return page


@each(
    ("at", "value", "said"),
    [
        (0, b"HEXKV", "magic"),
        (8, b"\x01", "version 1"),
        (8, b"\x03", "version 3"),
        (8, b"\x00", "version 0"),
        (128, b"\0" * 16, "algorithm is not known"),
    ],
)
def test_what_is_no_frame_of_this_version_is_refused_with_the_reason(at, value, said):
    frame = seal()
    frame[at : at + len(value)] = value
    assert refuses(sign(frame), said)


@each(
    ("at", "value", "said"),
    [
        (12, (IDENTITY_BYTES + 1).to_bytes(4, "little"), "none belong"),
        (12, b"\xff\xff\xff\xff", "none belong"),
        (12, b"\x01\0\0\0", "none belong"),
        (12, b"\0\0\0\0", "none belong"),
        (12, b"\xff\0\0\0", "identity is not printable"),
        (32, b"\xff" * 8, "do not make up"),
        (32, bytes(8), "do not make up"),
        (40, b"\0\0\0\0\0\0\xf8\x7f", "creation is nan"),
        (40, b"\0\0\0\0\0\0\xf0\x7f", "creation is inf"),
        (40, b"\0\0\0\0\0\0\xf0\xbf", "creation is -1"),
        (96, b"\0", "serde is not printable"),
        (96, b"r\0w", "serde is not printable"),
        (96, b"\x1b[2J", "serde is not printable"),
        (96, b"\xff", "serde is not printable"),
        (96, bytes(32), "serde is not printable"),
        (176, b"\x00", "has 0 parts"),
        (176, b"\x02", "do not make up"),
        (176, b"\x81", "has 129 parts"),
        (176, b"\xff\xff\xff\xff", "parts"),
        (188, b"\x01", "none belong"),
        (255, b"\x01", "none belong"),
        (256, b"\x09", "do not make up a payload of 10 bytes"),
        (256, b"\x0b", "do not make up"),
        (256, bytes(6), "do not make up"),
        (262, b"\x01", "none belong"),
        (1023, b"\x01", "none belong"),
        (1024, b"\x00" * 8, "part 0 differs"),
        (1032, b"\x01", "none belong"),
        (2047, b"\x01", "none belong"),
        (2048, b"\xff", "identity is not printable"),
        (PAGE - 1, b"\x01", "none belong"),
    ],
)
def test_a_header_that_is_wrong_under_a_right_checksum_is_refused(at, value, said):
    frame = seal()
    frame[at : at + len(value)] = value
    assert refuses(sign(frame), said)


@given(st.integers(0, 2**32), st.sampled_from([0, 8, 12, 176, 180, 256, 1024, 2048]), st.booleans())
def test_hostile_pages_are_corrupt_frames_and_nothing_worse(seed, kept, signed):
    frame = seal()
    frame[kept:PAGE] = Random(seed).randbytes(PAGE - kept)
    frame[128:144] = b"crc32".ljust(16, b"\0")
    assert refuses(sign(frame) if signed else frame)
    with pytest.raises(CorruptFrame):
        CODEC.peek(memoryview(frame))


HOSTILE = st.one_of(st.integers(8, 127), st.integers(176, 275), st.integers(1024, 1040))


@given(st.lists(st.tuples(HOSTILE, st.integers(0, 255)), max_size=6))
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
