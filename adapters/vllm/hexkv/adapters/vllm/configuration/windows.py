"""Recognises vLLM's KV tensors by their shapes, and makes windows on them.

vLLM gives each layer a tensor that may be a strided view of one allocation for all. Since
0.29 it is ``[blocks, heads, tokens, content]`` whatever the order in memory; before, and for
latent attention, the dimensions were others. Blocks that are whole can be moved in any case.
Where the tokens in a block are known to lie apart, as they do on NVIDIA GPUs, a chunk is cut
as any other engine cuts it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from hexkv.kernels.blocks import NOWHERE, BlockKV, BlockMemory, opaque_layout
from hexkv.kernels.dtypes import dtype_of
from hexkv.kernels.paged import PagedKV, PagedMemory
from hexkv.ports import DeviceKV, KVLayout, LayoutMismatch


@dataclass(frozen=True, slots=True)
class LayerShape:
    """vLLM's description of one layer's KV: part of its ``AttentionSpec``."""

    block_bytes: int
    """Bytes of one block, without padding."""

    heads: int
    key_width: int
    value_width: int
    """Elements of one head; 0 where there are no values (latent attention)."""

    latent_width: int = 0
    """Elements of the latent part, in latent attention; the rest of ``key_width`` is RoPE's."""


class BlockPages:
    """KV of which only whole blocks are understood."""

    def __init__(self, layout: KVLayout, pages: Sequence[torch.Tensor], block: int) -> None:
        """Use ``pages[layer]`` of *block* tokens each.

        Raises:
            LayoutMismatch: they are not the layout's.
        """
        self.layout = layout
        self.block = block
        self._memory = BlockMemory(layout, pages, block)

    def window(self, blocks: Sequence[int], start: int) -> DeviceKV:
        """A window on *blocks*; those before position *start* have no place in it."""
        kept = start // self.block
        return BlockKV.on(self._memory, [*[NOWHERE] * kept, *blocks[kept:]])


class TokenPages:
    """KV of which every token is understood."""

    def __init__(
        self, layout: KVLayout, pages: Sequence[Sequence[torch.Tensor]], block: int
    ) -> None:
        """Use ``pages[layer][plane]`` of *block* tokens each.

        Raises:
            LayoutMismatch: they are not the layout's.
        """
        self.layout = layout
        self.block = block
        self._memory = PagedMemory(layout, pages)

    def window(self, blocks: Sequence[int], start: int) -> DeviceKV:
        """A window on *blocks*; those before position *start* have no place in it."""
        slots = torch.tensor(blocks)[:, None] * self.block + torch.arange(self.block)
        slots = slots.flatten()
        slots[:start] = NOWHERE
        return PagedKV.on(self._memory, slots)


Pages = BlockPages | TokenPages


def pages_of(
    caches: Mapping[str, torch.Tensor],
    shapes: Mapping[str, LayerShape],
    *,
    count: int,
    block: int,
    apart: bool,
) -> Pages:
    """The windows that fit the KV tensors of a model.

    Args:
        caches: by layer, in the order of the layers.
        shapes: vLLM's description of them.
        count: blocks that vLLM gives out.
        block: tokens in a block.
        apart: True if the tokens in a block are known to lie apart from each other.

    Raises:
        LayoutMismatch: the tensors do not match vLLM's description.
    """
    whole = [by_block(caches[name], count) for name in caches]
    for name, page in zip(caches, whole, strict=True):
        size, expected = page[0].numel() * page.element_size(), shapes[name].block_bytes
        if size != expected:
            raise LayoutMismatch(f"{name}: a block has {size} bytes, but vLLM describes {expected}")
    if apart:
        planes = {name: _planes(caches[name], shapes[name], count, block) for name in caches}
        known = {name: found for name, found in planes.items() if found is not None}
        layouts = {_layout_of(found, shapes[name]) for name, found in known.items()}
        if len(known) == len(planes) and len(layouts) == 1:
            (single,) = layouts
            group = single.groups[0]
            layout = KVLayout(single.dtype, (type(group)(len(planes), group.planes),))
            return TokenPages(layout, list(known.values()), block)
    sizes = [shapes[name].block_bytes for name in caches]
    return BlockPages(opaque_layout(block, sizes), whole, block)


def by_block(cache: torch.Tensor, count: int) -> torch.Tensor:
    """*cache* as ``[count, ...]``: vLLM's own kernels may cut each block into several.

    Raises:
        LayoutMismatch: no dimension counts blocks.
    """
    if cache.dim() > 1 and cache.shape[0] != count and cache.shape[1] == count:
        return cache.transpose(0, 1)  # [2, blocks, ...]
    if cache.shape[0] % count:
        raise LayoutMismatch(f"a tensor of shape {tuple(cache.shape)} does not hold {count} blocks")
    return cache if cache.shape[0] == count else cache.view(count, -1, *cache.shape[1:])


def _planes(
    cache: torch.Tensor, shape: LayerShape, count: int, block: int
) -> list[torch.Tensor] | None:
    """``[blocks, tokens, heads, width]`` of each plane; ``None`` if the tensor is another thing."""
    if not cache.is_floating_point() or cache.element_size() < 2:
        return None  # quantised: content and scales, in some order
    if cache.dim() == 3 and shape.latent_width:
        cache = cache.unsqueeze(1)
    if cache.dim() != 4 or cache.shape[1] != shape.heads:
        return None
    if cache.shape[0] * cache.shape[2] != count * block:
        return None
    if cache.shape[3] != shape.key_width + shape.value_width:
        return None
    first = shape.latent_width or shape.key_width
    rows = cache.permute(0, 2, 1, 3)
    return [rows[..., :first], rows[..., first:]]


def _layout_of(planes: Sequence[torch.Tensor], shape: LayerShape) -> KVLayout:
    dtype, (first, second) = dtype_of(planes[0].dtype), (plane.shape[-1] for plane in planes)
    if shape.latent_width:
        return KVLayout.latent(dtype, layers=1, latent_width=first, rope_width=second)
    return KVLayout.attention(
        dtype, layers=1, heads=shape.heads, key_width=first, value_width=second
    )
