"""What the format is, what is left as it was, and what hostile payloads get."""

import hashlib
from struct import unpack_from

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hexkv.adapters.cachegen.cachegen import LEVELS, CacheGen
from hexkv.adapters.cachegen.lowbit import Float8, Int4, Int8
from hexkv.adapters.cachegen.serde import LossySerde
from hexkv.contracts.kit.cases import each
from hexkv.kernels.coding import compiled, compiled_lowbit, lowbit, plain
from hexkv.kernels.coding.choosing import Choice, LowBitChoice
from hexkv.kernels.coding.floats import narrowed
from hexkv.ports import CorruptFrame, DType, KVLayout, LayerGroup, LayoutMismatch, Plane

LAYOUT = KVLayout.attention(DType.BFLOAT16, layers=3, heads=2, key_width=64)


def cachegen(level="default", coder=compiled):
    choice = Choice(lambda: coder)
    choice.wait(60)
    return LossySerde(CacheGen(LEVELS[level], choice))


def numbers(codec, coder=compiled_lowbit):
    choice = LowBitChoice(lambda: coder)
    choice.wait(60)
    return LossySerde(codec(choice))


NUMBERS = {"int8": Int8, "int4": Int4, "fp8": Float8}
SERDES = {
    **{f"cachegen {level}": cachegen(level) for level in LEVELS},
    **{name: numbers(codec) for name, codec in NUMBERS.items()},
}
BY_NUMPY = {
    **{f"cachegen {level}": cachegen(level, plain) for level in LEVELS},
    **{name: numbers(codec, lowbit) for name, codec in NUMBERS.items()},
}


def gaussian(layout, tokens, seed=0):
    """KV as it might be: channels of different widths and means."""
    random = np.random.default_rng(seed)
    planes = []
    for plane in (plane for planes in layout.planes for plane in planes):
        row = plane.heads * plane.width
        widths = np.exp(random.normal(0, 0.5, row))
        values = random.normal(0.3 * widths, widths, (tokens, row)).astype(np.float32)
        planes.append(narrowed(values, layout.dtype).tobytes())
    return b"".join(planes)


def encode(serde, raw, layout, tokens):
    room = bytearray(serde.bound(len(raw)))
    return bytes(room[: serde.encode(memoryview(raw), layout, tokens, memoryview(room))])


def decode(serde, payload, layout, tokens):
    into = bytearray(layout.chunk_bytes(tokens))
    serde.decode(memoryview(payload), layout, tokens, memoryview(into))
    return bytes(into)


planes = st.builds(Plane, st.sampled_from(["k", "v"]), st.integers(1, 3), st.integers(1, 40))
groups = st.builds(
    LayerGroup, st.integers(1, 3), st.lists(planes, min_size=1, max_size=3).map(tuple)
)
layouts = st.builds(
    KVLayout, st.sampled_from(DType), st.lists(groups, min_size=1, max_size=3).map(tuple)
)


