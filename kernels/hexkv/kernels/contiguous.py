"""KV in one tensor per layer and plane, as Hugging Face transformers keeps it."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hexkv.kernels.chunks import check_planes, check_spans, places, rows
from hexkv.kernels.fused import Fused
from hexkv.kernels.transfer import transfer_on
from hexkv.ports import KVLayout, LayoutMismatch, Span, Transfer


class ContiguousKV:
    """A window on one sequence's KV, ``tensors[layer][plane]`` of ``[1, heads, tokens, width]``.

    Any strides will do: each plane of a span is one strided copy between the sequence and
    the chunk. The window keeps views, so it moves whatever the tensors hold at the time.
    On CUDA all layers of a span are one launch: there, the sequence is one long page.
    """

    def __init__(
        self,
        layout: KVLayout,
        tensors: Sequence[Sequence[torch.Tensor]],
        *,
        fused: bool | None = None,
        direct: bool = False,
    ) -> None:
        """Look at *tensors* through *layout*.

        Args:
            layout: of the KV.
            tensors: of any strides.
            fused: see :meth:`Fused.over`.
            direct: see there, too.

        Raises:
            LayoutMismatch: their shape or dtype is not the layout's, or they differ in tokens.
        """
        words = check_planes(layout, tensors)
        self._layout = layout
        self._tokens = int(words[0][0].shape[2])
        for layer, (planes, given) in enumerate(zip(layout.planes, words, strict=True)):
            for plane, word in zip(planes, given, strict=True):
                expected = (1, plane.heads, self._tokens, plane.width)
                if word.shape != expected:
                    raise LayoutMismatch(
                        f"layer {layer} plane {plane.name!r} has shape {tuple(word.shape)}, "
                        f"not {expected}"
                    )
        self._planes = [[word[0].transpose(0, 1) for word in given] for given in words]
        self._pieces: dict[int, list[list[Sequence[torch.Tensor]]]] = {}
        self._devices = {word.device for given in words for word in given}
        pages = [[word.transpose(1, 2) for word in given] for given in words]
        self._fused = Fused.over(layout, pages, fused, direct=direct)

    @property
    def layout(self) -> KVLayout:
        return self._layout

    @property
    def background(self) -> bool:
        """True on the CPU; on a GPU the caller's stream says what comes first."""
        return self._fused is None and all(device.type == "cpu" for device in self._devices)

    @property
    def tokens(self) -> int:
        return self._tokens

    def gather(self, spans: Sequence[Span], layers: range | None = None) -> Transfer:
        if self._fused is not None:
            chosen = check_spans(self._layout, self._tokens, spans, layers, write=True)
            for start, end, data in spans:
                self._fused.gather(torch.arange(start, end), data, end - start, chosen)
            return transfer_on(self._devices)
        sequence, chunks = self._views(spans, layers, write=True)
        if chunks:
            torch._foreach_copy_(chunks, sequence, non_blocking=True)
        return transfer_on(self._devices)

    def scatter(self, spans: Sequence[Span], layers: range | None = None) -> Transfer:
        if self._fused is not None:
            chosen = check_spans(self._layout, self._tokens, spans, layers)
            for start, end, data in spans:
                self._fused.scatter(torch.arange(start, end), data, end - start, chosen)
            return transfer_on(self._devices)
        # A tensor that was made in inference mode may be written only there.
        with torch.inference_mode():
            sequence, chunks = self._views(spans, layers, write=False)
            if chunks:
                torch._foreach_copy_(sequence, chunks, non_blocking=True)
        return transfer_on(self._devices)

    def _views(
        self, spans: Sequence[Span], layers: range | None, *, write: bool
    ) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Views of the sequence, and of the chunks, that belong together.

        A copy of one plane of a chunk takes some tens of microseconds, and making a view in
        Python one or two. So each plane is cut once for all chunks of a length, and all
        copies are one call.
        """
        chosen = check_spans(self._layout, self._tokens, spans, layers, write=write)
        order = places(self._layout, chosen)
        sequence: list[torch.Tensor] = []
        chunks: list[torch.Tensor] = []
        for start, end, data in spans:
            size = end - start
            if not size:
                continue
            chunks.extend(rows(self._layout, size, data, chosen))
            if start % size:
                parts = [self._planes[i][p].narrow(0, start, size) for i, p in order]
            else:
                pieces, at = self._cut(size), start // size
                parts = [pieces[i][p][at] for i, p in order]
            sequence.extend(parts)
        return sequence, chunks

    def _cut(self, size: int) -> list[list[Sequence[torch.Tensor]]]:
        """Each plane in pieces of *size* tokens; the last may be shorter."""
        pieces = self._pieces.get(size)
        if pieces is None:
            pieces = [[torch.split(plane, size) for plane in given] for given in self._planes]
            self._pieces = {size: pieces}  # one length at a time: views take room, too
        return pieces
