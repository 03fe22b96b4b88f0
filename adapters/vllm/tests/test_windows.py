"""Whatever the shape and strides of vLLM's tensors, a chunk holds what the blocks hold."""

import pytest
import torch

from hexkv.adapters.vllm.configuration.windows import BlockPages, LayerShape, TokenPages, pages_of
from hexkv.contracts.kit.cases import each
from hexkv.ports import DType, KVLayout, LayoutMismatch, Span

BLOCKS, HEADS, TOKENS, WIDTH = 6, 2, 8, 4

ORDERS = {  # where each of layers, blocks, heads, tokens and content lies in memory
    "LBHNC": (0, 1, 2, 3, 4),
    "LBNHC": (0, 1, 3, 2, 4),
    "LHBNC": (0, 2, 1, 3, 4),
    "BLHNC": (1, 0, 2, 3, 4),
    "BLNHC": (1, 0, 3, 2, 4),
    "BHLNC": (1, 2, 0, 3, 4),
}


def caches(order="LBHNC", *, layers=3, heads=HEADS, width=2 * WIDTH, seed=0, dtype=torch.float16):
    """Views ``[blocks, heads, tokens, content]`` of one allocation, one for each layer."""
    sizes = (layers, BLOCKS, heads, TOKENS, width)
    way = ORDERS[order]
    made = torch.Generator().manual_seed(seed)
    memory = torch.randn([sizes[axis] for axis in way], generator=made).to(dtype)
    whole = memory.permute([way.index(axis) for axis in range(5)])
    return {f"layer.{i}": whole[i] for i in range(layers)}


def shapes(given, *, heads=HEADS, key=WIDTH, value=WIDTH, latent=0):
    size = TOKENS * heads * (key + value) * 2
    return {name: LayerShape(size, heads, key, value, latent) for name in given}


def pages(given, said=None, *, apart=False, count=BLOCKS):
    return pages_of(given, said or shapes(given), count=count, block=TOKENS, apart=apart)


def gathered(found, blocks, start=0, end=None):
    end = len(blocks) * TOKENS if end is None else end
    chunk = bytearray(found.layout.chunk_bytes(end - start))
    found.window(blocks, 0).gather([Span(start, end, memoryview(chunk))])
    return chunk


def equal(left, right):
    """Whether bytes are equal, without showing them."""
    return bytes(left) == bytes(right)


@each("order", ORDERS)
@each("apart", [False, True])
def test_a_chunk_is_the_same_from_every_layout(order, apart):
    plain = pages(caches(), apart=apart)
    found = pages(caches(order), apart=apart)
    assert type(found) is type(plain)
    assert found.layout == plain.layout
    same = caches("LBHNC")
    for name, cache in caches(order).items():
        same[name].copy_(cache)
    assert equal(gathered(found, [4, 1, 3]), gathered(pages(same, apart=apart), [4, 1, 3]))


@each("order", ORDERS)
@each("apart", [False, True])
def test_what_is_scattered_is_what_was_gathered_and_nothing_else_changes(order, apart):
    source, target = caches(order), caches(order, seed=1)
    before = {name: cache.clone() for name, cache in target.items()}
    chunk = gathered(pages(source, apart=apart), [4, 1, 3])
    window = pages(target, apart=apart).window([0, 5, 2], 0)
    window.scatter([Span(0, 3 * TOKENS, memoryview(chunk))])
    for name, cache in target.items():
        assert torch.equal(cache[[0, 5, 2]], source[name][[4, 1, 3]])
        assert torch.equal(cache[[1, 3, 4]], before[name][[1, 3, 4]])


@each("apart", [False, True])
def test_blocks_before_the_start_are_not_written(apart):
    source, target = caches(), caches(seed=1)
    before = {name: cache.clone() for name, cache in target.items()}
    chunk = gathered(pages(source, apart=apart), [0, 1])
    window = pages(target, apart=apart).window([2, 3], TOKENS)
    window.scatter([Span(0, 2 * TOKENS, memoryview(chunk))])
    for name, cache in target.items():
        assert torch.equal(cache[2], before[name][2])
        assert torch.equal(cache[3], source[name][1])


def test_where_tokens_lie_apart_a_chunk_is_cut_as_other_engines_cut_it():
    given = caches("BHLNC")
    found = pages(given, apart=True)
    assert isinstance(found, TokenPages)
    assert found.layout == KVLayout.attention(DType.FLOAT16, layers=3, heads=HEADS, key_width=WIDTH)
    wanted = [
        cache[[4, 1], :, :, part].permute(0, 2, 1, 3).reshape(2 * TOKENS, -1)[3:13]
        for cache in given.values()
        for part in (slice(0, WIDTH), slice(WIDTH, None))
    ]
    raw = b"".join(bytes(part.contiguous().view(torch.uint8).flatten().tolist()) for part in wanted)
    assert equal(gathered(found, [4, 1], 3, 13), raw)


@each("flat", [False, True])
def test_latent_attention_has_a_latent_plane_and_one_of_rope(flat):
    given = caches(layers=2, heads=1, width=12)
    if flat:  # [blocks, tokens, content], before 0.29
        given = {name: cache[:, 0] for name, cache in given.items()}
    said = shapes(given, heads=1, key=12, value=0, latent=8)
    found = pages(given, said, apart=True)
    assert found.layout == KVLayout.latent(DType.FLOAT16, layers=2, latent_width=8, rope_width=4)
    assert isinstance(pages(given, said), BlockPages)


def test_blocks_that_the_kernels_cut_into_pieces_are_moved_whole():
    given = caches()
    pieces = {
        name: cache.unflatten(2, (2, TOKENS // 2)).transpose(1, 2).flatten(0, 1)
        for name, cache in given.items()
    }
    assert pieces["layer.0"].shape == (BLOCKS * 2, HEADS, TOKENS // 2, 2 * WIDTH)
    opaque, apart = pages(pieces), pages(pieces, apart=True)
    target = {name: torch.zeros_like(cache) for name, cache in pieces.items()}
    chunk = gathered(opaque, [5, 0])
    pages(target).window([1, 2], 0).scatter([Span(0, 2 * TOKENS, memoryview(chunk))])
    for name, cache in target.items():
        assert torch.equal(cache[2:6], pieces[name][[10, 11, 0, 1]])
    assert equal(gathered(apart, [5, 0]), gathered(pages(given, apart=True), [5, 0]))


def test_content_that_is_packed_is_not_taken_apart():
    given = {name: cache.view(torch.int16) for name, cache in caches().items()}
    assert isinstance(pages(given, shapes(given), apart=True), BlockPages)


def test_tensors_that_are_not_what_vllm_says_are_refused():
    given = caches()
    wrong = {name: LayerShape(100, HEADS, WIDTH, WIDTH) for name in given}
    with pytest.raises(LayoutMismatch, match="but vLLM describes 100"):
        pages(given, wrong)
    with pytest.raises(LayoutMismatch, match="does not hold 5 blocks"):
        pages(given, count=5)
