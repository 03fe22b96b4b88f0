"""KV memory as stacks of layers, and how chunks are moved from and to it.

A serving engine often keeps its layers in one allocation at equal distances. One strided copy
then moves a plane of all layers, where a copy for each layer costs a call and two views.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import accumulate, groupby
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from hexkv.kernels.batches import Array, Batch
from hexkv.kernels.dtypes import INTEGERS
from hexkv.kernels.moves import Memory, Move
from hexkv.ports import KVLayout


class Stacks:
    """One plane of layers that are alike, in stacks of layers at equal distances.

    Each is ``[places, layers, *row]`` as integers, a row being one unit's KV of one layer: an array
    of host memory, or a tensor of another device. Of one layer it is ``[places, *row]``.
    """

    def __init__(
        self,
        layers: range,
        tensors: Sequence[torch.Tensor],
        forms: Sequence[_Form],
        *,
        unit: int,
        before: int,
        layer_bytes: int,
        lead: int,
        items: bool,
    ) -> None:
        """Look at *tensors*.

        Args:
            layers: of the group.
            tensors: one for each of the layers.
            forms: of the tensors, as ``[places, *row]``.
            unit: tokens of a row.
            before: bytes of each token of a chunk before this plane of the first layer.
            layer_bytes: bytes of each token of a chunk from one layer to the next.
            lead: dimensions that say where a row is.
            items: have the last dimension of a row as one item, in host memory. NumPy copies it
                with one move of memory then, whatever lies beside it.
        """
        self._layers = layers
        self._axis = (slice(None),) * lead
        self._unit = unit
        self._before = before
        self._layer_bytes = layer_bytes
        self._stacks: list[tuple[range, Memory]] = []
        for run, memory in _runs(tensors, forms, lead):
            self._stacks.append((run, memory.numpy() if on_host(memory) else memory))
        size = memory.element_size()
        self._row = tuple(memory.shape[-len(forms[0].row(lead)[0]) :])
        self._dtype: npt.DTypeLike = _DTYPES[size]
        if items and (stacks := _of_items(self._stacks)) is not None:
            self._stacks = stacks
            size *= self._row[-1]
            self._row, self._dtype = self._row[:-1], _item(size)
        self._strides = tuple(size * math.prod(self._row[i:]) for i in range(len(self._row) + 1))

    def gather(self, moves: Sequence[Move], layers: range) -> None:
        """Copy *layers* to the chunks of *moves*."""
        for chunks, move, memory in self._pairs(moves, layers):
            move.gather(chunks, memory)

    def scatter(self, moves: Sequence[Move], layers: range) -> None:
        """Copy *layers* from the chunks of *moves*."""
        for chunks, move, memory in self._pairs(moves, layers):
            move.scatter(chunks, memory)

    def _pairs(self, moves: Sequence[Move], layers: range) -> Iterator[tuple[Array, Move, Memory]]:
        """Each stack's part of each batch of chunks, and its memory.

        One layer's chunks of all batches come before the next layer's: memory is written in order.
        """
        start = max(self._layers.start, layers.start) - self._layers.start
        stop = min(self._layers.stop, layers.stop) - self._layers.start
        if start >= stop:
            return
        views = [(self._view(move.batch, start, stop), move) for move in moves]
        for run, memory in self._stacks:
            first, last = max(run.start, start), min(run.stop, stop)
            if first >= last:
                continue
            if len(run) == 1:
                for view, move in views:
                    yield view[:, :, first - start], move, memory
                continue
            part = memory[*self._axis, first - run.start : last - run.start]
            for view, move in views:
                yield view[:, :, first - start : last - start], move, part

    def _view(self, batch: Batch, start: int, stop: int) -> Array:
        """``[chunks, units, layers, *row]`` of layers ``[start, stop)`` of the group."""
        tokens = batch.tokens
        return batch.view(
            self._dtype,
            tokens * (self._before + start * self._layer_bytes),
            (tokens // self._unit, stop - start, *self._row),
            (self._strides[0], tokens * self._layer_bytes, *self._strides[1:]),
        )


def stacked(
    layout: KVLayout,
    planes: Sequence[Sequence[torch.Tensor]],
    unit: int,
    *,
    lead: int = 1,
    axes: Sequence[int] | None = None,
    items: bool = False,
) -> list[Stacks]:
    """All ``planes[layer][plane]`` of ``[places, *row]``, rows of *unit* tokens.

    A place has *lead* dimensions. *axes* are those of the tensors that are looked at, in this
    order; of any other, the first place is. *items*: see :class:`Stacks`.
    """
    forms = [[_Form.of(tensor, axes, lead) for tensor in given] for given in planes]
    kinds = [
        (alike, *[(form.shape[lead:], form.dense, tensor.dtype) for form, tensor in both])
        for alike, given, formed in zip(layout.planes, planes, forms, strict=True)
        for both in [zip(formed, given, strict=True)]
    ]
    made: list[Stacks] = []
    for _, run in groupby(range(layout.layers), kinds.__getitem__):
        layers = [*run]
        first = layers[0]
        sizes = [p.heads * p.width * layout.dtype.itemsize for p in layout.planes[first]]
        before = [layout.layer_span(first, 1)[0] + end for end in accumulate(sizes, initial=0)]
        for index, start in enumerate(before[:-1]):
            made.append(
                Stacks(
                    range(first, layers[-1] + 1),
                    [planes[layer][index] for layer in layers],
                    [forms[layer][index] for layer in layers],
                    unit=unit,
                    before=start,
                    layer_bytes=sum(sizes),
                    lead=lead,
                    items=items,
                )
            )
    return made


def on_host(tensor: torch.Tensor) -> bool:
    """True if NumPy reaches the memory."""
    return tensor.device.type == "cpu"


class _Form(NamedTuple):
    """Where a tensor's ``[places, *row]`` lies. Views of it would take longer to make."""

    home: int
    """Address of its storage."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    """Elements of the storage before it."""

    dense: bool
    """True if each row is one run of bytes."""

    @classmethod
    def of(cls, tensor: torch.Tensor, axes: Sequence[int] | None, lead: int) -> _Form:
        shape, strides = tuple(tensor.shape), tensor.stride()
        if axes is not None:
            shape = tuple([shape[axis] for axis in axes])
            strides = tuple([strides[axis] for axis in axes])
        dense, expected = True, 1
        for axis in range(len(shape) - 1, lead - 1, -1):
            if shape[axis] != 1 and strides[axis] != expected:
                dense = False
                break
            expected *= shape[axis]
        home = tensor.untyped_storage().data_ptr()
        return cls(home, shape, strides, int(tensor.storage_offset()), dense)

    def row(self, lead: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Shape and strides of a row; of a dense one as a run of elements."""
        if self.dense:
            return (math.prod(self.shape[lead:]),), (1,)
        return self.shape[lead:], self.strides[lead:]


