"""Sequences whose layers lie in separate storages, copied plane by plane."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby, repeat
from operator import itemgetter
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from hexkv.kernels.host.batches import Array
from hexkv.kernels.host.forms import INTS, item, on_host, reaches
from hexkv.kernels.host.moves import Move
from hexkv.ports import InvalidRequest, KVLayout


class _Shape(NamedTuple):
    """The strides of planes of one shape, in memory and in a chunk.

    A run of bytes that is contiguous in both is one item: all heads of a token, or one of them.
    """

    dtype: npt.DTypeLike
    shape: tuple[int, ...]
    """``[tokens]`` or ``[tokens, heads]`` in items, or ``[tokens, heads, width]`` in elements."""

    row: tuple[int, ...]
    """The same without the tokens."""

    steps: tuple[int, ...]
    """Bytes from one to the next in memory."""

    length: int
    """Bytes from the first to the end of the last."""

    strides: tuple[int, ...]
    """Bytes from one to the next in a chunk."""

    apart: tuple[int, ...]
    """Strides of the tensor, in elements."""

    @classmethod
    def of(
        cls, heads: int, width: int, apart: tuple[int, ...], tokens: int, element: int
    ) -> _Shape:
        """Return that of ``[1, heads, tokens, width]`` with strides *apart*, in elements."""
        _, head, token, step = [places * element for places in apart]
        size = width * element
        last = (tokens - 1) * token + (heads - 1) * head + (width - 1) * step + element
        if (step == element or width == 1) and (head == size or heads == 1):
            size *= heads
            return cls(item(size), (tokens,), (), (token,), last, (size,), apart)
        if step == element or width == 1:
            strides = heads * size, size
            return cls(item(size), (tokens, heads), (heads,), (token, head), last, strides, apart)
        row, steps, within = (heads, width), (token, head, step), (heads * size, size, element)
        return cls(INTS[element], (tokens, *row), row, steps, last, within, apart)


_Look: TypeAlias = tuple[Array, torch.Tensor, int, torch.UntypedStorage, int, _Shape]
"""Of one plane of one layer: its memory, the tensor, where that begins, the storage, which the
array does not keep, bytes of each token of a chunk before this plane, and its shape."""


class SeparateLayers:
    """Planes of ``[1, heads, tokens, width]`` in host memory, each a separate copy.

    A plane's array is made at its first copy, for a window may be made for one chunk: to find
    layers that could be copied together (:mod:`hexkv.kernels.host.stacks`) takes longer than that
    copy.
    """

    def __init__(self, layout: KVLayout, tensors: Sequence[Sequence[torch.Tensor]]) -> None:
        """Use *tensors* in host memory, which were checked, as *layout*."""
        self._layout = layout
        self._element = layout.dtype.itemsize
        self._tensors = tensors
        self._looks: dict[int, list[_Look]] = {}
        self._last: tuple[object, _Shape] | None = None
        """The properties of the last plane, and its shape: mostly also those of the next one."""

    @staticmethod
    def suits(tensors: Sequence[Sequence[torch.Tensor]]) -> bool:
        """True if no layers could be copied together, by the first two, in memory of the host."""
        storages = {planes[0].untyped_storage().data_ptr() for planes in tensors[:2]}
        return len(storages) == len(tensors[:2]) and reaches(tensors[0][0])

    def verify(self, layers: range) -> None:
        """Refuse tensors of *layers* that lie elsewhere than when their arrays were made.

        Raises:
            InvalidRequest: one has other memory or strides.
        """
        for layer in layers:
            for _, tensor, home, _, _, shape in self._looks.get(layer, ()):
                if tensor.data_ptr() != home or tensor.stride() != shape.apart:
                    raise InvalidRequest("KV has other memory than when it was looked at")

    def gather(self, moves: Sequence[Move], layers: range) -> None:
        """Copy *layers* to the chunks of *moves*."""
        for chunks, move, memory in self._pairs(moves, layers):
            move.gather(chunks, memory)

    def scatter(self, moves: Sequence[Move], layers: range) -> None:
        """Copy *layers* from the chunks of *moves*."""
        for chunks, move, memory in self._pairs(moves, layers):
            move.scatter(chunks, memory)

    def _pairs(self, moves: Sequence[Move], layers: range) -> list[tuple[Array, Move, Array]]:
        """Return the part of each batch of chunks that each plane has, and its memory."""
        pairs: list[tuple[Array, Move, Array]] = []
        looks: list[_Look] = []
        for layer in layers:
            if layer not in self._looks:
                self._looks[layer] = self._look(layer)
            looks += self._looks[layer]
        for (dtype, _, row, _, _, strides, _), alike in groupby(looks, itemgetter(-1)):
            memories, _, _, _, before, _ = zip(*alike, strict=True)
            # Planes of one shape lie in a chunk at equal distances: one view of all of them.
            count = len(before)
            apart = (before[-1] - before[0]) // max(count - 1, 1)
            for move in moves:
                tokens, _, buffer, offset, step, _ = batch = move.batch
                parts: Array = np.ndarray(
                    (count, batch.height, tokens, *row),
                    dtype,
                    buffer,
                    offset + tokens * before[0],
                    (tokens * apart, step, *strides),
                )
                pairs += zip(parts, repeat(move), memories, strict=False)
        return pairs

    def _look(self, layer: int) -> list[_Look]:
        looks: list[_Look] = []
        before, element = self._layout.layer_span(layer, 1)[0], self._element
        for plane, tensor in zip(self._layout.planes[layer], self._tensors[layer], strict=True):
            traits = plane.heads, plane.width, tensor.stride()
            last = self._last
            if last is None or last[0] != traits:
                made = _Shape.of(*traits, tensor.shape[2], element)
                last = self._last = traits, made  # at once: another thread may look, too
            shape, home = last[1], tensor.data_ptr()
            memory = on_host(home, shape.length, shape.dtype, shape.shape, shape.steps)
            looks.append((memory, tensor, home, tensor.untyped_storage(), before, shape))
            before += traits[0] * traits[1] * element
        return looks
