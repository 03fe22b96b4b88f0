"""A device decodes the payloads of serdes to the very bits that the host's decoder gives."""

from itertools import accumulate, pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from depth import examples
from devices.raw_pages import RawPages
from hexkv.adapters.cachegen.cachegen import LEVELS, CacheGen
from hexkv.adapters.cachegen.lowbit import CODECS
from hexkv.adapters.cachegen.serde import LossySerde
from hexkv.adapters.lossless.rans import RansSerde
from hexkv.contracts.device import Holed
from hexkv.contracts.doubles import deadline
from hexkv.contracts.encoded import EncodedContract, Foreign
from hexkv.contracts.kit.cases import each
from hexkv.kernels import ContiguousKV, PagedKV, torch_dtype
from hexkv.kernels.coding.choosing import Choice, LowBitChoice
from hexkv.kernels.coding.floats import narrowed
from hexkv.kernels.payloads import SupportsDevicePlanes
from hexkv.ports import (
    CorruptFrame,
    DType,
    EncodedSpan,
    InvalidRequest,
    KVLayout,
    LayerGroup,
    Plane,
    Span,
    SupportsEncoded,
    SupportsEncodedLayers,
)

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
DTYPES = (DType.BFLOAT16, DType.FLOAT16, DType.FLOAT32)
BLOCK = 4
NUMPY = LowBitChoice(), Choice()  # whether numba is ready decides about no bit
SERDES = {name: LossySerde(CacheGen(level, NUMPY[1])) for name, level in LEVELS.items()}
SERDES |= {name: LossySerde(codec(NUMPY[0])) for name, codec in CODECS.items()}
SERDES["rans"] = RansSerde(NUMPY[1])


def layout_of(dtype, layers=2, heads=2, key=36, value=4):
    return KVLayout.attention(dtype, layers=layers, heads=heads, key_width=key, value_width=value)


def chunk_of(layout, tokens, seed, scale=1.0):
    random = np.random.default_rng(seed)
    count = layout.chunk_bytes(tokens) // layout.dtype.itemsize
    numbers = random.normal(0.1, 1, count) * np.exp(random.normal(0, 1, count)) * scale
    return memoryview(bytearray(narrowed(numbers.astype(np.float32), layout.dtype).tobytes()))


def encoded(serde, chunk, layout, tokens):
    payload = memoryview(bytearray(serde.bound(len(chunk))))
    return payload[: serde.encode(chunk, layout, tokens, payload)]


def decoded(serde, payload, layout, tokens):
    into = memoryview(bytearray(layout.chunk_bytes(tokens)))
    serde.decode(payload, layout, tokens, into)
    return bytes(into)


def paged(layout, slots, blocks=9):
    dtype = torch_dtype(layout.dtype)
    pages = [
        [
            torch.zeros((blocks, BLOCK, plane.heads, plane.width), dtype=dtype, device=DEVICE)
            for plane in planes
        ]
        for planes in layout.planes
    ]
    return PagedKV(layout, pages, slots, fused=True), pages


def gathered(window, start, end):
    data = memoryview(bytearray(window.layout.chunk_bytes(end - start)))
    assert window.gather([Span(start, end, data)]).wait(deadline())
    return bytes(data)


@settings(max_examples=examples(2, times=10))
@given(
    st.sampled_from([*SERDES]),
    st.sampled_from(DTYPES),
    st.integers(1, 9),
    st.integers(0, 1 << 32),
    st.sampled_from([1.0, 1e-30, 1e30]),
)
def test_pages_hold_what_the_host_would_have_decoded(name, dtype, tokens, seed, scale):
    serde, layout = SERDES[name], layout_of(dtype)
    if dtype is DType.FLOAT16:
        scale = 1.0
    chunks = [chunk_of(layout, tokens, seed + i, scale) for i in range(2)]
    payloads = [encoded(serde, chunk, layout, tokens) for chunk in chunks]
    order = np.random.default_rng(seed).permutation(36)[: 2 * tokens + 1]
    window, pages = paged(layout, order.tolist())
    assert isinstance(window, SupportsEncoded)
    assert window.decodes(serde)
    spans = [EncodedSpan(1 + i * tokens, 1 + (i + 1) * tokens, p) for i, p in enumerate(payloads)]
    assert window.scatter_encoded(serde, spans).wait(deadline())
    for span in spans:
        there = gathered(window, span.start, span.end)
        assert there == decoded(serde, span.payload, layout, tokens)
    by_layers, _ = paged(layout, order.tolist())
    assert isinstance(by_layers, SupportsEncodedLayers)
    for layer in reversed(range(layout.layers)):
        moved = by_layers.scatter_encoded_layers(serde, spans[1:], range(layer, layer + 1))
        assert moved.wait(deadline())
    start, end, _ = spans[1]
    assert gathered(by_layers, start, end) == gathered(window, start, end)
    other = np.setdiff1d(np.arange(36), order[1:])
    for page in (page for planes in pages for page in planes):
        assert not page.flatten(0, 1).cpu()[other].any()


