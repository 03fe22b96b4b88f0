"""KV in pages of fixed size, as vLLM and SGLang keep it (PagedAttention, arXiv 2309.06180)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Self

import numpy as np
import numpy.typing as npt
import torch

from hexkv.kernels.chunks import check_planes, check_spans
from hexkv.kernels.gpu.buffers import DeviceBuffer, DeviceBuffers
from hexkv.kernels.gpu.encoded import Decoding, decodes
from hexkv.kernels.gpu.fused import Fused
from hexkv.kernels.gpu.staging import Sent
from hexkv.kernels.host.batches import Batch, batches
from hexkv.kernels.host.moves import Places, Scattered
from hexkv.kernels.host.stacks import Stacks, stacked
from hexkv.kernels.transfer import gpus, transfer_on
from hexkv.ports import (
    DeviceRoom,
    EncodedSpan,
    InvalidRequest,
    KVLayout,
    LayoutMismatch,
    Serde,
    Span,
    Transfer,
)


class PagedMemory:
    """``pages[layer][plane]`` of ``[blocks, block_size, heads, width]``, for windows of requests.

    Checked and examined once: an engine keeps its pages for as long as it lives. Tensors whose
    place, shape or strides change (``set_``, ``as_strided_``) need another one.
    """

    def __init__(
        self,
        layout: KVLayout,
        pages: Sequence[Sequence[torch.Tensor]],
        *,
        fused: bool | None = None,
        direct: bool = False,
    ) -> None:
        """Use *pages* as *layout*.

        Args:
            layout: of the KV.
            pages: of any strides.
            fused: see :meth:`Fused.over`.
            direct: see there, too.

        Raises:
            LayoutMismatch: shape or dtype of the pages is not the layout's, or they differ in
                blocks or device.
        """
        check_planes(layout, pages)
        blocks, block = pages[0][0].shape[:2]
        if not block:
            raise LayoutMismatch("pages have room for no token")
        device = pages[0][0].device
        for layer, (planes, given) in enumerate(zip(layout.planes, pages, strict=True)):
            for plane, page in zip(planes, given, strict=True):
                expected = (blocks, block, plane.heads, plane.width)
                if page.shape != expected or page.device != device:
                    raise LayoutMismatch(
                        f"layer {layer} plane {plane.name!r} has shape {tuple(page.shape)} on "
                        f"{page.device}, not {expected} on {device}"
                    )
        self.layout = layout
        self.block = int(block)
        self.blocks = int(blocks)
        self.device = device
        self.gpus = gpus([device])
        self.fused = Fused.over(layout, pages, fused, direct=direct)
        self.buffers = None if self.fused is None else DeviceBuffers(self.fused, layout)
        self._given = [[page.detach() for page in given] for given in pages]
        self._whole: list[Stacks] | None = None
        self._apart: list[Stacks] | None = None

    def window(self, slots: torch.Tensor | Sequence[int]) -> PagedKV:
        """Return a window on one request; see :class:`PagedKV`.

        Raises:
            InvalidRequest: *slots* is not a row of integers, or one points past the pages.
        """
        return PagedKV.on(self, slots)

    def whole(self) -> list[Stacks]:
        """Return ``[blocks, ...]``: rows of whole blocks."""
        if self._whole is None:
            self._whole = stacked(self.layout, self._given, self.block)
        return self._whole

    def apart(self) -> list[Stacks]:
        """Return ``[blocks, block_size, ...]``: rows of single tokens."""
        if self._apart is None:
            self._apart = stacked(self.layout, self._given, 1, lead=2)
        return self._apart


class PagedKV:
    """A window on one request, ``pages[layer][plane]`` of ``[blocks, block_size, heads, width]``.

    Token *i* lives at ``slots[i] = block * block_size + offset``; ``-1`` means that it has no
    place: scattering skips it, and gathering it is an error, since the chunk would be stored with a
    hole. Two tokens must not share a slot.

    In host memory all spans of a call move together: a span that starts and ends where blocks do as
    whole blocks, any other token by token. On CUDA all layers of a span are one launch.
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
        """Use *pages* through *slots*, one integer for every token of the request.

        To make many windows on the same pages, make one :class:`PagedMemory`.

        Args:
            layout: of the KV.
            pages: of any strides.
            slots: where the tokens are.
            fused: see :meth:`Fused.over`.
            direct: see there, too.

        Raises:
            LayoutMismatch: shape or dtype of the pages is not the layout's, or they differ in
                blocks or device.
            InvalidRequest: *slots* is not a row of integers, or one points past the pages.
        """
        self._look(PagedMemory(layout, pages, fused=fused, direct=direct), slots)

    @classmethod
    def on(cls, pages: PagedMemory, slots: torch.Tensor | Sequence[int]) -> Self:
        """Return a window on *pages*, which were checked before.

        Raises:
            InvalidRequest: *slots* is not a row of integers, or one points past the pages.
        """
        window = cls.__new__(cls)
        window._look(pages, slots)
        return window

    def _look(self, pages: PagedMemory, slots: torch.Tensor | Sequence[int]) -> None:
        self._pages = pages
        self._slots = _checked(slots, pages.blocks * pages.block)
        self._sent = Sent(self._slots)
        self._holes = _counts(self._slots < 0)
        self._blocks = _whole_blocks(self._slots, pages.block)
        self._broken = _counts(self._blocks < 0)

    @property
    def layout(self) -> KVLayout:
        return self._pages.layout

    @property
    def background(self) -> bool:
        """True on the CPU; on a GPU the caller's stream orders the copies."""
        return self._pages.fused is None and self._pages.device.type == "cpu"

    @property
    def tokens(self) -> int:
        return len(self._slots)

    def gather(self, spans: Sequence[Span], layers: range | None = None) -> Transfer:
        pages = self._pages
        chosen = check_spans(pages.layout, self.tokens, spans, layers, write=True)
        if self._holes is not None:
            for start, end, _ in spans:
                if self._holes[start] != self._holes[end]:
                    raise InvalidRequest(f"a token in [{start}, {end}) has no slot to gather from")
        if pages.fused is not None:
            return pages.fused.move(self._sent, spans, chosen, scatter=False)
        for rows, moves in self._moves(spans):
            for stacks in rows:
                stacks.gather(moves, chosen)
        return transfer_on(pages.gpus)

    def scatter(self, spans: Sequence[Span], layers: range | None = None) -> Transfer:
        pages = self._pages
        chosen = check_spans(pages.layout, self.tokens, spans, layers)
        if pages.fused is not None:
            return pages.fused.move(self._sent, spans, chosen, scatter=True)
        for rows, moves in self._moves(spans):
            for stacks in rows:
                stacks.scatter(moves, chosen)
        return transfer_on(pages.gpus)

    def decodes(self, serde: Serde) -> bool:
        """True on CUDA with Triton, for serdes that a device can decode."""
        return decodes(self._pages.fused, self.layout, serde)

    def scatter_encoded(self, serde: Serde, spans: Sequence[EncodedSpan]) -> Transfer:
        return self.scatter_encoded_layers(serde, spans, range(self.layout.layers))

    def scatter_encoded_layers(
        self, serde: Serde, spans: Sequence[EncodedSpan], layers: range
    ) -> Transfer:
        pages = self._pages
        decoding = Decoding(pages.fused, pages.layout, serde, spans, self.tokens, layers)
        return decoding.scatter(self._sent)

    def device_room(self, size: int, owner: str) -> DeviceRoom | None:
        """Return a buffer on a CUDA device with Triton; ``None`` elsewhere."""
        buffers = self._pages.buffers
        return None if buffers is None else DeviceBuffer.of(buffers, size, owner, self._sent)

    def _moves(self, spans: Sequence[Span]) -> Iterator[tuple[list[Stacks], list[Scattered]]]:
        """Yield spans that fill blocks from end to end, and the others, with the rows to move."""
        block = self._pages.block
        whole: list[Span] = []
        apart: list[Span] = []
        for span in spans:
            (whole if self._fills(span.start, span.end) else apart).append(span)
        if whole:
            moves = [Scattered(each, self._blocks_of(each)) for each in batches(whole)]
            yield self._pages.whole(), moves
        if apart:
            moves = [Scattered(each, self._slots_of(each), block) for each in batches(apart)]
            yield self._pages.apart(), moves

    def _fills(self, start: int, end: int) -> bool:
        """True if tokens ``[start, end)`` fill blocks from end to end."""
        block = self._pages.block
        if start % block or end % block:
            return False
        broken = self._broken
        return broken is None or bool(broken[start // block] == broken[end // block])

    def _blocks_of(self, batch: Batch) -> Places:
        return self._blocks[batch.units(self._pages.block)]

    def _slots_of(self, batch: Batch) -> Places:
        return self._slots[batch.units(1)]


def _checked(slots: torch.Tensor | Sequence[int], places: int) -> Places:
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
    found: Places = mapping.to("cpu", torch.int64).contiguous().numpy()
    if len(found) and not -1 <= int(found.min()) <= int(found.max()) < places:
        raise InvalidRequest(f"a slot is not in [-1, {places})")
    return found


def _counts(wrong: npt.NDArray[np.bool_]) -> list[int] | None:
    """Return how many come before each of them, and before the end; ``None`` if there are none."""
    return [0, *np.cumsum(wrong).tolist()] if wrong.any() else None


def _whole_blocks(slots: Places, block: int) -> Places:
    """Return the block that each run of *block* tokens fills from end to end; -1 for other runs."""
    runs = slots[: len(slots) // block * block].reshape(-1, block)
    firsts = runs[:, 0]
    whole = (runs == firsts[:, None] + np.arange(block)).all(1) & (firsts % block == 0)
    return np.where(whole, firsts // block, -1)
