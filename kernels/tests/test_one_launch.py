"""A call for many chunks is few launches and few copies, and nothing in it waits."""

import random
import sys
from collections import Counter
from functools import partial

import numpy as np
import pytest
import torch

from counting import no_collection
from devices.recorded_driver import Beside, Recording
from hexkv.adapters.cachegen.cachegen import LEVELS, CacheGen
from hexkv.adapters.cachegen.lowbit import CODECS
from hexkv.adapters.cachegen.serde import LossySerde
from hexkv.adapters.cuda.streams import CudaKV
from hexkv.adapters.lossless.rans import RansSerde
from hexkv.contracts.doubles import deadline
from hexkv.contracts.kit.cases import each
from hexkv.kernels import (
    BlockKV,
    ContiguousKV,
    PagedKV,
    PagedMemory,
    opaque_layout,
)
from hexkv.kernels.coding.choosing import Choice, LowBitChoice
from hexkv.kernels.gpu import encoded, fused
from hexkv.kernels.gpu.staging import DeviceStaging
from hexkv.kernels.payloads import columns
from hexkv.ports import DType, EncodedSpan, KVLayout, Span

pytest.importorskip("triton", reason="Triton exists for Linux only")

VIEWS = {"view", "slice", "alias", "detach", "select", "unsqueeze", "transpose", "as_strided"}
"""What torch does without a launch, a copy or a wait."""


def recording(monkeypatch):
    """A driver whose windows begin with nothing that is kept."""
    made = Recording()
    staging = DeviceStaging(made)
    monkeypatch.setattr(fused, "staging_on", lambda device: staging)
    return made


@pytest.fixture
def driver(monkeypatch):
    return recording(monkeypatch)


def pages_of(layout, blocks, block):
    return [
        [torch.zeros(blocks, block, p.heads, p.width, dtype=torch.bfloat16) for p in planes]
        for planes in layout.planes
    ]


def spans_of(layout, chunk, chunks, *, regular=True, header=4096):
    """Chunks in frames of a pool, one after the other or in any order, and the pool's memory."""
    size = layout.chunk_bytes(chunk)
    pool = memoryview(bytearray(2 * chunks * (size + header)))
    places = range(chunks) if regular else random.Random(0).sample(range(2 * chunks), chunks)
    starts = [place * (size + header) + header for place in places]
    return [Span(i * chunk, (i + 1) * chunk, pool[at : at + size]) for i, at in enumerate(starts)]


def counted(driver, run):
    """What *run* makes the driver do; beside it torch only looks at memory in other ways."""
    driver.counts.clear()
    with Beside() as beside:
        run()
    assert set(beside.names) <= VIEWS
    assert not driver.counts["synchronisations"]
    return Counter(driver.counts)


def functions(run):
    """The number of Python's functions that *run* enters.

    A layer of 16 chunks takes some 85 functions and 0.09 ms of a processor, a sixth of the time of
    a copy and a launch for each chunk.
    """
    entered = []
    with no_collection():
        sys.setprofile(lambda frame, event, _: entered.append(frame) if event == "call" else None)
        try:
            run()
        finally:
            sys.setprofile(None)
    return len(entered)


@each("gather", [True, False])
@each("regular", [True, False])
def test_a_layer_of_all_chunks_is_one_launch_and_one_copy(monkeypatch, gather, regular):
    driver = recording(monkeypatch)
    monkeypatch.setattr("hexkv.kernels.gpu.staging._LEAST", 1)  # a layer is large
    layout = KVLayout.attention(DType.BFLOAT16, layers=32, heads=2, key_width=16)
    window = PagedKV(layout, pages_of(layout, 64, 16), range(64 * 16), fused=True)
    spans = spans_of(layout, 32, 16, regular=regular)
    move = window.gather if gather else window.scatter

    def by_layers():
        for transfer in [move(spans, range(layer, layer + 1)) for layer in range(32)]:
            assert transfer.wait(deadline())

    first = counted(driver, by_layers)
    assert first["launches"] == first["copies"] == 32
    assert first["tables"] == 32 + 2, "of chunks; of planes and slots once"
    assert first["bytes out" if gather else "bytes in"] == layout.chunk_bytes(16 * 32)
    assert first["allocations"] == 3 + 1 + 2, "buffers, the ring, planes and slots"
    again = counted(driver, by_layers)
    assert (again["launches"], again["copies"], again["tables"]) == (32, 32, 32)
    assert not again["allocations"]
    assert not again["pinned"]
    assert again["events"] == 64
    few, many = (functions(lambda some=some: move(some, range(1))) for some in (spans[:1], spans))
    assert many - few <= 2 * 15, "of a chunk its address, and a share of the batch"


