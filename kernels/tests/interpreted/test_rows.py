"""Windows whose layers move in one launch do what the token-by-token reference says."""

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from depth import covering, examples
from devices.raw_pages import RawPages
from hexkv.contracts.device import DeviceContract, Holed
from hexkv.contracts.doubles import deadline
from hexkv.kernels import (
    NOWHERE,
    BlockKV,
    ContiguousKV,
    PagedKV,
    opaque_layout,
    reference,
    torch_dtype,
)
from hexkv.kernels.dtypes import bits
from hexkv.kernels.gpu import staging
from hexkv.kernels.in_triton import rows as kernel
from hexkv.kernels.in_triton.rows import word_of
from hexkv.ports import DType, InvalidRequest, KVLayout, LayerGroup, Plane, Span

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture(autouse=True, scope="module")
def groups_of_one_chunk():
    """Each chunk has a buffer and a launch of its own: they take turns in every call."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(staging, "BUFFER", 1)
        yield


SOME = settings(max_examples=examples(8))

ORDERS = {
    "NHD": (0, 1, 2, 3),
    "HND": (0, 2, 1, 3),
    "heads outermost": (2, 0, 1, 3),
    "tokens outermost": (1, 0, 2, 3),
}
"""In which order memory has the dimensions of ``[blocks, block, heads, width]``."""


def noise(shape, dtype, seed):
    made = torch.Generator().manual_seed(seed)
    raw = torch.randint(0, 256, (math.prod(shape) * dtype.itemsize,), generator=made)
    return raw.to(torch.uint8).view(torch_dtype(dtype)).view(shape)


def stored(shape, order, dtype, seed):
    """A tensor of *shape* whose memory has its dimensions in *order*, on the device."""
    back = [order.index(axis) for axis in range(len(order))]
    return noise([shape[axis] for axis in order], dtype, seed).to(DEVICE).permute(back)


def chunk(layout, tokens, seed):
    made = torch.Generator().manual_seed(seed)
    return bytearray(torch.randint(256, (layout.chunk_bytes(tokens),), generator=made).tolist())


@st.composite
def layouts(draw):
    size = st.integers(1, 9)
    planes = st.lists(st.builds(Plane, st.just("p"), size, size), min_size=1, max_size=3)
    groups = st.lists(
        st.builds(LayerGroup, st.integers(1, 2), planes.map(tuple)), min_size=1, max_size=2
    )
    return KVLayout(draw(st.sampled_from(list(DType))), tuple(draw(groups)))


@st.composite
def windows(draw):
    """A window, its memory, where a token lives, and some spans and layers."""
    layout = draw(layouts())
    contiguous, direct = draw(st.booleans()), draw(st.booleans())
    block, blocks = (20, 1) if contiguous else (draw(st.sampled_from([1, 3, 4])), 6)
    order = ORDERS[draw(st.sampled_from(sorted(ORDERS)))]
    pages = [
        [
            stored((blocks, block, p.heads, p.width), order, layout.dtype, 10 * layer + at)
            for at, p in enumerate(planes)
        ]
        for layer, planes in enumerate(layout.planes)
    ]
    if contiguous:
        slots = list(range(block))
        tensors = [[page.transpose(1, 2) for page in given] for given in pages]
        window = ContiguousKV(layout, tensors, fused=True, direct=direct)
    else:
        slots = list(draw(st.permutations(range(blocks * block))))
        slots = [slot if draw(st.integers(0, 9)) else -1 for slot in slots]
        window = PagedKV(layout, pages, slots, fused=True, direct=direct)

    def place(layer, plane, at):
        slot = slots[at]
        return None if slot < 0 else pages[layer][plane][slot // block, slot % block]

    marks = sorted(draw(st.lists(st.integers(0, len(slots)), min_size=2, max_size=9)))
    ends = sorted(draw(st.tuples(*[st.integers(0, layout.layers)] * 2)))
    return window, pages, place, slots, list(pairwise(marks)), range(*ends)


@SOME
@given(windows())
def test_gather_does_what_the_reference_does(case):
    window, _, place, slots, cuts, layers = case
    cuts = [(start, end) for start, end in cuts if min(slots[start:end], default=0) >= 0]
    found, wanted = (
        [Span(*cut, memoryview(chunk(window.layout, cut[1] - cut[0], 1))) for cut in cuts]
        for _ in range(2)
    )
    assert window.gather(found, layers).wait(deadline())
    reference.gather(window.layout, lambda *where: place(*where).cpu(), wanted, layers)
    assert all(one.data == other.data for one, other in zip(found, wanted, strict=True))


@SOME
@given(windows())
def test_scatter_does_what_the_reference_does_and_touches_nothing_else(case):
    window, pages, place, _, cuts, layers = case
    words = [page.view(bits(window.layout.dtype)) for given in pages for page in given]
    before = [word.clone() for word in words]
    spans = [
        Span(start, end, memoryview(bytes(chunk(window.layout, end - start, start))))
        for start, end in cuts
    ]
    assert window.scatter(spans, layers).wait(deadline())
    after = [word.clone() for word in words]
    for word, old in zip(words, before, strict=True):
        word.copy_(old)
    writable = [span._replace(data=memoryview(bytearray(span.data))) for span in spans]
    reference.scatter(window.layout, place, writable, layers)
    assert all(map(torch.equal, words, after))


def pinned(size):
    """Memory of the host that launches reach."""
    return torch.zeros(size, dtype=torch.uint8, pin_memory=torch.cuda.is_available())


@pytest.mark.parametrize("direct", [True, False])
@pytest.mark.parametrize("layers", [range(3), range(1, 2)])
@pytest.mark.parametrize("skipped", [0, 1])
def test_launches_go_to_the_hosts_memory_where_they_may_and_can(
    direct, layers, skipped, monkeypatch
):
    """Both ways, all layers or one; memory that words do not fit into is copied."""
    layout = KVLayout.attention(DType.BFLOAT16, layers=3, heads=2, key_width=8)
    pages = [
        [noise((5, 4, 2, 8), layout.dtype, 10 * layer + plane).to(DEVICE) for plane in range(2)]
        for layer in range(3)
    ]
    slots = [*range(8, 20), *range(4)]
    window = PagedKV(layout, pages, slots, fused=True, direct=direct)
    size = layout.chunk_bytes(16)
    host = pinned(size + 8)[skipped : size + skipped]
    data = memoryview(host.numpy())
    launched, move = [], kernel.move

    def spy(driver, planes, chunks, *given, **more):
        launched.append(int(chunks[0]))
        move(driver, planes, chunks, *given, **more)

    monkeypatch.setattr(kernel, "move", spy)
    assert window.gather([Span(0, 16, data)], layers).wait(deadline())
    first, last = layout.layer_span(layers.start, 16)[0], layout.layer_span(layers.stop - 1, 16)[1]
    planes = [page for layer in layers for page in pages[layer]]
    rows = torch.cat([page.flatten(0, 1)[slots].flatten() for page in planes]).cpu()
    assert torch.equal(host[first:last], rows.view(torch.uint8))
    for page in planes:
        page.view(torch.int16)[:] = 7
    assert window.scatter([Span(0, 16, data)], layers).wait(deadline())
    back = torch.cat([page.flatten(0, 1)[slots].flatten() for page in planes]).cpu()
    assert torch.equal(back.view(torch.int16), rows.view(torch.int16))
    there = host.data_ptr() + first
    assert (launched == [there, there]) is (direct and not skipped)


def test_a_hole_is_not_gathered():
    layout = KVLayout.attention(DType.BFLOAT16, layers=2, heads=1, key_width=4)
    pages = [[torch.zeros(3, 4, 1, 4, dtype=torch.bfloat16, device=DEVICE)] * 2] * 2
    window = PagedKV(layout, pages, [0, -1, 2], fused=True)
    with pytest.raises(InvalidRequest, match="no slot"):
        window.gather([Span(0, 3, memoryview(chunk(layout, 3, 0)))])


def test_latent_attention_has_planes_of_unlike_widths():
    layout = KVLayout.latent(DType.BFLOAT16, layers=2, latent_width=512, rope_width=64)
    whole = [noise((7, 4, 1, 576), layout.dtype, layer).to(DEVICE) for layer in range(2)]
    pages = [[page[..., :512], page[..., 512:]] for page in whole]
    window = PagedKV(layout, pages, range(5, 22), fused=True)
    data = chunk(layout, 17, 0)
    assert window.gather([Span(0, 17, memoryview(data))]).wait(deadline())
    rows = [page.flatten(0, 1)[5:22].cpu() for page in whole]
    parts = [part for row in rows for part in (row[..., :512], row[..., 512:])]
    wanted = b"".join(part.contiguous().view(torch.uint8).numpy().tobytes() for part in parts)
    assert (bytes(data) == wanted) is True


def test_words_are_as_wide_as_everything_allows():
    def rows(width, skip, dtype):
        return torch.zeros(3, 4, 2, 16, dtype=dtype)[..., skip : skip + width]

    assert word_of([rows(8, 0, torch.int16)]) == (8, 2)
    assert word_of([rows(4, 0, torch.int16)]) == (8, 1)
    assert word_of([rows(8, 0, torch.int16), rows(2, 4, torch.int16)]) == (4, 1)
    assert word_of([rows(3, 1, torch.uint8)]) == (1, 1)
    assert word_of([rows(8, 0, torch.int16).transpose(2, 3)]) == (0, 0)


class TestPagedByOneLaunch(DeviceContract):
    layout = KVLayout.attention(DType.BFLOAT16, layers=2, heads=2, key_width=4, value_width=2)
    block = 4

    @pytest.fixture
    def both(self):
        slots = [b * self.block + at for b in (5, 2, 6, 0, 3, 1, 4) for at in range(self.block)]
        return self.window(slots[:-1])

    @pytest.fixture
    def device(self, both):
        return both[0]

    @pytest.fixture
    def raw(self, both):
        return both[1]

    @pytest.fixture
    def holed(self):
        slots = [-1 if at in (5, 13) else at for at in range(26)]
        return Holed(*self.window(slots), {5, 13})

    def window(self, slots):
        words = [
            [torch.zeros(7, self.block, p.heads, p.width, dtype=torch.int16) for p in planes]
            for planes in self.layout.planes
        ]
        words = [[word.to(DEVICE) for word in given] for given in words]

        def place(layer, plane, at):
            return words[layer][plane], divmod(slots[at], self.block)

        pages = [[word.view(torch.bfloat16) for word in given] for given in words]
        return (
            PagedKV(self.layout, pages, slots, fused=True),
            RawPages([word for given in words for word in given], place),
        )


@pytest.mark.parametrize(
    "order", [(0, 1, 2, 3), (0, 2, 1, 3), (1, 0, 2, 3), (2, 1, 0, 3), (0, 1, 3, 2)]
)
@pytest.mark.parametrize("fused", [True, False])
def test_opaque_blocks_go_whatever_their_strides(order, fused):
    """The last order has its bytes apart, and takes torch's way."""
    pages = [stored((6, 3, 2, 8), order, DType.UINT8, layer) for layer in range(2)]
    layout = opaque_layout(4, [48, 48])
    blocks = [4, NOWHERE, 0]
    window = BlockKV(layout, pages, blocks, 4, fused=fused)
    data = chunk(layout, 12, 3)
    before = [page.clone() for page in pages]
    assert window.scatter([Span(0, 12, memoryview(data))]).wait(deadline())
    sent = torch.frombuffer(data, dtype=torch.uint8).view(2, 3, 3, 2, 8)
    for layer, page in enumerate(pages):
        wanted = before[layer].cpu()
        wanted[4], wanted[0] = sent[layer, 0], sent[layer, 2]
        assert torch.equal(page.cpu(), wanted)
    back = chunk(layout, 4, 4)
    assert window.gather([Span(8, 12, memoryview(back))]).wait(deadline())
    assert bytes(back) == b"".join(sent[layer, 2].numpy().tobytes() for layer in range(2))


