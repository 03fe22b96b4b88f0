"""A codec that has just read a frame's neighbour says of it what one that has read nothing says."""

import math
from struct import pack

from hypothesis import given
from hypothesis import strategies as st

from hexkv.core.frames.codec import CRC32, FrameCodec
from hexkv.core.frames.opening import OWN_CHECKSUM
from hexkv.ports import KEY_BYTES, PAGE, CorruptFrame, FrameHeader, frame_bytes

HEADER = FrameHeader(
    key=bytes(KEY_BYTES),
    identity='{"model":"m"}',
    tokens=3,
    serde="raw",
    raw_bytes=9_000,
    payload_bytes=9_000,
    created=12.5,
    position=0,
    parts=(3_000, 6_000, 9_000),
    checksum="crc32",
)

OWN = st.fixed_dictionaries(
    {
        "key": st.binary(min_size=KEY_BYTES, max_size=KEY_BYTES),
        "created": st.floats(0, allow_infinity=False, allow_nan=False),
        "position": st.none() | st.integers(0, 2**64 - 2),
    }
)
OTHER = st.sampled_from(
    [
        {},
        {"tokens": 4},
        {"parts": (9_000,)},
        {"parts": (3_000, 6_001, 9_000)},
        {"identity": '{"model":"n"}'},
        {"serde": "zstd", "payload_bytes": 8_000, "parts": (8_000,)},
    ]
)


def sealed(header: FrameHeader, byte: int) -> bytearray:
    frame = bytearray([byte]) * frame_bytes(header.payload_bytes)
    FrameCodec(CRC32).seal(memoryview(frame), header)
    return frame


def said(codec: FrameCodec, frame: bytearray) -> FrameHeader | str:
    """What a codec says of a frame, or why it is none."""
    try:
        return codec.open(memoryview(frame))
    except CorruptFrame as error:
        return str(error)


def after(frame: bytearray) -> FrameCodec:
    """A codec that has read this one."""
    codec = FrameCodec(CRC32)
    codec.open(memoryview(frame))
    return codec


@given(OWN, OTHER, st.integers(0, 255))
def test_a_neighbour_is_read_as_it_was_sealed(own, other, byte):
    header = HEADER._replace(**own, **other)
    frame = sealed(header, byte)
    assert after(sealed(HEADER, 7)).open(memoryview(frame), header.key) == header


@given(OWN, st.integers(0, frame_bytes(9_000) - 1), st.integers(1, 255))
def test_any_changed_byte_of_a_neighbour_is_found(own, at, change):
    frame = sealed(HEADER._replace(**own), 8)
    frame[at] ^= change
    found = said(after(sealed(HEADER, 7)), frame)
    assert isinstance(found, str)
    assert found == said(FrameCodec(CRC32), frame)


@given(st.sampled_from([math.nan, math.inf, -1.0]))
def test_a_neighbour_that_its_writer_made_wrong_is_refused(created):
    frame = sealed(HEADER, 7)
    codec = after(frame)
    frame[40:48] = pack("<d", created)
    frame[OWN_CHECKSUM] = bytes(16)
    frame[OWN_CHECKSUM] = CRC32.digest(memoryview(frame)[:PAGE]).ljust(16, b"\0")
    assert said(codec, frame) == f"the header's moment of creation is {created}"
