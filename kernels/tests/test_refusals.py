"""Windows that would move the wrong bytes are refused, and so are such requests."""

from __future__ import annotations

import pytest
import torch

from hexkv.contracts.kit.cases import each
from hexkv.kernels import BlockKV, ContiguousKV, PagedKV, contiguous, dtype_of, opaque_layout
from hexkv.kernels.host import forms
from hexkv.ports import DType, InvalidRequest, KVLayout, LayoutMismatch, Span

LAYOUT = KVLayout.attention(DType.FLOAT32, layers=2, heads=2, key_width=3, value_width=4)


def sequence(tokens: int = 5) -> list[list[torch.Tensor]]:
    return [[torch.zeros(1, 2, tokens, 3), torch.zeros(1, 2, tokens, 4)] for _ in range(2)]


def pages() -> list[list[torch.Tensor]]:
    return [[torch.zeros(3, 4, 2, 3), torch.zeros(3, 4, 2, 4)] for _ in range(2)]


def chunk(tokens: int) -> memoryview:
    return memoryview(bytearray(LAYOUT.chunk_bytes(tokens)))


def spoiled(tensors, replacement):
    tensors[1][1] = replacement
    return tensors


@each(
    ("tensors", "reason"),
    [
        (sequence()[:1], "1 layers"),
        ([planes[:1] for planes in sequence()], "1 planes"),
        (spoiled(sequence(), torch.zeros(1, 2, 5, 4).half()), "float16"),
        (spoiled(sequence(), torch.zeros(1, 2, 5, 3)), "last of 4"),
        (spoiled(sequence(), torch.zeros(2, 5, 4)), "four dimensions"),
        (spoiled(sequence(), torch.zeros(1, 1, 5, 4)), "layer 1 plane 'v'"),
        (spoiled(sequence(), torch.zeros(2, 2, 5, 4)), "layer 1 plane 'v'"),
        (spoiled(sequence(), torch.zeros(1, 2, 6, 4)), "layer 1 plane 'v'"),
        (spoiled(sequence(), torch.zeros(1, 2, 5, 4, device="meta")), "'v' is on meta"),
        (spoiled(sequence(), torch.zeros(1, 2, 5, 4).to_sparse()), "'v' is torch.sparse_coo"),
        (spoiled(sequence(), [0.0]), "one tensor for each plane"),
        ([None, None], "one tensor for each plane"),
        (None, "one tensor for each plane"),
    ],
)
def test_a_sequence_of_another_shape_is_refused(tensors, reason):
    with pytest.raises(LayoutMismatch, match=reason):
        ContiguousKV(LAYOUT, tensors)


@each(
    ("tensors", "reason"),
    [
        (pages()[:1], "1 layers"),
        (spoiled(pages(), torch.zeros(3, 4, 1, 4)), "layer 1 plane 'v'"),
        (spoiled(pages(), torch.zeros(2, 4, 2, 4)), "layer 1 plane 'v'"),
        (spoiled(pages(), torch.zeros(3, 4, 2, 4, device="meta")), "on meta"),
        ([[torch.zeros(3, 0, 2, 3), torch.zeros(3, 0, 2, 4)] for _ in range(2)], "no token"),
        ([[None, None], ["k", "v"]], "one tensor for each plane"),
    ],
)
def test_pages_of_another_shape_are_refused(tensors, reason):
    with pytest.raises(LayoutMismatch, match=reason):
        PagedKV(LAYOUT, tensors, [0])


NO_DATA = [torch.zeros(4, dtype=torch.int64, device="meta"), torch.ones(4).long().to_sparse()]
WRONG = [[12], [-2], [0.5], [1j], [True], ["a"], [None], [[0]], [[0], [1, 2]], [2**70], None, 5]


@each("slots", [*WRONG, *NO_DATA, torch.tensor([2**40])])
def test_a_slot_mapping_that_is_none_or_leaves_the_pages_is_refused(slots):
    with pytest.raises(InvalidRequest):
        PagedKV(LAYOUT, pages(), slots)


