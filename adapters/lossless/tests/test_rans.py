"""Every bit comes back from rANS, the format is what its description says, and lies are corrupt."""

from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from depth import examples
from hexkv.adapters.lossless.rans import Rans
from hexkv.adapters.lossless.zstd import ZstdSerde
from hexkv.contracts.kit.cases import each
from hexkv.kernels.coding import compiled, in_torch, plain
from hexkv.kernels.coding.choosing import Choice
from hexkv.kernels.coding.tables import Tables
from hexkv.plugins.support.payload import PlaneSerde
from hexkv.ports import CorruptFrame, DType, KVLayout, LayerGroup, Plane

TOKENS = 40
DTYPES = (DType.BFLOAT16, DType.FLOAT16, DType.FLOAT32, DType.FLOAT8_E4M3)
LAYOUT = KVLayout.attention(DType.BFLOAT16, layers=2, heads=2, key_width=64)
LANES = 128
BLOCK = 24 + 8 * LAYOUT.layers + 8 * 2
"""Where the first plane's block begins in a payload for ``LAYOUT``."""
TOP = BLOCK + LANES * TOKENS * 7 // 8
"""Where what says how its upper bits are coded does."""


def rans(coder=compiled):
    choice = Choice(lambda: coder)
    choice.wait(60)
    return PlaneSerde(Rans(choice))


FAST, SLOW = rans(), rans(plain)


def encode(raw, layout, tokens, serde=FAST):
    room = bytearray(serde.bound(len(raw)))
    return bytes(room[: serde.encode(memoryview(raw), layout, tokens, memoryview(room))])


def decode(payload, layout, tokens, serde=FAST):
    into = bytearray(layout.chunk_bytes(tokens))
    serde.decode(memoryview(payload), layout, tokens, memoryview(into))
    return bytes(into)


def words(layout, tokens, seed=0):
    """The bits of Gaussians, channels of which differ in width; cut to the dtype, not rounded."""
    random = np.random.default_rng(seed)
    planes = []
    for plane in (plane for planes in layout.planes for plane in planes):
        row = plane.heads * plane.width
        values = random.normal(0, 1, (tokens, row)) * np.exp(random.normal(0, 1, row))
        if layout.dtype is DType.FLOAT16:
            planes.append(values.astype("<f2").tobytes())
            continue
        bits = values.astype(np.float32).view(np.uint32)
        down = 8 * (4 - layout.dtype.itemsize)
        planes.append((bits >> down).astype(f"<u{layout.dtype.itemsize}").tobytes())
    return b"".join(planes)


planes = st.builds(Plane, st.just("p"), st.integers(1, 3), st.integers(1, 40))
groups = st.builds(
    LayerGroup, st.integers(1, 3), st.lists(planes, min_size=1, max_size=3).map(tuple)
)
layouts = st.builds(
    KVLayout, st.sampled_from(DType), st.lists(groups, min_size=1, max_size=3).map(tuple)
)


@st.composite
def chunks(draw):
    """Chunks of any shape: numbers, patterns (infinities and NaN among them) and noise."""
    layout, tokens = draw(layouts), draw(st.integers(1, 60))
    raw = bytearray(words(layout, tokens, draw(st.integers(0, 99))))
    size = len(raw)
    for _ in range(draw(st.integers(0, 2))):
        start, end = sorted(draw(st.tuples(*[st.integers(0, size)] * 2)))
        pattern = draw(st.sampled_from([b"\0", b"\x80\x7f", b"\xff", b"\x01\x00", b"\xc1\xff"]))
        raw[start:end] = (pattern * (end - start))[: end - start]
    start, end = sorted(draw(st.tuples(*[st.integers(0, size)] * 2)))
    if draw(st.booleans()):
        raw[start:end] = np.random.default_rng(0).bytes(end - start)
    return bytes(raw), layout, tokens


@given(chunks())
def test_every_bit_comes_back_and_numpy_writes_and_reads_the_same(chunk):
    raw, layout, tokens = chunk
    payload = encode(raw, layout, tokens)
    assert len(payload) <= FAST.bound(len(raw))
    assert (decode(payload, layout, tokens) == raw) is True
    assert (encode(raw, layout, tokens, SLOW) == payload) is True
    assert (decode(payload, layout, tokens, SLOW) == raw) is True