def test_opaque_blocks_of_unlike_shapes_take_torchs_way():
    pages = [stored((6, 2, 2, 2), (0, 2, 1, 3), DType.UINT8, 0)]
    pages.append(stored((6, 4, 2, 2), (0, 2, 1, 3), DType.UINT8, 1))
    layout = opaque_layout(4, [8, 16])
    data = chunk(layout, 4, 0)
    assert BlockKV(layout, pages, [3], 4, fused=True).gather([Span(0, 4, memoryview(data))])
    assert bytes(data) == b"".join(page[3].cpu().contiguous().numpy().tobytes() for page in pages)


BLOCKS, BLOCK, HEADS, WIDTH, LAYERS = 6, 4, 2, 8, 3
SIZES = dict(zip("LBHNC", (LAYERS, BLOCKS, HEADS, BLOCK, 2 * WIDTH), strict=True))


def packed(order):
    """Every layer's K and V out of one allocation, as vLLM 0.29 and later keep them.

    *order* has the layers, blocks, heads, tokens of a block and content from the outermost to
    the innermost; a layer is seen as ``[B, H, N, C]``, and its content is K, then V.
    """
    whole = noise([SIZES[axis] for axis in order], DType.BFLOAT16, 0).to(DEVICE)
    layers = whole.permute([order.index(axis) for axis in "LBHNC"])
    return [
        [part.transpose(1, 2) for part in (layer[..., :WIDTH], layer[..., WIDTH:])]
        for layer in layers
    ]