@each("gather", [True, False])
def test_whole_chunks_are_no_more_than_eight_launches(monkeypatch, gather):
    driver = recording(monkeypatch)
    layout = KVLayout.attention(DType.BFLOAT16, layers=4, heads=8, key_width=128)
    chunks, chunk = 120, 32  # an odd number in each group
    window = PagedKV(layout, pages_of(layout, 256, 16), range(chunks * chunk), fused=True)
    spans = spans_of(layout, chunk, chunks, regular=False)
    move = window.gather if gather else window.scatter
    monkeypatch.setattr("hexkv.kernels.gpu.staging._LEAST", 1)
    copy, group, groups, made = driver.copy, fused.Fused._passage, [], []
    monkeypatch.setattr(driver, "copy", lambda *a, **k: made.append(len(groups)) or copy(*a, **k))
    monkeypatch.setattr(fused.Fused, "_passage", lambda *a, **k: groups.append(1) or group(*a, **k))
    counts = counted(driver, lambda: move(spans).wait(deadline()))
    assert made[0] == 1, "the first group crosses while the others are made"
    assert 3 < counts["launches"] <= 8
    assert counts["copies"] <= chunks
    assert counts["tables"] == 4, "of planes, of slots, of the first group, and of all others"
    assert counts["bytes out" if gather else "bytes in"] == layout.chunk_bytes(chunks * chunk)
    assert counts["allocations"] == 3 + 1 + 2