@settings(max_examples=examples(60))
@given(st.data())
def test_damage_is_corrupt_or_gives_a_chunk(data):
    payload = bytearray(encode(words(LAYOUT, TOKENS), LAYOUT, TOKENS))
    for _ in range(data.draw(st.integers(1, 4))):
        far = data.draw(st.sampled_from([BLOCK, TOP, TOP + 300, len(payload)]))
        at = data.draw(st.integers(max(0, far - 300), far - 1))
        some = data.draw(st.binary(min_size=1, max_size=9))
        payload[at : at + len(some)] = some[: len(payload) - at]
    with suppress(CorruptFrame):
        decoded = decode(bytes(payload), LAYOUT, TOKENS)
        assert len(decoded) == LAYOUT.chunk_bytes(TOKENS)


@each("dtype", [DType.BFLOAT16, DType.FLOAT16, DType.FLOAT32])
def test_numbers_take_fewer_bytes_than_zstd_makes_of_them(dtype):
    layout = KVLayout.attention(dtype, layers=2, heads=8, key_width=128)
    raw = words(layout, 256)
    assert len(encode(raw, layout, 256)) < len(encode(raw, layout, 256, ZstdSerde()))


def test_any_bits_come_back_even_those_of_no_number():
    """Every pattern of 16 bits; infinities and NaN keep a plane from shrinking, others do not."""
    layout = KVLayout.attention(DType.BFLOAT16, layers=1, heads=2, key_width=64)
    patterns = np.arange(1 << 16, dtype="<u2")
    for some in (patterns, np.sort(patterns & 0x7FFF), patterns & 0xBFFF, patterns | 0x4000):
        raw = some.tobytes()
        assert (decode(encode(raw, layout, 256), layout, 256) == raw) is True


def test_a_plane_with_an_infinity_stays_as_it_was_and_costs_the_others_nothing():
    raw = bytearray(words(LAYOUT, TOKENS))
    plain_size = len(encode(bytes(raw), LAYOUT, TOKENS))
    raw[:4] = b"\x80\x7f\x01\x00"
    payload = encode(bytes(raw), LAYOUT, TOKENS)
    assert (decode(payload, LAYOUT, TOKENS) == raw) is True
    assert (payload[BLOCK : BLOCK + 256] == raw[:256]) is True
    assert len(payload) < plain_size + 2 * LANES * TOKENS


def test_zeros_cost_no_more_than_other_numbers():
    """Their exponent is far from all others, and takes a place beside them."""
    raw = np.frombuffer(words(LAYOUT, TOKENS), "<u2").copy()
    before = len(encode(raw.tobytes(), LAYOUT, TOKENS))
    raw[::7] = 0
    payload = encode(raw.tobytes(), LAYOUT, TOKENS)
    assert (decode(payload, LAYOUT, TOKENS) == raw.tobytes()) is True
    assert len(payload) < 1.02 * before


@each("value", [0x0000, 0x8000, 0x3F80, 0x7FC0, 0xFF80])
def test_a_chunk_of_one_value_shrinks_to_its_lower_bits(value):
    layout = KVLayout.attention(DType.BFLOAT16, layers=1, heads=2, key_width=64)
    raw = np.full(256 * 256, value, "<u2").tobytes()
    payload = encode(raw, layout, 256)
    assert len(payload) < 0.47 * len(raw)
    assert (decode(payload, layout, 256) == raw) is True


GOLDEN = Path(__file__).parent / "golden_rans"
SMALL = {dtype: KVLayout.attention(dtype, layers=2, heads=1, key_width=16) for dtype in DTYPES}


