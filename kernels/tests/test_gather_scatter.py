"""Both device windows against the token-by-token reference."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from itertools import pairwise
from unittest.mock import patch

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hexkv.contracts.kit.cases import each
from hexkv.kernels import (
    BlockKV,
    ContiguousKV,
    PagedKV,
    dtype_of,
    opaque_layout,
    reference,
    torch_dtype,
)
from hexkv.kernels.dtypes import bits
from hexkv.kernels.host import batches, forms, moves
from hexkv.ports import (
    Deadline,
    DeviceKV,
    DType,
    KVLayout,
    LayerGroup,
    Plane,
    Span,
)


class StoppedClock:
    def now(self) -> float:
        return 0.0

    def wall(self) -> float:
        return 0.0


DONE = Deadline(StoppedClock(), 1.0)


def random_bits(shape: tuple[int, ...], dtype: DType, seed: int) -> torch.Tensor:
    """Every bit pattern, NaNs and infinities included."""
    generator = torch.Generator().manual_seed(seed)
    size = math.prod(shape) * dtype.itemsize
    raw = torch.randint(0, 256, (size,), dtype=torch.uint8, generator=generator)
    return raw.view(torch_dtype(dtype)).view(shape)


def raw(tensor: torch.Tensor) -> torch.Tensor:
    """A copy that compares by bits, since a NaN equals nothing."""
    return tensor.view(bits(dtype_of(tensor.dtype))).clone()


@dataclass
class Case:
    layout: KVLayout
    make: Callable[[], DeviceKV]
    tensors: list[list[torch.Tensor]]
    place: reference.Place
    spans: list[tuple[int, int]]
    layers: range
    lie: str
    """Where the spans' data is: each in its own buffer, or one buffer has all in that order."""


@st.composite
def layouts(draw):
    dtype = draw(st.sampled_from(list(DType)))
    size = st.integers(1, 5)
    groups = draw(
        st.lists(
            st.builds(
                LayerGroup,
                st.integers(1, 4),
                st.lists(st.builds(Plane, st.just("p"), size, size), min_size=1, max_size=3).map(
                    tuple
                ),
            ),
            min_size=1,
            max_size=2,
        )
    )
    return KVLayout(dtype, tuple(groups))


def cuts(tokens: int):
    """Disjoint spans in ``[0, tokens]``: any, or chunks of one length and what is left."""
    anywhere = st.lists(st.integers(0, tokens), min_size=2, max_size=5).map(
        lambda marks: list(pairwise(sorted(marks)))
    )
    chunks = st.integers(1, 8).map(
        lambda size: [(at, min(at + size, tokens)) for at in range(0, tokens, size)]
    )
    return st.one_of(anywhere, chunks, chunks.flatmap(st.permutations))


LIES = st.sampled_from(["apart", "upwards", "downwards", "anyhow", "aslant"])


