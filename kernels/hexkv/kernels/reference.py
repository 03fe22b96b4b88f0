"""Gather and scatter one token at a time: slow, and obviously right.

The fast ways are tested against this one. *place* gives the memory of a token's KV: ``place(layer,
plane, position)`` returns a ``[heads, width]`` tensor, or ``None`` if the token has no place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch

from hexkv.kernels.dtypes import torch_dtype
from hexkv.ports import KVLayout, Span

Place = Callable[[int, int, int], torch.Tensor | None]


def gather(layout: KVLayout, place: Place, spans: Sequence[Span], layers: range) -> None:
    """Copy the KV of each token to its bytes in each span's chunk."""
    for span in spans:
        for layer, plane, position, at, size in _pieces(layout, span, layers):
            row = place(layer, plane, position)
            if row is not None:
                _bytes(layout, span, at, size).view(row.shape).copy_(row)


def scatter(layout: KVLayout, place: Place, spans: Sequence[Span], layers: range) -> None:
    """Copy each token's bytes of each span's chunk to its place."""
    for span in spans:
        for layer, plane, position, at, size in _pieces(layout, span, layers):
            row = place(layer, plane, position)
            if row is not None:
                row.copy_(_bytes(layout, span, at, size).view(row.shape))


def _bytes(layout: KVLayout, span: Span, at: int, size: int) -> torch.Tensor:
    return torch.frombuffer(span.data[at : at + size], dtype=torch_dtype(layout.dtype))


def _pieces(
    layout: KVLayout, span: Span, layers: range
) -> Iterator[tuple[int, int, int, int, int]]:
    """Yield ``(layer, plane, position, first byte, bytes)`` of every token's row in a chunk."""
    tokens = span.end - span.start
    for layer in layers:
        at = layout.layer_span(layer, tokens)[0]
        for index, plane in enumerate(layout.planes[layer]):
            size = plane.heads * plane.width * layout.dtype.itemsize
            for position in range(span.start, span.end):
                yield layer, index, position, at, size
                at += size
