"""KV in whole blocks whose inside is nobody's business: bytes go in and come out as they are.

Some engines pack a block in a way of their own (vLLM on a CPU by its instruction set, quantised
caches with their scales), so that no token can be told apart in it. Such a block is moved whole.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from hexkv.kernels.chunks import check_memory, check_spans
from hexkv.kernels.fused import Fused
from hexkv.kernels.transfer import transfer_on
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

Array: TypeAlias = npt.NDArray[np.signedinteger]

NOWHERE = -1
"""In place of a block's number: these tokens have no place in the window."""


def opaque_layout(tokens: int, page_bytes: Sequence[int]) -> KVLayout:
    """The layout of blocks of *tokens* tokens that take ``page_bytes[layer]`` bytes each.

    A token's share is a width, not a meaning: only whole blocks can be cut out of a chunk.

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
        """Look at *pages* through *blocks*, the number of each block of the request in order.

        Args:
            layout: as :func:`opaque_layout` gives it.
            pages: of any strides and dtype.
            blocks: numbers of blocks. ``NOWHERE``: scattering passes it over, gathering it is
                an error.
            block_tokens: tokens in a block.
            fused: see :meth:`Fused.over`.
            direct: see there, too.

        Raises:
            LayoutMismatch: the blocks' size is not the layout's, or they are on several devices, or
                no dense tensors with data.
            InvalidRequest: a block is not there.
        """
        try:
            whole = all(isinstance(page, torch.Tensor) for page in pages)
        except TypeError:
            whole = False
        if not whole:
            raise LayoutMismatch("KV is given as one tensor for each layer")
        if len(pages) != layout.layers:
            raise LayoutMismatch(f"{len(pages)} layers of KV, where the layout has {layout.layers}")
        for layer, page in enumerate(pages):
            check_memory(page, f"layer {layer}")
        try:
            numbers = [operator.index(block) for block in blocks]
        except TypeError as error:
            raise InvalidRequest(f"blocks are given by their numbers: {error}") from error
        self._pages = [_plain(page) for page in pages]
        self._dtypes = [np.dtype(f"i{page.element_size()}") for page in self._pages]
        self._block = block_tokens
        self._layout = layout
        count = min(len(page) for page in pages)
        self._device = pages[0].device
        self._arrays = [page.numpy() for page in self._pages] if self._device.type == "cpu" else []
        for layer, page in enumerate(pages):
            start, end = layout.layer_span(layer, block_tokens)
            size = page[0].numel() * page.element_size()
            if size != end - start or page.device != self._device:
                raise LayoutMismatch(
                    f"layer {layer} has blocks of {size} bytes on {page.device}, not of"
                    f" {end - start} on {self._device}"
                )
        if any(not NOWHERE <= block < count for block in numbers):
            raise InvalidRequest(f"a block is not in [{NOWHERE}, {count})")
        self._blocks = numbers
        # A block's inner dimensions are taken for tokens, heads and width, whatever they are.
        self._parts = self._pages[0].shape[1] if self._pages[0].dim() == _ROWS else 1
        self._fused = None
        if all(page.dim() <= _ROWS for page in self._pages):
            rows = [page[(slice(None), *[None] * (_ROWS - page.dim()))] for page in self._pages]
            if all(page.shape[1] == self._parts for page in rows):
                self._fused = Fused.over(layout, [[page] for page in rows], fused, direct=direct)

    @property
    def layout(self) -> KVLayout:
        return self._layout

    @property
    def background(self) -> bool:
        """True on the CPU; on a GPU the caller's stream says what comes first."""
        return self._fused is None and self._device.type == "cpu"

    @property
    def tokens(self) -> int:
        return len(self._blocks) * self._block

    def gather(self, spans: Sequence[Span], layers: range | None = None) -> Transfer:
        chosen = check_spans(self._layout, self.tokens, spans, layers, write=True)
        found = [self._between(start, end) for start, end, _ in spans]
        for (start, end, _), blocks in zip(spans, found, strict=True):
            if NOWHERE in blocks:
                raise InvalidRequest(f"a block in [{start}, {end}) has no place to gather from")
        for span, blocks in zip(spans, found, strict=True):
            start, end, data = span
            if self._fused is not None:
                self._fused.gather(self._slots(blocks), data, end - start, chosen)
            elif self._arrays:
                for layer, rows in self._rows(span, chosen):
                    page = self._arrays[layer]
                    if page.flags.c_contiguous:
                        np.take(page, blocks, axis=0, out=rows, mode="clip")
                    else:  # which that would first copy altogether
                        for row, block in zip(rows, blocks, strict=True):
                            row[...] = page[block]
            else:
                where = torch.tensor(blocks, device=self._device)
                for layer, rows in self._rows(span, chosen):
                    torch.from_numpy(rows).copy_(self._pages[layer][where], non_blocking=True)
        return transfer_on([self._device])

    def scatter(self, spans: Sequence[Span], layers: range | None = None) -> Transfer:
        chosen = check_spans(self._layout, self.tokens, spans, layers)
        found = [self._between(start, end) for start, end, _ in spans]
        # Serving engines make their pages in inference mode, and may be written only there.
        with torch.inference_mode():
            if self._fused is not None:
                for (start, end, data), blocks in zip(spans, found, strict=True):
                    self._fused.scatter(self._slots(blocks), data, end - start, chosen)
            elif self._arrays:
                self._fill(spans, found, chosen)
            else:
                for span, blocks in zip(spans, found, strict=True):
                    kept = [i for i, block in enumerate(blocks) if block != NOWHERE]
                    where = torch.tensor([blocks[i] for i in kept], device=self._device)
                    for layer, rows in self._rows(span, chosen):
                        some = _tensor(rows if len(kept) == len(blocks) else rows[kept])
                        some = some.to(self._device, non_blocking=True)
                        self._pages[layer].index_copy_(0, where, some)
        return transfer_on([self._device])

    def _fill(self, spans: Sequence[Span], found: Sequence[Sequence[int]], layers: range) -> None:
        """Fill blocks in host memory, one layer after the other: so it is written in order.

        On one thread: torch shares such a copy out among several, which wait for each other
        wherever the processors are busy. This takes a fifth of its time there.
        """
        chunks = []
        for span, blocks in zip(spans, found, strict=True):
            kept = [i for i, block in enumerate(blocks) if block != NOWHERE]
            if kept:
                some = slice(None) if len(kept) == len(blocks) else kept
                chunks.append((self._rows(span, layers), some, _where(blocks, kept)))
        for at, layer in enumerate(layers):
            page = self._arrays[layer]
            for chunk, some, where in chunks:
                page[where] = chunk[at][1][some]

    def _between(self, start: int, end: int) -> list[int]:
        if start % self._block or end % self._block:
            raise InvalidRequest(
                f"[{start}, {end}) does not lie between blocks of {self._block} tokens"
            )
        return self._blocks[start // self._block : end // self._block]

    def _slots(self, blocks: Sequence[int]) -> torch.Tensor:
        """The parts of *blocks* by number; those of a block that is nowhere are below zero."""
        firsts = torch.tensor(blocks, dtype=torch.int64) * self._parts
        return (firsts[:, None] + torch.arange(self._parts)).flatten()

    def _rows(self, span: Span, layers: range) -> list[tuple[int, Array]]:
        """Each layer of a chunk as an array like its pages, one row for each block."""
        start, end, data = span
        rows = []
        for layer in layers if end > start else ():
            first, last = self._layout.layer_span(layer, end - start)
            shape = (-1, *self._pages[layer].shape[1:])
            rows.append(
                (layer, np.frombuffer(data[first:last], self._dtypes[layer]).reshape(shape))
            )
        return rows


def _where(blocks: Sequence[int], kept: Sequence[int]) -> slice | npt.NDArray[np.int64]:
    """The *kept* ones of *blocks* as an index; numpy is faster where it is a slice."""
    first, count = blocks[kept[0]], len(kept)
    if all(blocks[i] == first + at for at, i in enumerate(kept)):
        return slice(first, first + count)
    return np.array([blocks[i] for i in kept])


def _tensor(rows: Array) -> torch.Tensor:
    # torch has no read-only tensors, and warns about making a writable one of these.
    return torch.from_numpy(rows if rows.flags.writeable else rows.copy())


def _plain(page: torch.Tensor) -> torch.Tensor:
    """The same bytes as integers, as wide as possible, in as few dimensions as possible."""
    size = page.element_size()
    page = page.detach().view(_INTEGERS[size])
    if not page[:1].is_contiguous():
        return page
    page = page.flatten(1)
    places = (page.shape[1], page.stride(0), page.storage_offset())
    return page.view(torch.int64) if all(at * size % 8 == 0 for at in places) else page


_ROWS = 4
"""Dimensions of what is moved by one launch."""

_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
