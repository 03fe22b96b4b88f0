"""Windows on NumPy arrays. Needs numpy; torch has windows of its own, in ``hexkv.kernels``.

As short as a window can be, and so an example for memory of another kind.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hexkv.api import Finished, InvalidRequest, KVLayout, Span

__all__ = ["ArrayKV"]

Array: TypeAlias = NDArray[Any]


class ArrayKV:
    """KV of one prompt: ``planes[layer][plane]`` is an array ``[tokens, heads, width]``.

    Of any strides, so a view as ``kv.transpose(1, 0, 2)`` serves as well. NumPy has no bfloat16 and
    no float8: arrays of the package ml_dtypes are taken, and unsigned integers of the same size.
    """

    def __init__(self, layout: KVLayout, planes: Sequence[Sequence[Array]]) -> None:
        """Use the memory of *planes*.

        Raises:
            InvalidRequest: an array has another shape or dtype than *layout*.
        """
        shapes = [[(p.heads, p.width) for p in some] for some in layout.planes]
        if [[plane.shape[1:] for plane in layer] for layer in planes] != shapes:
            raise InvalidRequest(f"the arrays are not [tokens, heads, width] of {layout!r}")
        arrays = [plane for layer in planes for plane in layer]
        counts = {len(plane) for plane in arrays}
        if len(counts) > 1:
            raise InvalidRequest(f"the arrays have {sorted(counts)} tokens")
        size = layout.dtype.itemsize
        for plane in arrays:
            if plane.dtype.name not in (layout.dtype, f"uint{8 * size}"):
                raise InvalidRequest(f"an array is of {plane.dtype}, the layout of {layout.dtype}")
        self.layout = layout
        self.tokens = counts.pop()
        self._bits = np.dtype(f"uint{8 * size}")
        self.planes = planes
        self._planes = [[plane.view(self._bits) for plane in layer] for layer in planes]

    @classmethod
    def zeros(cls, layout: KVLayout, tokens: int) -> ArrayKV:
        """Return a window on new :attr:`planes`, of unsigned integers where NumPy has no dtype."""
        name = str(layout.dtype)
        kind = np.dtype(name if hasattr(np, name) else f"uint{8 * layout.dtype.itemsize}")
        return cls(
            layout,
            [[np.zeros((tokens, p.heads, p.width), kind) for p in some] for some in layout.planes],
        )

    def gather(self, spans: Sequence[Span], layers: range | None = None) -> Finished:
        for chunk, kv in list(self._pairs(spans, layers, writable=True)):
            chunk[...] = kv
        return Finished()

    def scatter(self, spans: Sequence[Span], layers: range | None = None) -> Finished:
        for chunk, kv in list(self._pairs(spans, layers)):
            kv[...] = chunk
        return Finished()

    def _pairs(
        self, spans: Sequence[Span], layers: range | None, *, writable: bool = False
    ) -> Iterator[tuple[Array, Array]]:
        """Yield each plane of each span as it lies in the chunk, and as it lies in the arrays."""
        layers = range(self.layout.layers) if layers is None else layers
        if layers.step != 1 or not 0 <= layers.start <= layers.stop <= self.layout.layers:
            raise InvalidRequest(f"{layers} is no run of {self.layout.layers} layers")
        for start, end, data in spans:
            if not 0 <= start <= end <= self.tokens:
                raise InvalidRequest(f"[{start}, {end}) leaves a window of {self.tokens} tokens")
            if data.nbytes != self.layout.chunk_bytes(end - start) or not data.c_contiguous:
                raise InvalidRequest(f"{data.nbytes} bytes are no chunk of {end - start} tokens")
            if writable and data.readonly:
                raise InvalidRequest("the memory of a chunk is read-only")
            chunk = np.frombuffer(data, self._bits)
            for layer in layers:
                at = self.layout.layer_span(layer, end - start)[0] // self._bits.itemsize
                for plane in self._planes[layer]:
                    kv = plane[start:end]
                    yield chunk[at : at + kv.size].reshape(kv.shape), kv
                    at += kv.size