def steps(layout):
    """The same numbers on every machine, in every version of everything."""
    places = np.arange(layout.chunk_bytes(64) // layout.dtype.itemsize, dtype=np.int64)
    numbers = ((places * 2654435761 % 4093 - 2046) / 256).astype(np.float32)
    if layout.dtype is DType.FLOAT16:
        return numbers.astype("<f2").tobytes()
    bits = numbers.view(np.uint32) >> 8 * (4 - layout.dtype.itemsize)
    return bits.astype(f"<u{layout.dtype.itemsize}").tobytes()


@each("dtype", DTYPES)
def test_a_payload_of_the_first_version_can_be_read_for_ever(dtype):
    """Read, not written again: which lanes share a table may come out otherwise some day."""
    payload = (GOLDEN / f"v1-{dtype}.bin").read_bytes()
    assert len(payload) < SMALL[dtype].chunk_bytes(64)
    assert (decode(payload, SMALL[dtype], 64) == steps(SMALL[dtype])) is True


def test_the_streams_are_those_that_a_gpu_decodes():
    """From the description alone, by the decoder in torch that GPU kernels are compared with."""
    torch = pytest.importorskip("torch")
    raw = words(LAYOUT, TOKENS)
    payload = encode(raw, LAYOUT, TOKENS)
    parts = np.frombuffer(payload, np.uint8, LANES * TOKENS * 7 // 8, BLOCK).reshape(7, -1)
    eighth = np.packbits(parts >> 7, axis=0, bitorder="little").reshape(1, -1)
    low = np.concatenate([parts & 0x7F, eighth]).reshape(-1).astype(np.uint16)
    symbols, tables = payload[TOP] + 1, payload[TOP + 1]
    at = TOP + 2

    def take(kind, count):
        nonlocal at
        found = np.frombuffer(payload, np.dtype(kind).newbyteorder("<"), count, at)
        at += found.nbytes
        return found.astype(np.int64)

    alphabet = take(np.uint16, symbols)
    counts = take(np.uint16, tables * symbols).reshape(tables, symbols).astype(np.uint32)
    classes, states, lengths = take(np.uint8, LANES), take(np.uint32, LANES), take(np.uint32, 2)
    stream = take(np.uint16, int(lengths.sum()))
    given = (stream, lengths, states, classes, np.zeros_like(classes), Tables(counts).slots)
    values = torch.from_numpy(np.tile(alphabet << 7, (TOKENS, 1)))
    tensors = [torch.from_numpy(array.astype(np.int64)) for array in given]
    into, ended = in_torch.decode(*tensors, values)
    assert ended
    found = into.numpy().astype(np.uint16).reshape(-1) | low
    assert np.array_equal(found, np.frombuffer(raw, "<u2", LANES * TOKENS))


def lied(at, lie):
    payload = bytearray(encode(words(LAYOUT, TOKENS), LAYOUT, TOKENS))
    payload[at : at + len(lie)] = lie
    return bytes(payload)


SYMBOLS = 1 + encode(words(LAYOUT, TOKENS), LAYOUT, TOKENS)[TOP]
COUNTS = TOP + 2 + 2 * SYMBOLS


@each(
    ("at", "lie", "said"),
    [
        (TOP, b"\0", "an alphabet"),
        (TOP + 1, b"\0", "a number of tables"),
        (TOP + 1, b"\xff", "a number of tables"),
        (COUNTS, b"\xff\xff", "do not add up"),
        (COUNTS, (4096).to_bytes(2, "little") + bytes(2 * (SYMBOLS - 1)), "do not add up"),
        (TOP, b"\xff", "do not add up"),
    ],
)
def test_tables_that_lie_are_corrupt(at, lie, said):
    with pytest.raises(CorruptFrame, match=said):
        decode(lied(at, lie), LAYOUT, TOKENS)


def test_lanes_and_streams_that_lie_are_corrupt():
    payload = encode(words(LAYOUT, TOKENS), LAYOUT, TOKENS)
    classes = COUNTS + 2 * SYMBOLS * payload[TOP + 1]
    with pytest.raises(CorruptFrame, match="a table that there is not"):
        decode(lied(classes, b"\x09"), LAYOUT, TOKENS)
    with pytest.raises(CorruptFrame, match="ends too early"):
        decode(lied(classes + 5 * LANES, b"\xff" * 8), LAYOUT, TOKENS)
    with pytest.raises(CorruptFrame, match="does not end as it should"):
        decode(lied(classes + LANES, b"\xff" * 4), LAYOUT, TOKENS)