def test_short_chunks_are_no_more_launches_than_long_ones(driver):
    layout = KVLayout.attention(DType.BFLOAT16, layers=4, heads=2, key_width=16)
    window = PagedKV(layout, pages_of(layout, 256, 16), range(4096), fused=True)
    for chunk in (16, 256):
        spans = spans_of(layout, chunk, 4096 // chunk, regular=False)
        counts = counted(driver, lambda spans=spans: window.scatter(spans).wait(deadline()))
        assert (counts["launches"], counts["copies"]) == (1, 1)


def test_planes_of_unlike_rows_are_a_launch_for_each_shape(driver):
    layout = KVLayout.latent(DType.BFLOAT16, layers=6, latent_width=64, rope_width=16)
    window = PagedKV(layout, pages_of(layout, 8, 16), range(128), fused=True)
    spans = spans_of(layout, 16, 8)
    for layers, launches in ((None, 2), (range(3, 4), 2)):
        counts = counted(driver, lambda at=layers: window.gather(spans, at).wait(deadline()))
        assert (counts["launches"], counts["copies"]) == (launches, 1)


def test_windows_of_every_kind_send_a_table_of_planes_once_and_slots_once_a_window(driver):
    layout = KVLayout.attention(DType.BFLOAT16, layers=4, heads=2, key_width=16)
    pages = pages_of(layout, 8, 16)
    spans = spans_of(layout, 16, 4)
    memory = PagedMemory(layout, pages, fused=True)
    for window, first in ((memory.window(range(128)), 3), (memory.window(range(64)), 2)):
        gather = partial(window.gather, spans)
        assert [counted(driver, gather)["tables"] for _ in range(2)] == [first, 1]
    tensors = [[page.view(1, 128, 2, 16).transpose(1, 2) for page in planes] for planes in pages]
    whole = ContiguousKV(layout, tensors, fused=True)
    assert [counted(driver, lambda: whole.gather(spans))["tables"] for _ in range(2)] == [3, 1]
    opaque = opaque_layout(16, [1024] * 4)
    blocks = BlockKV(opaque, [page[0].view(8, 512) for page in pages], range(8), 16, fused=True)
    bytes_ = spans_of(opaque, 16, 4)
    found = [counted(driver, lambda: blocks.gather(bytes_)) for _ in range(2)]
    assert [counts["tables"] for counts in found] == [3, 1]
    assert [counts["launches"] for counts in found] == [1, 1]


def test_what_is_known_of_planes_and_pages_is_worked_out_once_for_all_windows(monkeypatch):
    cuda = CudaKV("cpu")
    layout = KVLayout.attention(DType.BFLOAT16, layers=4, heads=2, key_width=16)
    pages = pages_of(layout, 8, 16)
    memory = cuda.paged(layout, pages, range(16))._window._pages
    assert cuda.paged(layout, [tuple(given) for given in pages], range(9))._window._pages is memory
    other = cuda.paged(layout, pages_of(layout, 8, 16), range(16))._window._pages
    assert other is not memory
    recording(monkeypatch)
    layout = KVLayout.attention(DType.BFLOAT16, layers=2, heads=2, key_width=16)
    window = PagedKV(layout, pages_of(layout, 2, 16), range(32), fused=True)
    launches = window._pages.fused
    made = encoded.decoder_of(launches, SERDES["int8"])
    assert encoded.decoder_of(launches, SERDES["int8"]) is made
    assert encoded.decoder_of(launches, SERDES["int4"]) is not made
    assert columns(layout, range(2)) is columns(layout, range(2))


def test_events_that_have_not_passed_give_the_ring_another_part(driver, monkeypatch):
    layout = KVLayout.attention(DType.BFLOAT16, layers=1, heads=1, key_width=16)
    monkeypatch.setattr("hexkv.kernels.gpu.staging._SEGMENT", 64)
    window = PagedKV(layout, pages_of(layout, 1, 16), range(16), fused=True)
    span = spans_of(layout, 4, 1)
    window.scatter(span)
    passed = type(driver.current())
    monkeypatch.setattr(passed, "query", lambda self: False)
    assert [counted(driver, lambda: window.scatter(span))["pinned"] for _ in range(6)] == [
        *([0, 1] * 3)
    ]
    monkeypatch.setattr(passed, "query", lambda self: True)
    assert [counted(driver, lambda: window.scatter(span))["pinned"] for _ in range(6)] == [0] * 6


@each("version", [12_000, 13_000])
@each("into", [True, False])
@each("refuses", [True, False])
def test_pieces_cross_by_few_calls_and_each_byte_goes_to_its_place(version, into, refuses):
    driver = Recording(version=version)
    driver.library.refuses = refuses
    dice = random.Random(1)
    for places in ([0, 1, 2, 3], [5, 3, 1], [0, 1, 5, 6], [0, 2, 3, 7, 9], [4]):
        host = np.random.default_rng(0).integers(0, 256, 1000, np.uint8)
        there = torch.randint(0, 256, (1000,), dtype=torch.uint8)
        at = dice.sample(range(10), len(places)) if dice.random() < 0.5 else range(len(places))
        pairs = [(100 * place, 100 * other) for place, other in zip(places, at, strict=True)]
        home, wanted = host.ctypes.data, (there.numpy() if into else host).copy()
        for place, other in pairs:
            source, to = (host[place:], other) if into else (there.numpy()[other:], place)
            wanted[to : to + 48] = source[:48]
        pieces = [fused.Piece(home + place, other, 48) for place, other in pairs]
        driver.copy(pieces, there, None, into=into)
        assert ((there.numpy() if into else host) == wanted).all()
    assert not driver.library.error
    assert driver.counts["copies"] <= (10 if version == 13_000 and not refuses else 20)


SERDES = {
    "cachegen": LossySerde(CacheGen(LEVELS["default"], Choice())),
    "rans": RansSerde(Choice()),
    **{name: LossySerde(codec(LowBitChoice())) for name, codec in CODECS.items()},
}


@each("name", [*SERDES])
@each("layers", [None, range(1, 3)])
def test_encoded_chunks_are_few_launches_and_one_word_comes_back(monkeypatch, name, layers):
    driver, serde = recording(monkeypatch), SERDES[name]
    monkeypatch.setattr("hexkv.kernels.gpu.staging._LEAST", 1)  # so that they are several groups
    layout = KVLayout.attention(DType.BFLOAT16, layers=4, heads=2, key_width=16)
    window = PagedKV(layout, pages_of(layout, 32, 16), range(512), fused=True)
    raw = np.random.default_rng(0).normal(size=layout.chunk_bytes(32) // 4).astype(np.float32)
    raw = np.stack([raw, raw]).T.copy().view(np.uint16).reshape(-1)[1::2]  # as bfloat16
    chunk = memoryview(bytearray(raw.tobytes()))
    spans = []
    for number in range(16):
        payload = memoryview(bytearray(serde.bound(len(chunk))))
        used = serde.encode(chunk, layout, 32, payload)
        spans.append(EncodedSpan(32 * number, 32 * number + 32, payload[:used]))
    encoded._tables(driver.device)
    chosen = range(4) if layers is None else layers

    def load():
        assert window.scatter_encoded_layers(serde, spans, chosen).wait(deadline())

    for allocations in (3 + 1 + 2, 0):
        counts = counted(driver, load)
        assert 2 <= counts["launches"] <= 8
        assert not counts["bytes out"], "launches write the word where the host reads it"
        assert counts["copies"] <= 16
        assert counts["pinned"] <= (2 if allocations else 1), "the word, and once the ring"
        assert counts["allocations"] <= allocations
        assert counts["tables"] <= 2 + (2 if allocations else 0), "once planes and slots"
        assert counts["bytes in"] <= sum(len(span.payload) for span in spans)
    monkeypatch.undo()  # chunks of a layer are one group
    layer = partial(window.scatter_encoded_layers, serde, layers=range(1, 2))
    layer(spans)
    few, many = (functions(lambda some=some: layer(some)) for some in (spans[:1], spans))
    assert many - few <= 3 * 15, "of a payload its address, and a share of the batch"
    assert many <= 200
