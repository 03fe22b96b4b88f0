"""KV in pages of fixed size, as vLLM and SGLang keep it (PagedAttention, arXiv 2309.06180)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from hexkv.kernels.chunks import blocks, check_planes, check_spans, places, rows
from hexkv.kernels.fused import Fused
from hexkv.kernels.transfer import transfer_on
from hexkv.ports import InvalidRequest, KVLayout, LayoutMismatch, Span, Transfer


class _Places(NamedTuple):
    """Where the tokens of one span live, one by one."""

    blocks: torch.Tensor
    offsets: torch.Tensor
    """Block and place in the block, of every token that has a slot."""

    kept: torch.Tensor | None
    """Which tokens of the span have a slot; ``None`` where all have."""


class PagedKV:
    """A window on one request, ``pages[layer][plane]`` of ``[blocks, block_size, heads, width]``.

    Token *i* lives at ``slots[i] = block * block_size + offset``; ``-1`` says that it has
    no place: scattering passes it over, and gathering it is an error, since the chunk
    would be stored with a hole. Two tokens must not share a slot.

    Whole blocks are moved as rows of 64-bit words, which on the CPU is up to twice as fast
    as moving tokens; anything else (a span that starts inside a block, pages with
    strides of their own) takes the general way. On CUDA all layers of a span are one launch.
    """

    def __init__(
        self,
        layout: KVLayout,
        pages: Sequence[Sequence[torch.Tensor]],
        slots: torch.Tensor | Sequence[int],
        *,
        fused: bool | None = None,
        direct: bool = False,
    ) -> None:
        """Look at *pages* through *slots*, one integer for every token of the request.

        Args:
            layout: of the KV.
            pages: of any strides.
            slots: where the tokens are.
            fused: see :meth:`Fused.over`.
            direct: see there, too.

        Raises:
            LayoutMismatch: shape or dtype of the pages is not the layout's, or they differ
                in blocks or device.
            InvalidRequest: *slots* is not a row of integers, or one points past the pages.
        """
        self._pages = check_planes(layout, pages)
        self._layout = layout
        blocks, self._block = self._pages[0][0].shape[:2]
        if not self._block:
            raise LayoutMismatch("pages have room for no token")
        self._device = self._pages[0][0].device
        for layer, (planes, given) in enumerate(zip(layout.planes, self._pages, strict=True)):
            for plane, page in zip(planes, given, strict=True):
                expected = (blocks, self._block, plane.heads, plane.width)
                if page.shape != expected or page.device != self._device:
                    raise LayoutMismatch(
                        f"layer {layer} plane {plane.name!r} has shape {tuple(page.shape)} on "
                        f"{page.device}, not {expected} on {self._device}"
                    )
        self._slots = _checked(slots, int(blocks) * self._block)
        self._fused = Fused.over(layout, self._pages, fused, direct=direct)
        # All planes or none: a narrow plane would push the next one off its words in a chunk.
        wide = all(_wide(page) for given in self._pages for page in given)
        self._whole = _whole_blocks(self._slots, self._block) if wide else None
        self._words = (
            [[page.flatten(1).view(torch.int64) for page in given] for given in self._pages]
            if wide
            else []
        )

    @property
    def layout(self) -> KVLayout:
        return self._layout

    @property
    def background(self) -> bool:
        """True on the CPU; on a GPU the caller's stream says what comes first."""
        return self._fused is None and self._device.type == "cpu"

    @property
    def tokens(self) -> int:
        return len(self._slots)

    def gather(self, spans: Sequence[Span], layers: range | None = None) -> Transfer:
        chosen = check_spans(self._layout, self.tokens, spans, layers, write=True)
        if self._fused is not None:
            for start, end, _ in spans:
                if bool(torch.any(self._slots[start:end] < 0)):
                    raise InvalidRequest(f"a token in [{start}, {end}) has no slot to gather from")
            for start, end, data in spans:
                self._fused.gather(self._slots[start:end], data, end - start, chosen)
            return transfer_on([self._device])
        order = places(self._layout, chosen)
        found = [self._find(start, end) for start, end, _ in spans]
        for (start, end, _), at in zip(spans, found, strict=True):
            if isinstance(at, _Places) and at.kept is not None:
                raise InvalidRequest(f"a token in [{start}, {end}) has no slot to gather from")
        for (start, end, data), at in zip(spans, found, strict=True):
            if isinstance(at, _Places):
                chunks = rows(self._layout, end - start, data, chosen)
                for (layer, plane), chunk in zip(order, chunks, strict=bool(chunks)):
                    page = self._pages[layer][plane]
                    chunk.copy_(page[at.blocks, at.offsets], non_blocking=True)
                continue
            chunks = blocks(self._layout, end - start, data, chosen, len(at))
            for (layer, plane), chunk in zip(order, chunks, strict=bool(chunks)):
                torch.index_select(self._words[layer][plane], 0, at, out=chunk)
        return transfer_on([self._device])

    def scatter(self, spans: Sequence[Span], layers: range | None = None) -> Transfer:
        chosen = check_spans(self._layout, self.tokens, spans, layers)
        if self._fused is not None:
            for start, end, data in spans:
                self._fused.scatter(self._slots[start:end], data, end - start, chosen)
            return transfer_on([self._device])
        order = places(self._layout, chosen)
        # Serving engines make their pages in inference mode, and may be written only there.
        with torch.inference_mode():
            for start, end, data in spans:
                at = self._find(start, end)
                if isinstance(at, _Places):
                    chunks = rows(self._layout, end - start, data, chosen)
                    for (layer, plane), chunk in zip(order, chunks, strict=bool(chunks)):
                        kept = chunk if at.kept is None else chunk[at.kept]
                        page = self._pages[layer][plane]
                        page[at.blocks, at.offsets] = kept.to(self._device, non_blocking=True)
                    continue
                chunks = blocks(self._layout, end - start, data, chosen, len(at))
                for (layer, plane), chunk in zip(order, chunks, strict=bool(chunks)):
                    self._words[layer][plane].index_copy_(0, at, chunk)
        return transfer_on([self._device])

    def _find(self, start: int, end: int) -> torch.Tensor | _Places:
        """The blocks that tokens ``[start, end)`` fill from end to end, or else their places."""
        if self._whole is not None and start % self._block == end % self._block == 0:
            whole = self._whole[start // self._block : end // self._block]
            if bool(torch.all(whole >= 0)):
                return whole
        slots = self._slots[start:end]
        placed = slots >= 0
        kept = None if bool(torch.all(placed)) else placed
        if kept is not None:
            slots = slots[kept]
        blocks, offsets = slots // self._block, slots % self._block
        return _Places(blocks.to(self._device), offsets.to(self._device), kept)


def _checked(slots: torch.Tensor | Sequence[int], places: int) -> torch.Tensor:
    try:
        mapping = torch.as_tensor(slots)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidRequest(f"a slot mapping is one row of integers: {error}") from error
    if mapping.layout is not torch.strided or mapping.device.type == "meta":
        raise InvalidRequest("a slot mapping is a dense tensor with data")
    if mapping.numel() == 0:
        mapping = mapping.to(torch.int64)
    fraction = mapping.is_floating_point() or mapping.is_complex()
    if mapping.dim() != 1 or fraction or mapping.dtype == torch.bool:
        raise InvalidRequest("a slot mapping is one row of integers")
    mapping = mapping.to("cpu", torch.int64)
    if bool(torch.any((mapping < -1) | (mapping >= places))):
        raise InvalidRequest(f"a slot is not in [-1, {places})")
    return mapping


def _whole_blocks(slots: torch.Tensor, block: int) -> torch.Tensor:
    """The block that each run of *block* tokens fills from end to end; -1 for other runs."""
    runs = slots[: len(slots) // block * block].view(-1, block)
    firsts = runs[:, :1]
    whole = (runs == firsts + torch.arange(block)).all(1) & (firsts[:, 0] % block == 0)
    return torch.where(whole, firsts[:, 0] // block, -1)


def _wide(page: torch.Tensor) -> bool:
    """Whether each block of *page* is a row of whole, aligned 64-bit words on the CPU."""
    places = (page.shape[1:].numel(), page.stride(0), page.storage_offset())
    aligned = all(count * page.element_size() % 8 == 0 for count in places)
    return aligned and page.device.type == "cpu" and page[:1].is_contiguous()
