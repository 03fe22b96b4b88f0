"""Windows on SGLang's host pools: page by page, whatever the order in memory.

Of a pool whose pages are understood, a chunk is cut as any other engine cuts it. Of any other
one, pages are moved as SGLang itself flattens them.

| ``layout`` | keys and values apart, each | latent attention |
| --- | --- | --- |
| ``layer_first`` | ``[layers, slots, heads, width]`` | ``[layers, slots, 1, width]`` |
| ``page_first`` | ``[slots, layers, heads, width]`` | ``[slots, layers, 1, width]`` |
| ``page_first_direct`` | ``[pages, layers, page, heads, width]`` | the same, one head |
| ``page_head`` | ``[pages, heads, page, layers, width]`` | |
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

import torch

from hexkv.kernels.blocks import BlockKV, opaque_layout
from hexkv.kernels.dtypes import dtype_of
from hexkv.kernels.paged import PagedKV, PagedMemory
from hexkv.ports import DeviceKV, KVLayout, LayoutMismatch

_HEADS = {"MHATokenToKVPoolHost", "AsymmetricMHATokenToKVPoolHost"}
_LATENT = {"MLATokenToKVPoolHost"}
"""Classes by name: others derive from them and keep more than they do (scales, indexes)."""

_ORDERED = {
    "layer_first": (0, 1, 2, 3, 4),
    "page_first": (0, 2, 1, 3, 4),
    "page_first_direct": (0, 1, 2, 3, 4),
    "page_head": (0, 3, 2, 1, 4),
}
"""How a page's dimensions become ``[pages, layers, tokens, heads, width]``."""


@runtime_checkable
class FlatPool(Protocol):
    """A host pool of SGLang, as far as every kind is alike."""

    page_size: int
    layout: str
    dtype: torch.dtype

    def get_data_page(self, index: int, flat: bool = True) -> torch.Tensor: ...
    def get_dummy_flat_data_page(self) -> torch.Tensor: ...
    def set_from_flat_data_page(self, index: int, data_page: torch.Tensor) -> None: ...