def split(shape, pages):
    """One allocation for each layer, as versions before had them; *pages* shows K or V of it."""
    made = [noise(shape, DType.BFLOAT16, layer).to(DEVICE) for layer in range(LAYERS)]
    return [[pages(layer, plane) for plane in range(2)] for layer in made]


VLLM = {
    **{
        order: lambda order=order: packed(order)
        for order in ("LBHNC", "LBNHC", "LHBNC", "BLHNC", "BLNHC", "BHLNC")
    },
    "2BNHD": lambda: split((2, BLOCKS, BLOCK, HEADS, WIDTH), lambda kv, plane: kv[plane]),
    "B2NHD": lambda: split((BLOCKS, 2, BLOCK, HEADS, WIDTH), lambda kv, plane: kv[:, plane]),
    "2BHND": lambda: split(
        (2, BLOCKS, HEADS, BLOCK, WIDTH), lambda kv, plane: kv[plane].transpose(1, 2)
    ),
    "B2HND": lambda: split(
        (BLOCKS, 2, HEADS, BLOCK, WIDTH), lambda kv, plane: kv[:, plane].transpose(1, 2)
    ),
}


@pytest.mark.parametrize(("order", "fused"), covering(VLLM, [True, False]))
def test_every_layout_of_vllm_goes_there_and_back(order, fused):
    layout = KVLayout.attention(DType.BFLOAT16, layers=LAYERS, heads=HEADS, key_width=WIDTH)
    pages = VLLM[order]()
    slots = [block * BLOCK + at for block in (4, 0, 3) for at in range(BLOCK)]
    window = PagedKV(layout, pages, slots, fused=fused)
    for start, end, layers in ((0, 12, range(LAYERS)), (3, 10, range(1, 2)), (4, 8, range(2))):
        data, wanted = (memoryview(chunk(layout, end - start, 0)) for _ in range(2))
        assert window.gather([Span(start, end, data)], layers).wait(deadline())
        reference.gather(
            layout,
            lambda layer, plane, at: pages[layer][plane][divmod(slots[at], BLOCK)].cpu(),
            [Span(start, end, wanted)],
            layers,
        )
        assert (data == wanted) is True
        before = [page.clone() for planes in pages for page in planes]
        for planes in pages:
            for page in planes:
                page.view(torch.int16)[:] ^= -1
        assert window.scatter([Span(start, end, data)], layers).wait(deadline())
        mine = torch.zeros(BLOCKS * BLOCK, dtype=torch.bool, device=DEVICE)
        mine[slots[start:end]] = True
        for at, (page, old) in enumerate(zip((p for g in pages for p in g), before, strict=True)):
            kept = mine if at // 2 in layers else torch.zeros_like(mine)
            bits_now, bits_then = (one.flatten(0, 1).view(torch.int16) for one in (page, old))
            assert torch.equal(bits_now[kept], bits_then[kept])
            assert torch.equal(bits_now[~kept], ~bits_then[~kept])
