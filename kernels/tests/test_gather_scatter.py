"""Both device windows against the token-by-token reference."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hexkv.contracts.cases import each
from hexkv.kernels import ContiguousKV, PagedKV, dtype_of, reference, torch_dtype
from hexkv.kernels.dtypes import bits
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
    window: DeviceKV
    tensors: list[list[torch.Tensor]]
    place: reference.Place
    spans: list[tuple[int, int]]
    layers: range


@st.composite
def layouts(draw):
    dtype = draw(st.sampled_from(list(DType)))
    size = st.integers(1, 5)
    groups = draw(
        st.lists(
            st.builds(
                LayerGroup,
                st.integers(1, 2),
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
    """Disjoint spans in ``[0, tokens]``."""
    return st.lists(st.integers(0, tokens), min_size=2, max_size=5).map(
        lambda marks: list(pairwise(sorted(marks)))
    )


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
            made.append(stored.permute(back)[:, :, spare:])
        tensors.append(made)
    return Case(
        ContiguousKV(layout, tensors),
        tensors,
        lambda layer, plane, at: tensors[layer][plane][0, :, at],
        draw(cuts(tokens)),
        draw(some_layers(layout)),
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
            page = random_bits(shape, layout.dtype, 10 * layer + index)
            made.append(page.transpose(1, 2) if heads_first else page)
        tensors.append(made)
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
        PagedKV(layout, tensors, slots),
        tensors,
        place,
        draw(cuts(len(slots))),
        draw(some_layers(layout)),
    )


def filled(case: Case, fill: int) -> list[Span]:
    layout = case.window.layout
    generator = torch.Generator().manual_seed(fill)
    return [
        Span(
            start,
            end,
            memoryview(
                bytearray(
                    torch.randint(
                        256, (layout.chunk_bytes(end - start),), generator=generator
                    ).tolist()
                )
            ),
        )
        for start, end in case.spans
    ]


@given(st.one_of(contiguous(), paged(holes=False)))
@settings(deadline=None)
def test_gather_fills_chunks_as_the_reference_does_and_touches_no_other_layer(case: Case):
    spans, expected = filled(case, 1), filled(case, 1)
    assert case.window.gather(spans, case.layers).wait(DONE)
    reference.gather(case.window.layout, case.place, expected, case.layers)
    assert [bytes(span.data) for span in spans] == [bytes(span.data) for span in expected]


@given(st.one_of(contiguous(), paged(holes=False), paged(holes=True)))
@settings(deadline=None)
def test_scatter_places_tokens_as_the_reference_does_and_touches_nothing_else(case: Case):
    spans = filled(case, 2)
    before = [[tensor.clone() for tensor in planes] for planes in case.tensors]
    assert case.window.scatter(spans, case.layers).wait(DONE)
    result = [[raw(tensor) for tensor in planes] for planes in case.tensors]
    for planes, old in zip(case.tensors, before, strict=True):
        for tensor, was in zip(planes, old, strict=True):
            tensor.copy_(was)
    reference.scatter(case.window.layout, case.place, spans, case.layers)
    for planes, want in zip(result, case.tensors, strict=True):
        for got, tensor in zip(planes, want, strict=True):
            assert torch.equal(got, raw(tensor))


@given(st.one_of(contiguous(), paged(holes=False)))
@settings(deadline=None)
def test_what_was_gathered_scatters_back_bit_for_bit(case: Case):
    spans = filled(case, 3)
    case.window.gather(spans)
    before = [[raw(tensor) for tensor in planes] for planes in case.tensors]
    for span in spans:
        for layer, planes in enumerate(case.tensors):
            for index in range(len(planes)):
                for at in range(span.start, span.end):
                    case.place(layer, index, at).zero_()
    case.window.scatter([Span(s.start, s.end, s.data.toreadonly()) for s in spans])
    for planes, old in zip(case.tensors, before, strict=True):
        for tensor, was in zip(planes, old, strict=True):
            assert torch.equal(raw(tensor), was)


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