class HostPages:
    """A pool whose pages are understood: moved between its memory and chunks in one go."""

    opaque = False
    pieces = 1

    def __init__(self, pool: FlatPool) -> None:
        """Use *pool*.

        Raises:
            LayoutMismatch: its tensors do not match its description.
        """
        self.page = int(pool.page_size)
        self._order = pool.layout
        self._widths: tuple[int, ...] = ()
        if type(pool).__name__ in _HEADS:
            halves = [pool.k_buffer, pool.v_buffer]  # type: ignore[attr-defined]
            self._planes = [self._of_pool(half) for half in halves]
        else:
            [both] = [self._of_pool(pool.kv_buffer)]  # type: ignore[attr-defined]
            self._widths = (int(pool.kv_lora_rank), int(pool.qk_rope_head_dim))  # type: ignore[attr-defined]
            self._planes = self._apart(both)
        self.layout = layout_of(self._planes, latent=bool(self._widths))
        self._memory = memory_of(self.layout, self._planes)

    def window(self, indices: Sequence[int]) -> DeviceKV:
        """A window on pages, each by the index of its first slot."""
        return window_on(self._memory, [index // self.page for index in indices])

    def fill(self, indices: Sequence[int], read: Callable[[DeviceKV], int]) -> int:
        """Let *read* load pages into a window on them. Return the number that it loaded."""
        return read(self.window(indices))

    def flat_window(self, pages: Sequence[torch.Tensor]) -> tuple[DeviceKV, torch.Tensor]:
        """A window on a copy of *pages*, flattened by SGLang, and the copy ``[pages, ...]``.

        Raises:
            LayoutMismatch: they have another size or dtype.
        """
        size = self.layout.chunk_bytes(self.page) // self.layout.dtype.itemsize
        for page in pages:
            if page.numel() != size or page.dtype != self._planes[0].dtype:
                raise LayoutMismatch(f"a page of {page.numel()} {page.dtype}, not {size}")
        copy = torch.stack([page.reshape(-1) for page in pages])
        if self._widths:
            planes = self._apart(self._of_pages(copy, sum(self._widths)))
        else:
            halves = copy.view(len(pages), 2, -1).unbind(1)
            planes = [self._of_pages(half, self._planes[0].shape[-1]) for half in halves]
        return window_on(memory_of(self.layout, planes), range(len(pages))), copy

    def _apart(self, both: torch.Tensor) -> list[torch.Tensor]:
        """The latent plane, and that of RoPE."""
        latent, rope = self._widths
        return [both.narrow(-1, 0, latent), both.narrow(-1, latent, rope)]

    def _of_pool(self, tensor: torch.Tensor) -> torch.Tensor:
        if self._order == "layer_first":
            layers, _, *row = tensor.shape
            return tensor.view(layers, -1, self.page, *row).transpose(0, 1)
        if self._order == "page_first":
            tensor = tensor.view(-1, self.page, *tensor.shape[1:])
        return tensor.permute(_ORDERED[self._order])

    def _of_pages(self, flat: torch.Tensor, width: int) -> torch.Tensor:
        """Pages one after the other, each in the pool's order."""
        _, layers, tokens, heads, _ = self._planes[0].shape
        if self._widths:
            heads = 1
        sizes = (layers, tokens, heads)
        way = _ORDERED[self._order][1:-1]
        stored = [sizes[way.index(axis)] for axis in (1, 2, 3)]
        return flat.view(len(flat), *stored, width).permute(_ORDERED[self._order])


class OpaquePages:
    """A pool whose pages only SGLang understands, in chunks of at most *most* bytes."""

    opaque = True

    def __init__(self, pool: FlatPool, tokens: int, most: int | None = None) -> None:
        """Use *pool*, whose pages go with *tokens* tokens.

        Raises:
            LayoutMismatch: SGLang cannot flatten a page of it.
        """
        try:
            sample = pool.get_dummy_flat_data_page()
        except NotImplementedError as error:
            raise LayoutMismatch(f"{type(pool).__name__} has no flat pages: {error}") from error
        self._pool = pool
        self._dtype = sample.dtype
        self._size = sample.numel() * sample.element_size()
        self.pieces = -(-self._size // most) if most else 1
        """Chunks for each page."""
        self._tokens = tokens
        share = -(-self._size // self.pieces)
        self._piece = -(-share // tokens) * tokens
        self.page = int(pool.page_size)
        self.layout = opaque_layout(tokens, [self._piece])

    def window(self, indices: Sequence[int]) -> DeviceKV:
        """A window on a copy of pages, each by the index of its first slot."""
        pages = [self._pool.get_data_page(index, flat=True) for index in indices]
        return self.flat_window(pages)[0]

    def fill(self, indices: Sequence[int], read: Callable[[DeviceKV], int]) -> int:
        """Let *read* load pages into room of their own, and put the loaded ones into the pool."""
        window, room = self.empty(len(indices))
        hit = read(window)
        for index, row in zip(indices[:hit], room, strict=False):
            self._pool.set_from_flat_data_page(index, self.flat(row))
        return hit

    def empty(self, pages: int) -> tuple[DeviceKV, torch.Tensor]:
        """A window on room for *pages*, and the room ``[pages, bytes]``."""
        room = torch.zeros(pages, self.pieces * self._piece, dtype=torch.uint8)
        blocks = room.view(-1, self._piece)
        return BlockKV(self.layout, [blocks], range(len(blocks)), self._tokens), room

    def flat_window(self, pages: Sequence[torch.Tensor]) -> tuple[DeviceKV, torch.Tensor]:
        """A window on a copy of *pages*, flattened by SGLang, and the copy ``[pages, bytes]``."""
        window, room = self.empty(len(pages))
        for row, page in zip(room, pages, strict=True):
            row[: self._size] = page.reshape(-1).view(torch.uint8)
        return window, room

    def flat(self, row: torch.Tensor) -> torch.Tensor:
        """A page as SGLang flattens it."""
        return row[: self._size].view(self._dtype)


Pages = HostPages | OpaquePages


def pages_of(pool: FlatPool, *, opaque: bool = False) -> Pages:
    """The pages of *pool*.

    Args:
        pool: the host pool of the model's KV.
        opaque: move its pages as they are.

    Raises:
        LayoutMismatch: its pages cannot be moved.
    """
    known = type(pool).__name__ in _HEADS or _plain_latent(pool)
    if known and pool.layout in _ORDERED and not opaque:
        return HostPages(pool)
    return OpaquePages(pool, int(pool.page_size))


def _plain_latent(pool: FlatPool) -> bool:
    """True if a row is the latent part and that of RoPE, and not packed with scales."""
    if type(pool).__name__ not in _LATENT:
        return False
    width = int(pool.kv_lora_rank) + int(pool.qk_rope_head_dim)  # type: ignore[attr-defined]
    return int(pool.kv_buffer.shape[-1]) == width  # type: ignore[attr-defined]


def packing_of(pool: FlatPool) -> str:
    """A text that distinguishes opaque pages of two pools that have the same size.

    A state's parts may have dtypes of their own.
    """
    kept = {"dtype": pool.dtype} | vars(pool)
    dtypes = [f"{n}={kept[n]}" for n in sorted(kept) if isinstance(kept[n], torch.dtype)]
    return " ".join([type(pool).__name__, str(pool.layout), *dtypes])


def memory_of(layout: KVLayout, planes: Sequence[torch.Tensor]) -> PagedMemory:
    """``[pages, layers, tokens, heads, width]`` planes, for windows on their pages.

    Raises:
        LayoutMismatch: they are not the layout's.
    """
    layers = zip(*(plane.unbind(1) for plane in planes), strict=True)
    return PagedMemory(layout, [*layers], fused=False)


def window_on(memory: PagedMemory, pages: Sequence[int]) -> DeviceKV:
    """A window on pages by their numbers.

    Raises:
        InvalidRequest: one is not there.
    """
    slots = torch.tensor(pages, dtype=torch.int64)[:, None] * memory.block
    return PagedKV.on(memory, (slots + torch.arange(memory.block)).flatten())


def layout_of(planes: Sequence[torch.Tensor], *, latent: bool) -> KVLayout:
    """The layout of ``[pages, layers, tokens, heads, width]`` planes."""
    first, second = planes
    dtype = dtype_of(first.dtype)
    layers, heads = int(first.shape[1]), int(first.shape[3])
    widths = int(first.shape[4]), int(second.shape[4])
    if latent:
        return KVLayout.latent(dtype, layers=layers, latent_width=widths[0], rope_width=widths[1])
    return KVLayout.attention(
        dtype, layers=layers, heads=heads, key_width=widths[0], value_width=widths[1]
    )