def allocated(draw, tensors):
    """*tensors* as they are, or those of one shape in one allocation: in order, or otherwise."""
    axis, order = draw(st.sampled_from([None, 0, 1])), draw(st.sampled_from(["", "planes", "none"]))
    if axis is None:
        return tensors
    flat = [tensor for given in tensors for tensor in given]
    whole = {}
    for shape in {tensor.shape for tensor in flat}:
        parts = list(torch.stack([t for t in flat if t.shape == shape], axis).unbind(axis))
        if order == "planes":  # of two: all of one before all of the other
            half = (len(parts) + 1) // 2
            parts = [parts[i % 2 * half + i // 2] for i in range(len(parts))]
        elif order:
            parts.sort(key=lambda part: part.storage_offset() * 7 % 11)
        whole[shape] = iter(parts)
    return [[next(whole[tensor.shape]) for tensor in given] for given in tensors]


def some_layers(layout: KVLayout):
    return st.tuples(st.integers(0, layout.layers), st.integers(0, layout.layers)).map(
        lambda ends: range(min(ends), max(ends))
    )


@st.composite
def contiguous(draw):
    layout = draw(layouts())
    tokens = draw(st.integers(0, 20))
    order = draw(st.sampled_from([(0, 1, 2, 3), (0, 2, 1, 3), (0, 3, 1, 2), (3, 2, 1, 0)]))
    spare = draw(st.integers(0, 3))
    back = [order.index(axis) for axis in range(4)]
    tensors = []
    for layer, planes in enumerate(layout.planes):
        made = []
        for index, plane in enumerate(planes):
            shape = (1, plane.heads, tokens + spare, plane.width)
            stored = random_bits(
                tuple(shape[axis] for axis in order), layout.dtype, 10 * layer + index
            )
            made.append(stored)
        tensors.append(made)
    tensors = allocated(draw, tensors)
    tensors = [[stored.permute(back)[:, :, spare:] for stored in given] for given in tensors]
    return Case(
        layout,
        lambda: ContiguousKV(layout, tensors),
        tensors,
        lambda layer, plane, at: tensors[layer][plane][0, :, at],
        draw(cuts(tokens)),
        draw(some_layers(layout)),
        draw(LIES),
    )


@st.composite
def paged(draw, holes: bool):
    layout = draw(layouts())
    block = draw(st.sampled_from([1, 2, 3, 4, 8]))
    blocks = draw(st.integers(1, 6))
    heads_first = draw(st.booleans())
    tensors = []
    for layer, planes in enumerate(layout.planes):
        made = []
        for index, plane in enumerate(planes):
            shape = (blocks, block, plane.heads, plane.width)
            if heads_first:
                shape = (blocks, plane.heads, block, plane.width)
            made.append(random_bits(shape, layout.dtype, 10 * layer + index))
        tensors.append(made)
    tensors = allocated(draw, tensors)
    if heads_first:
        tensors = [[page.transpose(1, 2) for page in given] for given in tensors]
    if draw(st.booleans()):
        order = draw(st.permutations(range(blocks)))
        slots = [one * block + offset for one in order for offset in range(block)]
    else:
        slots = list(draw(st.permutations(range(blocks * block))))
    slots = slots[draw(st.integers(0, len(slots))) :]
    if holes:
        slots = [-1 if draw(st.integers(0, 3)) == 0 else slot for slot in slots]

    def place(layer: int, plane: int, at: int) -> torch.Tensor | None:
        slot = slots[at]
        return None if slot < 0 else tensors[layer][plane][slot // block, slot % block]

    return Case(
        layout,
        lambda: PagedKV(layout, tensors, slots),
        tensors,
        place,
        draw(cuts(len(slots))),
        draw(some_layers(layout)),
        draw(LIES),
    )


def filled(case: Case, fill: int) -> list[Span]:
    layout = case.layout
    generator = torch.Generator().manual_seed(fill)
    sizes = [layout.chunk_bytes(end - start) for start, end in case.spans]
    rooms = [memoryview(bytearray(size)) for size in sizes]
    if case.lie != "apart" and sizes:
        # The slots of a pool; aslant, no element begins where elements do.
        slot = -(-max(sizes) // 8) * 8 + 16 + (case.lie == "aslant")
        region = memoryview(bytearray(slot * len(sizes) + 1))[1 if case.lie == "aslant" else 0 :]
        order = list(range(len(sizes)))
        if case.lie == "downwards":
            order.reverse()
        elif case.lie == "anyhow":
            order.sort(key=lambda i: (i * 7 + 3) % 11)
        rooms = [region[at * slot :][:size] for at, size in zip(order, sizes, strict=True)]
    for room in rooms:
        room[:] = bytes(torch.randint(256, (len(room),), generator=generator).tolist())
    return [Span(*cut, room) for cut, room in zip(case.spans, rooms, strict=True)]


def not_reached(tensor: torch.Tensor) -> bool:
    return False


@contextmanager
def by_torch():
    """CPU memory taken for that of a device that NumPy does not reach."""
    by_host = "hexkv.kernels.contiguous.reaches"
    with patch.object(forms, "reaches", not_reached), patch(by_host, not_reached):
        yield


@contextmanager
def in_pieces():
    """The limits of sizes so low that even these pieces are large."""
    with patch.multiple(moves, _SMALL=2, _ITEM=1, _INDEXED=1):
        yield


WAYS = st.sampled_from([nullcontext, by_torch, in_pieces])


@given(st.one_of(contiguous(), paged(holes=False)), WAYS)
@settings(deadline=None)
def test_gather_fills_chunks_as_the_reference_does_and_touches_no_other_layer(case: Case, way):
    spans, expected = filled(case, 1), filled(case, 1)
    with way():
        assert case.make().gather(spans, case.layers).wait(DONE)
    reference.gather(case.layout, case.place, expected, case.layers)
    assert [bytes(span.data) for span in spans] == [bytes(span.data) for span in expected]
    assert beside(spans) == beside(expected)


@given(st.one_of(contiguous(), paged(holes=False), paged(holes=True)), WAYS, st.booleans())
@settings(deadline=None)
def test_scatter_places_tokens_as_the_reference_does_and_touches_nothing_else(
    case: Case, way, shown
):
    spans = filled(case, 2)
    before = [[tensor.clone() for tensor in planes] for planes in case.tensors]
    with way():
        given = [span._replace(data=span.data.toreadonly()) if shown else span for span in spans]
        assert case.make().scatter(given, case.layers).wait(DONE)
    result = [[raw(tensor) for tensor in planes] for planes in case.tensors]
    for planes, old in zip(case.tensors, before, strict=True):
        for tensor, was in zip(planes, old, strict=True):
            tensor.copy_(was)
    reference.scatter(case.layout, case.place, spans, case.layers)
    for planes, want in zip(result, case.tensors, strict=True):
        for got, tensor in zip(planes, want, strict=True):
            assert torch.equal(got, raw(tensor))


def beside(spans: list[Span]) -> list[bytes]:
    """Everything in the buffers that spans are parts of."""
    return [bytes(span.data.obj) for span in spans]


@each("order", ["upwards", "downwards", "anyhow", "aslant"])
@each("kind", ["pages", "blocks", "sequence"])
def test_small_chunks_of_a_pool_move_in_one_call_for_each_plane(kind, order, monkeypatch):
    """As SGLang's pages: of 64 chunks and eight layers, each plane moves at once."""
    layout = KVLayout.attention(DType.BFLOAT16, layers=8, heads=2, key_width=8, value_width=4)
    if kind == "blocks":
        layout = opaque_layout(4, [192] * 8)
    case = Case(layout, lambda: None, [], lambda *_: None, chunks_of(64, 4), range(8), order)
    whole = [torch.zeros(8, 64, 4, 2, 2 * width, dtype=torch.uint8) for width in (8, 4)]
    if kind == "blocks":
        window = BlockKV(layout, [*torch.zeros(8, 64, 192, dtype=torch.uint8)], range(64), 4)
    else:
        planes = [each.view(torch.bfloat16) for each in whole]
        pages = [[plane[layer] for plane in planes] for layer in range(8)]
        if kind == "pages":
            window = PagedKV(layout, pages, torch.arange(256).flip(0).view(64, 4).flip(1).flatten())
        else:
            tensors = [[p.reshape(1, 256, 2, -1).transpose(1, 2) for p in given] for given in pages]
            window = ContiguousKV(layout, tensors)
    calls = []
    for move in (moves.Run, moves.Scattered):
        for name in ("gather", "scatter"):
            real = getattr(move, name)
            monkeypatch.setattr(
                move, name, lambda self, *a, real=real: calls.append(self) or real(self, *a)
            )
    monkeypatch.setattr(batches.Batch, "each", None)  # nothing goes chunk by chunk
    sent = filled(case, 5)
    assert window.scatter(sent).wait(DONE)
    assert len(calls) == (1 if kind == "blocks" else 2)
    back = filled(case, 6)
    assert window.gather(back).wait(DONE)
    assert [bytes(span.data) for span in back] == [bytes(span.data) for span in sent]
    assert len(calls) == (2 if kind == "blocks" else 4)


def chunks_of(count: int, size: int) -> list[tuple[int, int]]:
    return [(at * size, (at + 1) * size) for at in range(count)]


def test_windows_are_devices_of_the_port():
    layout = KVLayout.attention(DType.FLOAT32, layers=1, heads=1, key_width=2)
    page = torch.zeros(1, 1, 1, 2)
    window = ContiguousKV(layout, [[page, page]])
    pages = PagedKV(layout, [[page, page]], [0])
    assert isinstance(window, DeviceKV)
    assert isinstance(pages, DeviceKV)
    assert (window.layout, window.tokens, pages.layout, pages.tokens) == (layout, 1, layout, 1)


def test_a_window_made_in_inference_mode_can_be_written_outside_of_it():
    layout = KVLayout.attention(DType.FLOAT32, layers=1, heads=1, key_width=2)
    with torch.inference_mode():
        sequence = [[torch.zeros(1, 1, 4, 2), torch.zeros(1, 1, 4, 2)]]
        pages = [[torch.zeros(2, 2, 1, 2), torch.zeros(2, 2, 1, 2)]]
        windows = [ContiguousKV(layout, sequence), PagedKV(layout, pages, [2, 3, 0, 1])]
    data = memoryview(bytearray(torch.arange(16.0).view(torch.uint8).tolist()))
    for window in windows:
        window.scatter([Span(0, 4, data)])
    assert sequence[0][0].flatten().tolist() == [0, 1, 2, 3, 4, 5, 6, 7]
    assert pages[0][1].flatten().tolist() == [12, 13, 14, 15, 8, 9, 10, 11]


def test_a_run_of_slots_that_starts_inside_a_block_is_not_taken_for_whole_blocks():
    layout = KVLayout(DType.FLOAT32, (LayerGroup(1, (Plane("k", 1, 2),)),))
    pages = [[torch.arange(16.0).view(2, 4, 1, 2)]]
    data = memoryview(bytearray(layout.chunk_bytes(4)))
    PagedKV(layout, pages, [1, 2, 3, 4]).gather([Span(0, 4, data)])
    assert data.cast("f").tolist() == [2, 3, 4, 5, 6, 7, 8, 9]


@each("dtype", list(DType))
def test_every_dtype_of_the_ports_has_its_torch_dtype(dtype: DType):
    assert dtype_of(torch_dtype(dtype)) is dtype
    assert torch.empty(0, dtype=torch_dtype(dtype)).element_size() == dtype.itemsize