def test_planes_that_are_not_finite_or_not_smaller_arrive_as_they_are():
    layout = layout_of(DType.BFLOAT16, layers=3)
    chunk = chunk_of(layout, 8, 1)
    first = layout.layer_span(1, 8)[0]
    chunk[first : first + 2] = b"\x80\x7f"  # an infinity in K of the second layer
    tensors = [
        [
            torch.zeros((1, plane.heads, 8, plane.width), dtype=torch.bfloat16, device=DEVICE)
            for plane in planes
        ]
        for planes in layout.planes
    ]
    window = ContiguousKV(layout, tensors, fused=True)
    for serde in (SERDES[name] for name in ("default", "rans", *CODECS)):
        payload = encoded(serde, chunk, layout, 8)
        assert window.scatter_encoded(serde, [EncodedSpan(0, 8, payload)]).wait(deadline())
        there = gathered(window, 0, 8)
        assert there == decoded(serde, payload, layout, 8)
        assert there[first : first + 2] == b"\x80\x7f"
    one = encoded(serde, chunk_of(layout, 1, 2)[:], layout, 1)  # of one token nothing is saved
    assert window.scatter_encoded(serde, [EncodedSpan(3, 4, one.toreadonly())]).wait(deadline())
    assert gathered(window, 3, 4) == decoded(serde, one, layout, 1)