BLOCKS = torch.zeros(3, 32, dtype=torch.uint8)


@each(
    ("pages", "blocks", "reason"),
    [
        (None, [0], "one tensor for each layer"),
        ([None], [0], "one tensor for each layer"),
        ([BLOCKS, BLOCKS], [0], "2 layers"),
        ([BLOCKS.to("meta")], [0], "layer 0 is on meta"),
        ([BLOCKS.to_sparse()], [0], "layer 0 is torch.sparse_coo"),
        ([BLOCKS], ["0"], "by their numbers"),
        ([BLOCKS], torch.zeros(2), "by their numbers"),
        ([BLOCKS], [3], "a block is not in"),
    ],
)
def test_blocks_without_bytes_or_numbers_are_refused(pages, blocks, reason):
    with pytest.raises(InvalidRequest, match=reason):
        BlockKV(opaque_layout(4, [32]), pages, blocks, 4)


def test_an_empty_slot_mapping_is_a_window_on_no_tokens():
    assert PagedKV(LAYOUT, pages(), []).tokens == 0


def together() -> list[list[torch.Tensor]]:
    """A sequence whose layers are in one allocation."""
    k, v = torch.zeros(2, 1, 2, 5, 3), torch.zeros(2, 1, 2, 5, 4)
    return [[k[layer], v[layer]] for layer in range(2)]


def resize(tensor: torch.Tensor) -> None:
    storage = tensor.untyped_storage()
    storage.resize_(2 * storage.nbytes())


def empty(tensor: torch.Tensor) -> None:
    tensor.untyped_storage().resize_(0)


@each(
    ("window", "made", "change"),
    [
        (lambda tensors: PagedKV(LAYOUT, tensors, range(5)), pages, empty),
        *[
            (lambda tensors: ContiguousKV(LAYOUT, tensors), made, change)
            for made in (sequence, together)
            for change in (
                empty,
                lambda tensor: setattr(tensor, "data", tensor.double()),
                lambda tensor: setattr(tensor, "data", tensor.view(torch.int32)),
                lambda tensor: setattr(tensor, "data", torch.ones(1, 2, 5, 8)),
                lambda tensor: tensor.transpose_(1, 2),
            )
        ],
    ],
)
def test_memory_that_changed_before_the_first_copy_is_not_touched(
    monkeypatch, window, made, change
):
    for device in {False, change is not empty}:  # by the code of other devices, too
        with monkeypatch.context() as patch:
            for module in (forms, contiguous) if device else ():
                patch.setattr(module, "reaches", lambda _: False)
            moving = window(tensors := made())
            change(tensors[1][1])
            for move in (moving.gather, moving.scatter):
                with pytest.raises(InvalidRequest, match="KV has"):
                    move([Span(0, 4, chunk(4))])


@each(
    ("window", "made", "change"),
    [
        (lambda tensors: PagedKV(LAYOUT, tensors, range(5)), pages, resize),
        *[
            (lambda tensors: ContiguousKV(LAYOUT, tensors), made, change)
            for made in (sequence, together)
            for change in (
                resize,
                lambda tensor: tensor.as_strided_((1, 2, 5, 4), (40, 4, 8, 1)),
                lambda tensor: tensor.transpose_(1, 2),
                lambda tensor: tensor.set_(torch.ones(1, 2, 5, 4)),
                lambda tensor: tensor.set_(torch.ones(1, 5, 2, 4).transpose(1, 2)),
                lambda tensor: setattr(tensor, "data", torch.ones(1, 2, 5, 4)),
            )
        ],
    ],
)
def test_memory_that_moved_after_the_first_copy_is_not_touched(window, made, change):
    window, span = window(tensors := made()), Span(0, 4, chunk(4))
    window.gather([span])
    change(tensors[1][1])
    for move in (window.gather, window.scatter):
        with pytest.raises(InvalidRequest, match="other memory"):
            move([span])


def test_a_dtype_that_the_ports_do_not_know_is_named():
    with pytest.raises(LayoutMismatch, match="complex64"):
        dtype_of(torch.complex64)
