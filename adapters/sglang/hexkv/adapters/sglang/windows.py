"""KV whose layers lie in one tensor, page by page, as SGLang's host memory has it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from hexkv.kernels.chunks import check_spans
from hexkv.kernels.dtypes import bits, torch_dtype
from hexkv.kernels.transfer import transfer_on
from hexkv.ports import InvalidRequest, KVLayout, LayoutMismatch, Span, Transfer


class StackedKV:
    """A window on pages of ``planes[plane]``, ``[pages, layers, tokens, heads, width]`` each.

    Any strides will do: a page moves with one strided copy for each plane, however many layers
    there are. Spans start and end where pages do.
    """

    def __init__(
        self, layout: KVLayout, planes: Sequence[torch.Tensor], pages: Sequence[int]
    ) -> None:
        """Look at *planes* through *pages*, the number of each page of the window in order.

        Raises:
            LayoutMismatch: their shape or dtype is not the layout's, or layers differ in it.
            InvalidRequest: a page is not there.
        """
        if len(layout.groups) != 1 or len(planes) != len(layout.groups[0].planes):
            raise LayoutMismatch("one tensor is needed for each plane, the same in every layer")
        self._row = sum(plane.heads * plane.width for plane in layout.groups[0].planes)
        tokens = int(planes[0].shape[2])
        for plane, tensor in zip(layout.groups[0].planes, planes, strict=True):
            expected = (layout.layers, tokens, plane.heads, plane.width)
            if tuple(tensor.shape[1:]) != expected or tensor.dtype != torch_dtype(layout.dtype):
                raise LayoutMismatch(
                    f"plane {plane.name!r} is {tensor.dtype} of {tuple(tensor.shape[1:])},"
                    f" not {torch_dtype(layout.dtype)} of {expected}"
                )
        count = min(len(plane) for plane in planes)
        if any(not 0 <= page < count for page in pages):
            raise InvalidRequest(f"a page is not in [0, {count})")
        self._layout = layout
        self._planes = [plane.detach().view(bits(layout.dtype)) for plane in planes]
        self._pages = pages
        self._page = tokens

    @property
    def layout(self) -> KVLayout:
        return self._layout

    @property
    def tokens(self) -> int:
        return len(self._pages) * self._page

    def gather(self, spans: Sequence[Span], layers: range | None = None) -> Transfer:
        chosen = check_spans(self._layout, self.tokens, spans, layers, write=True)
        self._check(spans)
        for page, chunk in self._pairs(spans, chosen):
            chunk.copy_(page)
        return transfer_on([self._planes[0].device])

    def scatter(self, spans: Sequence[Span], layers: range | None = None) -> Transfer:
        chosen = check_spans(self._layout, self.tokens, spans, layers)
        self._check(spans)
        # Memory that was made in inference mode may be written only there.
        with torch.inference_mode():
            for page, chunk in self._pairs(spans, chosen):
                page.copy_(chunk)
        return transfer_on([self._planes[0].device])

    def _check(self, spans: Sequence[Span]) -> None:
        for start, end, _ in spans:
            if start % self._page or end % self._page:
                raise InvalidRequest(
                    f"[{start}, {end}) does not lie between pages of {self._page} tokens"
                )

    def _pairs(
        self, spans: Sequence[Span], layers: range
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Every plane of every page, and its part of the chunk's bytes."""
        run = slice(layers.start, layers.stop)
        for start, end, data in spans:
            if start == end:
                continue
            # torch has no read-only tensors, and warns about making a writable one of these.
            memory = bytearray(data) if data.readonly else data
            flat = torch.frombuffer(memory, dtype=bits(self._layout.dtype))
            rows = flat.view(self._layout.layers, (end - start) * self._row)[run]
            at, count = 0, (end - start) // self._page
            for plane in self._planes:
                heads, width = plane.shape[3:]
                size = (end - start) * heads * width
                part = rows[:, at : at + size].view(len(rows), count, self._page, heads, width)
                at += size
                for i, page in enumerate(self._pages[start // self._page : end // self._page]):
                    yield plane[page, run], part[:, i]
