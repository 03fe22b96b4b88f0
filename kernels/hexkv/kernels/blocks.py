"""KV in opaque blocks: their bytes are gathered and scattered unchanged.

Some engines pack a block in their own format (vLLM on a CPU by its instruction set, quantised
caches with their scales), so that single tokens cannot be separated in it. Such a block is moved
whole.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Self

import numpy as np
import torch

from hexkv.kernels.chunks import check_memory, check_spans
from hexkv.kernels.dtypes import INTEGERS
from hexkv.kernels.gpu.fused import Fused
from hexkv.kernels.gpu.staging import Sent
from hexkv.kernels.host.batches import batches
from hexkv.kernels.host.moves import Scattered
from hexkv.kernels.host.stacks import stacked
from hexkv.kernels.transfer import gpus, transfer_on
from hexkv.ports import (
    DType,
    InvalidRequest,
    KVLayout,
    LayerGroup,
    LayoutMismatch,
    Plane,
    Span,
    Transfer,
)

NOWHERE = -1
"""In place of a block's number: these tokens have no place in the window."""


def opaque_layout(tokens: int, page_bytes: Sequence[int]) -> KVLayout:
    """Return the layout of blocks of *tokens* tokens, ``page_bytes[layer]`` bytes each.

    A token's share is a width without a meaning: only whole blocks can be cut out of a chunk.

    Raises:
        LayoutMismatch: a block cannot be shared out evenly among its tokens.
    """
    groups: list[LayerGroup] = []
    for size in page_bytes:
        if not all(type(number) is int and number > 0 for number in (size, tokens)):
            raise LayoutMismatch(f"a block of {size!r} bytes and {tokens!r} tokens is none")
        if size % tokens:
            raise LayoutMismatch(f"a block of {size} bytes is not {tokens} tokens of equal size")
        groups.append(LayerGroup(1, (Plane("block", 1, size // tokens),)))
    return KVLayout(DType.UINT8, tuple(groups))


class BlockMemory:
    """``pages[layer]`` of ``[blocks, ...]``, for windows of requests: checked once."""

    def __init__(
        self,
        layout: KVLayout,
        pages: Sequence[torch.Tensor],
        block_tokens: int,
        *,
        fused: bool | None = None,
        direct: bool = False,
    ) -> None:
        """Use *pages* as *layout*.

        Args:
            layout: as :func:`opaque_layout` returns it.
            pages: of any strides and dtype.
            block_tokens: tokens in a block.
            fused: see :meth:`Fused.over`.
            direct: see there, too.

        Raises:
            LayoutMismatch: the blocks' size is not the layout's, or they are on several devices, or
                no dense tensors with data.
        """
        try:
            whole = all(isinstance(page, torch.Tensor) for page in pages)
        except TypeError:
            whole = False
        if not whole:
            raise LayoutMismatch("KV is given as one tensor for each layer")
        if len(pages) != layout.layers:
            raise LayoutMismatch(f"{len(pages)} layers of KV, where the layout has {layout.layers}")
        self.layout = layout
        self.tokens = block_tokens
        self.device = pages[0].device
        self.gpus = gpus([self.device])
        for layer, page in enumerate(pages):
            check_memory(page, f"layer {layer}")
            start, end = layout.layer_span(layer, block_tokens)
            size = page.shape[1:].numel() * page.element_size()
            if size != end - start or page.device != self.device:
                raise LayoutMismatch(
                    f"layer {layer} has blocks of {size} bytes on {page.device}, not of"
                    f" {end - start} on {self.device}"
                )
        self.count = min(len(page) for page in pages)
        # A block's inner dimensions are used as tokens, heads and width, whatever they are.
        plain = [_plain(page) for page in pages]
        self.parts = plain[0].shape[1] if plain[0].dim() == _ROWS else 1
        self.fused = None
        if all(page.dim() <= _ROWS for page in plain):
            rows = [page[(slice(None), *[None] * (_ROWS - page.dim()))] for page in plain]
            if all(page.shape[1] == self.parts for page in rows):
                self.fused = Fused.over(layout, [[page] for page in rows], fused, direct=direct)
        self.stacks = []
        if self.fused is None:
            self.stacks = stacked(layout, [[page.detach()] for page in pages], block_tokens)

    def window(self, blocks: Sequence[int]) -> BlockKV:
        """Return a window on one request; see :class:`BlockKV`.

        Raises:
            InvalidRequest: a block does not exist.
        """
        return BlockKV.on(self, blocks)


class BlockKV:
    """A window on one request, ``pages[layer]`` of ``[blocks, ...]``, block by block.

    The bytes of a block are those of ``pages[layer][block]`` in the order of its dimensions.
    A chunk has, per layer, its blocks one after the other. Spans start and end where
    blocks do.
    """

    def __init__(
        self,
        layout: KVLayout,
        pages: Sequence[torch.Tensor],
        blocks: Sequence[int],
        block_tokens: int,
        *,
        fused: bool | None = None,
        direct: bool = False,
    ) -> None:
        """Use *pages* through *blocks*, the number of each block of the request in order.

        To make many windows on the same pages, make one :class:`BlockMemory`.

        Args:
            layout: as :func:`opaque_layout` returns it.
            pages: of any strides and dtype.
            blocks: numbers of blocks. ``NOWHERE``: scattering skips it, gathering it is an error.
            block_tokens: tokens in a block.
            fused: see :meth:`Fused.over`.
            direct: see there, too.

        Raises:
            LayoutMismatch: the blocks' size is not the layout's, or they are on several devices, or
                no dense tensors with data.
            InvalidRequest: a block does not exist.
        """
        self._look(BlockMemory(layout, pages, block_tokens, fused=fused, direct=direct), blocks)

    @classmethod
    def on(cls, pages: BlockMemory, blocks: Sequence[int]) -> Self:
        """Return a window on *pages*, which were checked before.

        Raises:
            InvalidRequest: a block does not exist.
        """
        window = cls.__new__(cls)
        window._look(pages, blocks)
        return window

    def _look(self, pages: BlockMemory, blocks: Sequence[int]) -> None:
        try:
            numbers = [operator.index(block) for block in blocks]
        except TypeError as error:
            raise InvalidRequest(f"blocks are given by their numbers: {error}") from error
        if numbers and not NOWHERE <= min(numbers) <= max(numbers) < pages.count:
            raise InvalidRequest(f"a block is not in [{NOWHERE}, {pages.count})")
        self._pages = pages
        self._nowhere = NOWHERE in numbers
        self._blocks = np.array(numbers, np.int64)
        rows = self._blocks
        if pages.fused is not None:
            # Parts of a block by number; those of a NOWHERE block are below zero.
            parts = np.arange(pages.parts)
            rows = (rows[:, None] * pages.parts + parts).reshape(-1)
        self._sent = Sent(rows)

    @property
    def layout(self) -> KVLayout:
        return self._pages.layout

    @property
    def background(self) -> bool:
        """True on the CPU; on a GPU the caller's stream orders the copies."""
        return self._pages.fused is None and self._pages.device.type == "cpu"

    @property
    def tokens(self) -> int:
        return len(self._blocks) * self._pages.tokens

    def gather(self, spans: Sequence[Span], layers: range | None = None) -> Transfer:
        chosen = check_spans(self.layout, self.tokens, spans, layers, write=True)
        self._check_between(spans)
        if self._nowhere:
            size = self._pages.tokens
            for start, end, _ in spans:
                if NOWHERE in self._blocks[start // size : end // size]:
                    raise InvalidRequest(f"a block in [{start}, {end}) has no place to gather from")
        fused = self._pages.fused
        if fused is not None:
            return self._launched(fused, spans, chosen, scatter=False)
        moves = self._moves(spans)
        for stacks in self._pages.stacks:
            stacks.gather(moves, chosen)
        return transfer_on(self._pages.gpus)

    def scatter(self, spans: Sequence[Span], layers: range | None = None) -> Transfer:
        chosen = check_spans(self.layout, self.tokens, spans, layers)
        self._check_between(spans)
        fused = self._pages.fused
        if fused is not None:
            return self._launched(fused, spans, chosen, scatter=True)
        moves = self._moves(spans)
        for stacks in self._pages.stacks:
            stacks.scatter(moves, chosen)
        return transfer_on(self._pages.gpus)

    def _launched(
        self, fused: Fused, spans: Sequence[Span], layers: range, *, scatter: bool
    ) -> Transfer:
        rows = self._pages.parts, self._pages.tokens
        return fused.move(self._sent, spans, layers, scatter=scatter, rows=rows)

    def _check_between(self, spans: Sequence[Span]) -> None:
        """Check that spans start and end where blocks do.

        Raises:
            InvalidRequest: one does not.
        """
        size = self._pages.tokens
        for start, end, _ in spans:
            if start % size or end % size:
                raise InvalidRequest(
                    f"[{start}, {end}) does not lie between blocks of {size} tokens"
                )

    def _moves(self, spans: Sequence[Span]) -> list[Scattered]:
        size = self._pages.tokens
        return [Scattered(batch, self._blocks[batch.units(size)]) for batch in batches(spans)]


def _plain(page: torch.Tensor) -> torch.Tensor:
    """Return the same bytes as integers, as wide as possible, in as few dimensions as possible."""
    size = page.element_size()
    page = page.detach().view(INTEGERS[size])
    if not page[:1].is_contiguous():
        return page
    page = page.flatten(1)
    places = (page.shape[1], page.stride(0), page.storage_offset())
    return page.view(torch.int64) if all(at * size % 8 == 0 for at in places) else page


_ROWS = 4
"""Dimensions of the memory that one launch moves."""
