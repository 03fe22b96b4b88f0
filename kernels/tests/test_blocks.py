"""A window on whole blocks moves their bytes as they are, whatever lies in them."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hexkv.contracts.kit.cases import each
from hexkv.kernels import BlockKV, opaque_layout
from hexkv.ports import InvalidRequest, LayoutMismatch, Span

TOKENS = 4
ORDERS = [(0, 1, 2), (1, 0, 2), (2, 1, 0), (1, 2, 0)]


def pages(layers, blocks, order, dtype=torch.float32, seed=0):
    """``[blocks, heads, tokens, content]`` views whose memory is in another order."""
    made = torch.Generator().manual_seed(seed)
    shape = (blocks, 3, TOKENS * 2)
    stored = [shape[axis] for axis in order]
    back = [order.index(axis) for axis in range(3)]
    raw = [
        torch.randint(0, 256, (*stored, dtype.itemsize), generator=made, dtype=torch.uint8)
        for _ in range(layers)
    ]
    return [block.view(dtype)[..., 0].permute(back) for block in raw]


def bytes_of(tensor):
    return bytes(tensor.contiguous().flatten().view(torch.uint8).tolist())


def same(left, right):
    """Whether bytes are equal, without showing them."""
    return bytes(left) == bytes(right)


def layout_for(given):
    return opaque_layout(TOKENS, [page[0].numel() * page.element_size() for page in given])


@each("order", ORDERS)
@each("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.uint8])
def test_a_chunk_has_each_layers_blocks_one_after_the_other(order, dtype):
    given = pages(2, 6, order, dtype)
    layout = layout_for(given)
    window = BlockKV(layout, given, [5, 0, 3], TOKENS)
    chunk = bytearray(layout.chunk_bytes(2 * TOKENS))
    assert window.gather([Span(TOKENS, 3 * TOKENS, memoryview(chunk))])
    assert same(chunk, b"".join(bytes_of(page[at]) for page in given for at in (0, 3)))


@given(
    order=st.sampled_from(ORDERS),
    blocks=st.lists(st.integers(0, 7), unique=True, min_size=1, max_size=8),
    layers=st.sampled_from([None, range(1), range(1, 3), range(2, 2)]),
)
def test_what_was_gathered_is_scattered_to_the_blocks_of_another_window(order, blocks, layers):
    source, target = pages(3, 8, order), pages(3, 8, (0, 1, 2), seed=1)
    layout = layout_for(source)
    before = [page.clone() for page in target]
    size = len(blocks) * TOKENS
    chunk = bytearray(layout.chunk_bytes(size))
    BlockKV(layout, source, blocks, TOKENS).gather([Span(0, size, memoryview(chunk))])
    BlockKV(layout, target, blocks, TOKENS).scatter(
        [Span(0, size, memoryview(bytes(chunk)))], layers
    )
    moved = range(3) if layers is None else layers
    for layer in range(3):
        for block in range(8):
            wanted = source if layer in moved and block in blocks else before
            assert same(bytes_of(target[layer][block]), bytes_of(wanted[layer][block]))


@each("block", [4, -2])
def test_a_block_that_is_not_there_is_refused(block):
    given = pages(1, 4, (0, 1, 2))
    with pytest.raises(InvalidRequest, match="is not in"):
        BlockKV(layout_for(given), given, [0, block], TOKENS)


def test_pages_of_other_sizes_and_layouts_of_unequal_tokens_are_refused():
    given = pages(2, 4, (0, 1, 2))
    with pytest.raises(LayoutMismatch, match="blocks of"):
        BlockKV(layout_for(given), [given[0], given[1].narrow(1, 0, 2)], [0], TOKENS)
    with pytest.raises(LayoutMismatch, match="layers"):
        BlockKV(layout_for(given), given[:1], [0], TOKENS)
    with pytest.raises(LayoutMismatch, match="equal size"):
        opaque_layout(16, [100])