@settings(max_examples=examples(10, times=15))
@given(st.sampled_from(["default", "rans", *CODECS]), st.data())
def test_a_payload_that_was_damaged_is_refused_or_decodes_as_on_the_host(name, data):
    """Frames have checksums; these are bytes that a hostile peer sealed."""
    serde, layout = SERDES[name], layout_of(DType.BFLOAT16, layers=1)
    payload = bytearray(encoded(serde, chunk_of(layout, 6, 3), layout, 6))
    for _ in range(data.draw(st.integers(1, 3))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    window, _ = paged(layout, range(6))
    try:
        wanted = decoded(serde, memoryview(payload), layout, 6)
    except CorruptFrame:
        with pytest.raises(CorruptFrame):
            window.scatter_encoded(serde, [EncodedSpan(0, 6, memoryview(payload))]).wait(deadline())
        return
    assert window.scatter_encoded(serde, [EncodedSpan(0, 6, memoryview(payload))]).wait(deadline())
    assert gathered(window, 0, 6) == wanted


def test_what_is_not_to_be_decoded_here_is_refused_before_anything_moves():
    layout = layout_of(DType.BFLOAT16)
    serde = SERDES["int8"]
    window, pages = paged(layout, range(8))
    payload = encoded(serde, chunk_of(layout, 8, 0), layout, 8)
    good = EncodedSpan(0, 8, payload)
    assert not window.decodes(Foreign())
    assert not PagedKV(layout, pages, range(8), fused=False).decodes(serde)
    for wrong in (EncodedSpan(1, 9, payload), EncodedSpan(-1, 7, payload)):
        with pytest.raises(InvalidRequest, match="leaves"):
            window.scatter_encoded(serde, [good, wrong])
    with pytest.raises(CorruptFrame):
        window.scatter_encoded(serde, [good, EncodedSpan(0, 8, payload[:-1])])
    assert not any(page.any() for planes in pages for page in planes)


@each("name", [*CODECS])
@each("dtype", DTYPES)
def test_every_code_with_every_kind_of_scale_is_the_hosts_bits(name, dtype):
    """All 256 codes; scales of either sign, zeros of both signs, and the least that there are."""
    serde, layout, tokens = SERDES[name], layout_of(dtype, layers=1, heads=2, key=32, value=2), 8
    payload = encoded(serde, chunk_of(layout, tokens, 1), layout, tokens)
    begin, end = serde.device_blocks([payload], layout, [tokens], range(1))[0, 0].tolist()
    count = tokens * 64 // (2 if name == "int4" else 1)
    scales = np.array([1.5, -1.5, 0.0, -0.0, 3e-39, 448.0, -127.0, 0.1], np.float32)
    block = np.frombuffer(payload, np.uint8)[begin:end]
    before = np.resize(scales, (end - begin - count) // dtype.itemsize)
    block[: -count or None] = narrowed(before, dtype).view(np.uint8)
    block[-count:] = np.arange(count)
    window, _ = paged(layout, range(tokens))
    assert window.scatter_encoded(serde, [EncodedSpan(0, tokens, payload)]).wait(deadline())
    assert gathered(window, 0, tokens) == decoded(serde, payload, layout, tokens)


def host_blocks(serde, payload, layout, tokens, layers):
    """Return what the serde's own reader finds; the device checks the content of a block."""
    found = []
    parts = serde.layer_parts(payload, len(payload), layout, tokens)
    for layer in layers:
        (start, stop), (first, last) = parts[layer], layout.layer_span(layer, tokens)
        rows = [plane.heads * plane.width * layout.dtype.itemsize for plane in layout.planes[layer]]
        bounds = [*accumulate((row * tokens for row in rows), initial=0)]
        if stop - start != last - first:
            bounds = serde._bounds(payload[start:stop], layer, layout, last - first)
        found += [[start + one, start + other] for one, other in pairwise(bounds)]
    return found


@pytest.mark.thorough
@settings(max_examples=examples(50, times=20))
@given(st.sampled_from(["default", "rans", *CODECS]), st.data())
def test_blocks_of_many_payloads_are_those_that_the_host_finds(name, data):
    """Of any lengths; raw layers and chunks among them; one that is damaged refuses the call."""
    serde = SERDES[name]
    groups = (
        LayerGroup(2, (Plane("k", 2, 36), Plane("v", 2, 4))),
        LayerGroup(1, (Plane("k", 1, 64),)),
    )
    layout = KVLayout(DType.BFLOAT16, groups if data.draw(st.booleans()) else groups[:1])
    tokens = data.draw(st.lists(st.sampled_from([1, 1, 8, 13]), min_size=1, max_size=4))
    payloads = []
    for seed, count in enumerate(tokens):
        chunk = chunk_of(layout, count, seed)
        if data.draw(st.booleans()):  # an infinity in a plane, which stays as it is
            at = 2 * data.draw(st.integers(0, len(chunk) // 2 - 1))
            chunk[at : at + 2] = b"\x80\x7f"
        payloads.append(encoded(serde, chunk, layout, count))
    start = data.draw(st.integers(0, layout.layers - 1))
    layers = range(start, data.draw(st.integers(start + 1, layout.layers)))
    if data.draw(st.booleans()):
        hurt = payloads[data.draw(st.integers(0, len(payloads) - 1))]
        at = data.draw(st.integers(0, min(len(hurt), 24 + 8 * layout.layers + 16) - 1))
        hurt[at] ^= 1 << data.draw(st.integers(0, 7))
    if data.draw(st.booleans()):
        cut = data.draw(st.integers(0, len(payloads[-1])))
        payloads[-1] = payloads[-1][:cut]
    pairs = [*zip(payloads, tokens, strict=True)]
    try:
        wanted = [host_blocks(serde, *pair[:1], layout, pair[1], layers) for pair in pairs]
    except CorruptFrame:
        with pytest.raises(CorruptFrame):
            serde.device_blocks(payloads, layout, tokens, layers)
        return
    assert serde.device_blocks(payloads, layout, tokens, layers).tolist() == wanted


class Lying:
    """A serde whose blocks are others than the payload has."""

    def __init__(self, serde, change):
        self.name = f"lying about {serde}"
        self.serde, self.change = SERDES[serde], change

    def device_forms(self, layout):
        return self.serde.device_forms(layout)

    def device_blocks(self, payloads, layout, tokens, layers):
        return np.stack(
            [self.change(one) for one in self.serde.device_blocks(payloads, layout, tokens, layers)]
        )


def moved(by):
    return lambda blocks: blocks + np.array([[0, 0]] * (len(blocks) - 1) + [by])


@each("serde", ["default", "rans", *CODECS])
@each(
    "change",
    [
        moved([-(1 << 50), 0]),
        moved([0, 1 << 62]),
        moved([1 << 40, 1 << 40]),
        moved([0, -(1 << 40)]),
        lambda blocks: blocks[:-1],
        lambda blocks: np.stack([blocks[:, 0], blocks[:, 0] + 3], axis=1),
        lambda blocks: blocks * 0,
    ],
)
def test_blocks_that_leave_the_payload_or_have_no_size_of_their_form_are_refused(serde, change):
    layout = layout_of(DType.BFLOAT16)
    payload = encoded(SERDES[serde], chunk_of(layout, 8, 0), layout, 8)
    lying = Lying(serde, change)
    assert isinstance(lying, SupportsDevicePlanes)
    window, _ = paged(layout, range(8))
    with pytest.raises(CorruptFrame):
        window.scatter_encoded(lying, [EncodedSpan(0, 8, payload)])


@pytest.mark.thorough
class TestPagesDecode(EncodedContract):
    """All kinds of planes: the arithmetic coder's, and those of numbers with scales."""

    layout = layout_of(DType.BFLOAT16, heads=1, key=8, value=8)

    @pytest.fixture(params=["default", "rans", *CODECS])
    def serde(self, request):
        return SERDES[request.param]

    @pytest.fixture
    def both(self):
        return self.window([*range(BLOCK, 7 * BLOCK), 0])

    @pytest.fixture
    def device(self, both):
        return both[0]

    @pytest.fixture
    def raw(self, both):
        return both[1]

    @pytest.fixture
    def holed(self):
        return Holed(*self.window([-1 if at in (5, 9) else at for at in range(25)]), {5, 9})

    def window(self, slots):
        window, pages = paged(self.layout, slots)

        words = [[page.view(torch.int16) for page in planes] for planes in pages]

        def place(layer, plane, at):
            return words[layer][plane], divmod(slots[at], BLOCK)

        return window, RawPages([word for planes in words for word in planes], place)


def graded(layout, tokens, seed):
    """KV whose channels are of several magnitudes: a plane is worth several tables."""
    random = np.random.default_rng(seed)
    parts = []
    for planes in layout.planes:
        for plane in planes:
            scales = np.float32(4.0) ** (np.arange(plane.heads * plane.width) // 32 % 8)
            numbers = random.normal(1.0, 0.3, (tokens, len(scales))) * scales
            numbers[:: 1 + seed % 5, :3] = 0.0
            parts.append(numbers.astype(np.float32).reshape(-1))
    return memoryview(bytearray(narrowed(np.concatenate(parts), layout.dtype).tobytes()))


@settings(max_examples=examples(2, times=10))
@given(st.sampled_from(DTYPES), st.integers(4, 13), st.integers(0, 1 << 32))
def test_planes_with_tables_of_their_own_are_the_hosts_bits(dtype, tokens, seed):
    """Every bit comes back: of each dtype, and of numbers that are no whole bytes together."""
    serde, layout = SERDES["rans"], layout_of(dtype, layers=1, heads=1, key=65, value=8)
    chunk = graded(layout, tokens, seed)
    payload = encoded(serde, chunk, layout, tokens)
    window, _ = paged(layout, range(tokens))
    span = EncodedSpan(0, tokens, payload)
    assert window.scatter_encoded(serde, [span]).wait(deadline())
    assert gathered(window, 0, tokens) == bytes(chunk)


@pytest.mark.thorough
def test_a_plane_of_many_channels_has_several_tables_that_the_device_makes():
    serde, layout = SERDES["rans"], layout_of(DType.BFLOAT16, layers=1, heads=1, key=256, value=70)
    tokens = 33
    chunk = graded(layout, tokens, 1)
    payload = encoded(serde, chunk, layout, tokens)
    begin, end = serde.device_blocks([payload], layout, [tokens], range(1))[0, 0].tolist()
    many = payload[begin + 7 * (-(-tokens * 256 // 8)) + 1]
    assert end - begin < 2 * tokens * 256
    assert many > 2
    window, _ = paged(layout, range(tokens))
    assert window.scatter_encoded(serde, [EncodedSpan(0, tokens, payload)]).wait(deadline())
    assert gathered(window, 0, tokens) == bytes(chunk)
