"""KV in one tensor per layer and plane, as Hugging Face transformers keeps it."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hexkv.kernels.chunks import check_planes, check_spans, rows
from hexkv.kernels.transfer import transfer_on
from hexkv.ports import KVLayout, LayoutMismatch, Span, Transfer


class ContiguousKV:
    """A window on one sequence's KV, ``tensors[layer][plane]`` of ``[1, heads, tokens, width]``.

    Any strides will do: each plane of a span is one strided copy between the sequence and
    the chunk. The window keeps views, so it moves whatever the tensors hold at the time.
    """

    def __init__(self, layout: KVLayout, tensors: Sequence[Sequence[torch.Tensor]]) -> None:
        """Look at *tensors* through *layout*.

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
        self._devices = {word.device for given in words for word in given}

    @property
    def layout(self) -> KVLayout:
        return self._layout

    @property
    def tokens(self) -> int:
        return self._tokens

    def gather(self, spans: Sequence[Span], layers: range | None = None) -> Transfer:
        chosen = check_spans(self._layout, self._tokens, spans, layers)
        for start, end, data in spans:
            tokens = end - start
            for layer, plane, chunk in rows(self._layout, tokens, data, chosen, write=True):
                sequence = self._planes[layer][plane]
                chunk.copy_(sequence.narrow(0, start, tokens), non_blocking=True)
        return transfer_on(self._devices)

    def scatter(self, spans: Sequence[Span], layers: range | None = None) -> Transfer:
        chosen = check_spans(self._layout, self._tokens, spans, layers)
        # A tensor that was made in inference mode may be written only there.
        with torch.inference_mode():
            for start, end, data in spans:
                tokens = end - start
                for layer, plane, chunk in rows(self._layout, tokens, data, chosen, write=False):
                    sequence = self._planes[layer][plane]
                    sequence.narrow(0, start, tokens).copy_(chunk, non_blocking=True)
        return transfer_on(self._devices)
