import os
from struct import pack

import pytest
import zstandard

from hexkv.adapters.lossless.zstd import ZstdSerde
from hexkv.contracts.kit.cases import each
from hexkv.ports import CorruptFrame, DType, KVLayout, LayoutMismatch

SERDE = ZstdSerde()
BYTES = KVLayout.attention(DType.UINT8, layers=1, heads=1, key_width=500)
"""1,000 bytes a token, in one plane."""


def encode(raw, layout, tokens, serde=SERDE):
    room = bytearray(serde.bound(len(raw)))
    return bytes(room[: serde.encode(memoryview(raw), layout, tokens, memoryview(room))])


def decode(payload, layout, tokens):
    into = bytearray(layout.chunk_bytes(tokens))
    SERDE.decode(memoryview(payload), layout, tokens, memoryview(into))
    return bytes(into)


def around(frame):
    """A payload of one token of ``BYTES``, whose only plane is *frame*."""
    part = pack("<Q", len(frame)) + frame
    return pack("<8sQQQ", b"hexkvzp\x01", 1000, 32 + len(part), len(part)) + part


def test_a_chunk_of_many_blocks_comes_back_from_any_level():
    """zstd cuts planes into blocks of 128 KiB; two of these layers' planes have several."""
    layout = KVLayout.attention(DType.BFLOAT16, layers=2, heads=8, key_width=64)
    raw = bytearray(os.urandom(layout.chunk_bytes(256)))
    raw[1::2] = raw[1::2].translate(bytes([0x3C, 0x3D, 0xBC, 0xBD] * 64))
    for level in (0, 1, 12):
        payload = encode(raw, layout, 256, ZstdSerde(level))
        assert len(payload) < 0.7 * len(raw)
        assert decode(payload, layout, 256) == raw


def test_noise_grows_by_a_head_and_no_more():
    raw = os.urandom(1000)
    assert encode(raw, BYTES, 1)[24:] == raw


def test_one_token_shrinks_too():
    layout = KVLayout.attention(DType.BFLOAT16, layers=32, heads=8, key_width=128)
    raw = bytearray(os.urandom(layout.chunk_bytes(1)))
    raw[1::2] = raw[1::2].translate(bytes([0x3C, 0xBC] * 128))
    assert len(encode(raw, layout, 1)) < 0.65 * len(raw)


def test_payloads_of_any_level_are_of_one_kind():
    assert {ZstdSerde(level).name for level in (0, 5, 22)} == {"zstd-planes/1"}


def _frame(content, **parameters):
    return zstandard.ZstdCompressor(**parameters).compress(content)


def test_a_frame_around_which_a_payload_is_made_up_is_read():
    assert decode(around(_frame(bytes(1000))), BYTES, 1) == bytes(1000)


LIES = {
    "another content": _frame(bytes(1001)),
    "no content": _frame(b""),
    "a megabyte of zeros": _frame(bytes(1 << 20)),
    "no content size": _frame(bytes(1000), write_content_size=False),
    # Magic; a content size of 4 bytes; a window of 2 GiB; 1,000 bytes; in one block, all zeros.
    "a huge window": bytes.fromhex("28b52ffd 80 a8 e8030000 431f00 00"),
    # The same without a window, and with a block of none, or of 2,000 zeros.
    "less than it says": bytes.fromhex("28b52ffd a0 e8030000 010000"),
    "more than it says": bytes.fromhex("28b52ffd a0 e8030000 833e00 00"),
    "two frames": _frame(bytes(1000)) + _frame(bytes(1000)),
    "a skippable frame": bytes.fromhex("502a4d18 04000000 00000000"),
    "a frame behind a skippable one": bytes.fromhex("502a4d18 00000000") + _frame(bytes(1000)),
    "half a frame": _frame(bytes(1000))[:-2],
    "a checksum that is wrong": _frame(bytes(1000), write_checksum=True)[:-4] + bytes(4),
    "nothing": b"",
    "no frame at all": b"nothing of the kind",
}


@each("lie", LIES)
def test_a_frame_that_lies_is_corrupt(lie):
    with pytest.raises(CorruptFrame):
        decode(around(LIES[lie]), BYTES, 1)


def test_a_plane_that_grew_is_corrupt():
    """The encoder would have left it as it was, so somebody else wrote this."""
    layout = KVLayout.attention(DType.BFLOAT16, layers=1, heads=1, key_width=250)
    grown, zeros = _frame(os.urandom(500)), _frame(bytes(500))
    part = pack("<QQ", len(grown), len(zeros)) + grown + zeros
    payload = pack("<8sQQQ", b"hexkvzp\x01", 1000, 32 + len(part), len(part)) + part
    with pytest.raises(CorruptFrame, match="a plane that grew"):
        decode(payload, layout, 1)


def test_a_payload_that_ends_within_its_index_is_corrupt():
    with pytest.raises(CorruptFrame, match="ends within its index"):
        decode(pack("<8sQQ", b"hexkvzp\x01", 1000, 28) + bytes(4), BYTES, 1)


def test_another_version_is_not_guessed_at():
    payload = encode(bytes(1000), BYTES, 1)
    with pytest.raises(CorruptFrame, match="not a zstd-planes/1 payload"):
        decode(payload[:7] + b"\x02" + payload[8:], BYTES, 1)


def test_a_buffer_that_does_not_fit_the_layout_is_refused():
    room = memoryview(bytearray(2000))
    with pytest.raises(LayoutMismatch):
        SERDE.encode(memoryview(bytes(999)), BYTES, 1, room)
    payload = memoryview(encode(bytes(1000), BYTES, 1))
    with pytest.raises(LayoutMismatch):
        SERDE.decode(payload, BYTES, 1, room)
    with pytest.raises(LayoutMismatch):
        SERDE.decode_layer(payload, 0, BYTES, 1, room)