@st.composite
def chunks(draw):
    """Chunks of any shape: some elements repeat, some bytes are noise, at any place."""
    layout, tokens = draw(layouts), draw(st.integers(1, 20))
    size = layout.chunk_bytes(tokens)
    pattern = draw(st.binary(min_size=1, max_size=64))
    raw = bytearray((pattern * (size // len(pattern) + 1))[:size])
    start, end = draw(st.integers(0, size)), draw(st.integers(0, size))
    raw[start:end] = draw(st.randoms(use_true_random=False)).randbytes(max(0, end - start))
    return bytes(raw[:size]).ljust(size, b"\0"), layout, tokens


@given(chunks(), st.sampled_from(list(SERDES)))
def test_numpy_writes_and_reads_the_same_payloads(chunk, name):
    raw, layout, tokens = chunk
    slow, fast = BY_NUMPY[name], SERDES[name]
    payload = encode(fast, raw, layout, tokens)
    assert encode(slow, raw, layout, tokens) == payload
    assert decode(slow, payload, layout, tokens) == decode(fast, payload, layout, tokens)


def test_any_level_reads_what_another_one_wrote():
    raw = gaussian(LAYOUT, 30)
    for name, serde in SERDES.items():
        if name.startswith("cachegen"):
            payload = encode(serde, raw, LAYOUT, 30)
            assert decode(cachegen(), payload, LAYOUT, 30) == decode(serde, payload, LAYOUT, 30)


def test_a_finer_level_takes_more_room_and_comes_nearer():
    layout = KVLayout.attention(DType.FLOAT32, layers=2, heads=4, key_width=64)
    raw = gaussian(layout, 256)
    sizes, errors = [], []
    for level in ("fine", "default", "small", "tiny"):
        payload = encode(cachegen(level), raw, layout, 256)
        back = np.frombuffer(decode(cachegen(level), payload, layout, 256), np.float32)
        sizes.append(len(payload))
        errors.append(float(np.square(back - np.frombuffer(raw, np.float32)).mean()))
    assert sizes == sorted(sizes, reverse=True)
    assert errors == sorted(errors)


def test_the_default_level_makes_less_than_a_quarter_of_bfloat16():
    layout = KVLayout.attention(DType.BFLOAT16, layers=3, heads=8, key_width=128)
    raw = gaussian(layout, 256)
    assert len(raw) / len(encode(cachegen(), raw, layout, 256)) > 4.5
    assert len(raw) / len(encode(cachegen("small"), raw, layout, 256)) > 5


@each("name", SERDES)
@each("dtype", [DType.UINT8, DType.FLOAT8_E4M3, DType.FLOAT8_E5M2])
def test_opaque_bytes_are_left_alone(name, dtype):
    """Only the engine knows what they mean; the core keeps such chunks as they are."""
    layout = KVLayout.attention(dtype, layers=2, heads=1, key_width=16)
    raw = bytes(range(64)) * 10
    payload = encode(SERDES[name], raw, layout, 10)
    assert payload[24:] == raw


@each("name", SERDES)
@each("bad", [b"\x80\x7f", b"\x80\xff", b"\xc1\x7f", b"\x81\xff"])
def test_a_plane_with_an_element_that_is_no_number_is_left_as_it_was(name, bad):
    raw = bytearray(gaussian(LAYOUT, 32))
    raw[:2] = bad
    back = decode(SERDES[name], encode(SERDES[name], bytes(raw), LAYOUT, 32), LAYOUT, 32)
    plane = 2 * 64 * 32 * 2
    assert back[:plane] == raw[:plane]
    assert back[plane:] != raw[plane:]


@each("name", SERDES)
def test_one_token_may_stay_as_it_was_but_does_not_grow(name):
    raw = gaussian(LAYOUT, 1)
    assert len(encode(SERDES[name], raw, LAYOUT, 1)) <= 24 + len(raw)


GOLDEN = {
    "cachegen fine": "2add8447089b93a3",
    "cachegen default": "25f157c04d8f184b",
    "cachegen small": "a47ad3148fe9b1d6",
    "cachegen tiny": "1d9552e49262fa96",
    "int8": "d5c3181405a2e1ae",
    "int4": "e0c0cbcdbc977dc5",
    "fp8": "f0b5efc50738a9d2",
}
"""Digests of payloads: they must stay as they are for as long as the format's number does."""


@each("name", SERDES)
def test_the_format_stays_as_it_is(name):
    steps = np.arange(LAYOUT.chunk_bytes(20) // 2, dtype=np.int64)
    values = ((steps * 2654435761 % 4093 - 2046) / 256).astype(np.float32)
    raw = narrowed(values, DType.BFLOAT16).tobytes()
    payload = encode(SERDES[name], raw, LAYOUT, 20)
    assert hashlib.sha256(payload).hexdigest()[:16] == GOLDEN[name]


FIRST = 24 + 8 * LAYOUT.layers + 8 * 2
"""Where the first plane's block begins in a payload for ``LAYOUT``."""


@each("half", [0, 15, 255])
def test_an_alphabet_that_there_is_not_is_corrupt(half):
    payload = bytearray(encode(cachegen(), gaussian(LAYOUT, 20), LAYOUT, 20))
    payload[FIRST] = half
    with pytest.raises(CorruptFrame, match="no alphabet"):
        decode(cachegen(), bytes(payload), LAYOUT, 20)


@each("field", [0, 128], ids=["class", "turn"])
def test_a_lane_of_a_kind_that_there_is_not_is_corrupt(field):
    payload = bytearray(encode(cachegen(), gaussian(LAYOUT, 20), LAYOUT, 20))
    payload[FIRST + 1 + 2 * 20 + field] = 200
    with pytest.raises(CorruptFrame, match="a lane of a kind"):
        decode(cachegen(), bytes(payload), LAYOUT, 20)


@each("name", SERDES)
def test_a_scale_that_is_no_number_is_corrupt(name):
    payload = bytearray(encode(SERDES[name], gaussian(LAYOUT, 20), LAYOUT, 20))
    at = FIRST + name.startswith("cachegen")
    payload[at : at + 2] = b"\x80\x7f"
    with pytest.raises(CorruptFrame, match="no number"):
        decode(SERDES[name], bytes(payload), LAYOUT, 20)


def test_lengths_of_streams_that_overflow_are_corrupt():
    payload = bytearray(encode(cachegen(), gaussian(LAYOUT, 20), LAYOUT, 20))
    at = FIRST + 1 + 2 * 20 + 6 * 128
    payload[at : at + 8] = b"\xff" * 8
    with pytest.raises(CorruptFrame, match="ends too early"):
        decode(cachegen(), bytes(payload), LAYOUT, 20)


def test_another_codecs_payload_is_not_guessed_at():
    payload = encode(SERDES["int8"], gaussian(LAYOUT, 20), LAYOUT, 20)
    with pytest.raises(CorruptFrame, match="not a cachegen/1 payload"):
        decode(cachegen(), payload, LAYOUT, 20)


def test_a_buffer_that_does_not_fit_the_layout_is_refused():
    serde, room = cachegen(), memoryview(bytearray(LAYOUT.chunk_bytes(20) + 1))
    with pytest.raises(LayoutMismatch):
        serde.encode(room, LAYOUT, 20, room)
    payload = memoryview(encode(serde, gaussian(LAYOUT, 20), LAYOUT, 20))
    with pytest.raises(LayoutMismatch):
        serde.decode(payload, LAYOUT, 20, room)


def test_a_layer_for_another_dtype_is_corrupt():
    payload = encode(cachegen(), gaussian(LAYOUT, 20), LAYOUT, 20)
    size = unpack_from("<Q", payload, 24)[0]
    layout = KVLayout.attention(DType.UINT8, layers=3, heads=2, key_width=128)
    start = 24 + 8 * 3
    part = memoryview(payload)[start : start + size]
    with pytest.raises(CorruptFrame):
        cachegen().decode_layer(part, 0, layout, 20, memoryview(bytearray(2 * 256 * 20)))