def _runs(
    tensors: Sequence[torch.Tensor], forms: Sequence[_Form], lead: int
) -> Iterator[tuple[range, torch.Tensor]]:
    """Runs of *tensors* in one storage at equal distances, each as ``[places, run, *row]``.

    One alone is ``[places, *row]``. Dense rows are bytes.
    """
    first = 0
    while first < len(tensors):
        form = forms[first]
        end, step = first + 1, 0
        while end < len(tensors) and forms[end][:3] == form[:3]:
            distance = forms[end].offset - forms[end - 1].offset
            if distance <= 0 or step not in (0, distance):
                break
            end, step = end + 1, distance
        row, steps = form.row(lead)
        layers, distances = ((end - first,), (step,)) if end > first + 1 else ((), ())
        tensor = tensors[first].detach()
        memory = tensor.as_strided(
            (*form.shape[:lead], *layers, *row), (*form.strides[:lead], *distances, *steps)
        )
        word = torch.uint8 if form.dense else INTEGERS[memory.element_size()]
        yield range(first, end), memory.view(word)
        first = end


def _of_items(stacks: Sequence[tuple[range, Memory]]) -> list[tuple[range, Memory]] | None:
    """*stacks* of items that are as long as their last dimension is; ``None`` if it lies apart."""
    made: list[tuple[range, Memory]] = []
    for run, memory in stacks:
        if isinstance(memory, torch.Tensor) or memory.strides[-1] != memory.itemsize:
            return None
        item = _item(memory.shape[-1] * memory.itemsize)
        made.append((run, memory.view(item)[..., 0]))
    return made


@cache
def _item(size: int) -> np.dtype[np.void]:
    return np.dtype((np.void, size))  # which takes as long as a view


_DTYPES = {1: np.uint8, 2: np.int16, 4: np.int32, 8: np.int64}
"""NumPy's name for each of the integers."""
