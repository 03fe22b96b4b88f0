"""KV memory as stacks of layers, and how chunks are moved from and to it.

A serving engine often keeps its layers in one allocation at equal distances. One strided copy
then moves a plane of all layers, where a copy for each layer costs a call and two views.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cache, lru_cache
from itertools import accumulate
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
        element = tensors[0].element_size()
        self._host = all(form.host for form in forms)
        joined = items and self._host and all(form.lie.steps[-1] == 1 for form in forms)
        self._row, size, self._dtype = _row(forms[0].lie, element, joined)
        self._strides = tuple([size * math.prod(self._row[i:]) for i in range(len(self._row) + 1)])
        self._stacks: list[tuple[range, Memory]] = []
        last = None
        for run, step in _runs(forms):
            tensor, form = tensors[run.start], forms[run.start]
            if not form.host:
                self._stacks.append((run, _tensor(tensor, form, len(run), step)))
                continue
            alike = form.lie, len(run), step
            if alike != last:  # mostly every layer lies as the one before
                last = alike
                shape, strides = _grid(*alike, self._row, element, size)
            at = form.offset * element
            self._stacks.append((run, _array(tensor, shape, self._dtype, at, strides)))

    def gather(self, moves: Sequence[Move], layers: range) -> None:
        """Copy *layers* to the chunks of *moves*."""
        for chunks, move, memory in self._pairs(moves, layers):
            move.gather(chunks, memory)

    def scatter(self, moves: Sequence[Move], layers: range) -> None:
        """Copy *layers* from the chunks of *moves*."""
        pairs = self._pairs(moves, layers)
        if self._host:
            for chunks, move, memory in pairs:
                move.scatter(chunks, memory)
            return
        with torch.inference_mode():  # or what was made there could not be written
            for chunks, move, memory in pairs:
                move.scatter(chunks, memory)

    def _pairs(self, moves: Sequence[Move], layers: range) -> list[tuple[Array, Move, Memory]]:
        """Each stack's part of each batch of chunks, and its memory.

        One layer's chunks of all batches come before the next layer's: memory is written in order.
        """
        start = max(self._layers.start, layers.start) - self._layers.start
        stop = min(self._layers.stop, layers.stop) - self._layers.start
        pairs: list[tuple[Array, Move, Memory]] = []
        if start >= stop:
            return pairs
        views = [(self._view(move.batch, start, stop), move) for move in moves]
        for run, memory in self._stacks:
            first, last = run.start, run.stop
            if last <= start or first >= stop:
                continue
            at: int | slice = first - start
            if last - first > 1:
                at = slice(max(first, start) - start, min(last, stop) - start)
                memory = memory[*self._axis, at.start + start - first : at.stop + start - first]
            for view, move in views:
                pairs.append((view[:, :, at], move, memory))
        return pairs

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
    forms = _forms(planes, None if axes is None else tuple(axes), lead)
    made: list[Stacks] = []
    first = 0
    for end in range(1, layout.layers + 1):
        more = end < layout.layers and layout.planes[end] == layout.planes[first]
        if more and all(map(_alike, forms[end], forms[first])):
            continue
        sizes = [p.heads * p.width * layout.dtype.itemsize for p in layout.planes[first]]
        before = [layout.layer_span(first, 1)[0] + end for end in accumulate(sizes, initial=0)]
        for index, start in enumerate(before[:-1]):
            made.append(
                Stacks(
                    range(first, end),
                    [given[index] for given in planes[first:end]],
                    [formed[index] for formed in forms[first:end]],
                    unit=unit,
                    before=start,
                    layer_bytes=sum(sizes),
                    lead=lead,
                    items=items,
                )
            )
        first = end
    return made


def _alike(form: _Form, other: _Form) -> bool:
    """True if layers of these planes go into one group: their rows have one shape and dtype."""
    one, two = form.lie, other.lie
    rows = one is two or (one.row == two.row and one.dense == two.dense)
    return rows and form.dtype is other.dtype


def on_host(tensor: torch.Tensor) -> bool:
    """True if NumPy reaches the memory."""
    return tensor.is_cpu


class _Lie(NamedTuple):
    """How a tensor's ``[places, *row]`` lies in its storage, in elements."""

    places: tuple[int, ...]
    strides: tuple[int, ...]
    """From one place to the next, in each of their dimensions."""

    row: tuple[int, ...]
    """Shape of a row; of a dense one all its elements."""

    steps: tuple[int, ...]
    """Strides of a row."""

    dense: bool
    """True if each row is one run of elements."""


@lru_cache(maxsize=256)
def _lie(
    shape: tuple[int, ...], strides: tuple[int, ...], axes: tuple[int, ...] | None, lead: int
) -> _Lie:
    """How a tensor of that shape lies. Kept, for layers mostly lie as the first one does."""
    axes = tuple(range(len(shape))) if axes is None else axes
    places, apart = [shape[axis] for axis in axes[:lead]], [strides[axis] for axis in axes[:lead]]
    row, steps = [shape[axis] for axis in axes[lead:]], [strides[axis] for axis in axes[lead:]]
    expected = 1
    for size, step in zip(reversed(row), reversed(steps), strict=True):
        if size != 1 and step != expected:
            return _Lie(tuple(places), tuple(apart), tuple(row), tuple(steps), dense=False)
        expected *= size
    return _Lie(tuple(places), tuple(apart), (expected,), (1,), dense=True)


class _Form(NamedTuple):
    """Where a tensor's ``[places, *row]`` lies. Views of it would take longer to make."""

    home: int
    """Address of its storage."""

    lie: _Lie
    offset: int
    """Elements of the storage before it."""

    dtype: torch.dtype
    host: bool


def _forms(
    planes: Sequence[Sequence[torch.Tensor]], axes: tuple[int, ...] | None, lead: int
) -> list[list[_Form]]:
    """Where each of the tensors lies: all that is asked of them, for torch takes long to answer."""
    forms: list[list[_Form]] = []
    last, lie = None, None
    for given in planes:
        row = []
        for tensor in given:
            alike = tensor.shape, tensor.stride()
            if lie is None or alike != last:
                last, lie = alike, _lie(*alike, axes, lead)
            home, offset = tensor.untyped_storage().data_ptr(), int(tensor.storage_offset())
            row.append(_Form(home, lie, offset, tensor.dtype, on_host(tensor)))
        forms.append(row)
    return forms


def _runs(forms: Sequence[_Form]) -> Iterator[tuple[range, int]]:
    """Runs of layers in one storage at equal distances, and the distance in elements."""
    first = 0
    while first < len(forms):
        form = forms[first]
        end, step = first + 1, 0
        while end < len(forms) and forms[end].home == form.home and forms[end].lie == form.lie:
            distance = forms[end].offset - forms[end - 1].offset
            if distance <= 0 or step not in (0, distance):
                break
            end, step = end + 1, distance
        yield range(first, end), step
        first = end


def _row(lie: _Lie, element: int, joined: bool) -> tuple[tuple[int, ...], int, npt.DTypeLike]:
    """Shape of a row in items, their bytes, and their dtype.

    Dense rows are bytes. *joined*: what lies along the last dimension is one item.
    """
    row, size = (lie.row[0] * element,) if lie.dense else lie.row, 1 if lie.dense else element
    if joined:
        size *= row[-1]
        return row[:-1], size, _item(size)
    return row, size, _DTYPES[size]


def _grid(
    lie: _Lie, layers: int, step: int, row: tuple[int, ...], element: int, size: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shape and strides in bytes of ``[places, layers, *row]``, or of one layer without them."""
    shape = (*lie.places, *([layers] if layers > 1 else ()), *row)
    strides = [stride * element for stride in lie.strides]
    if layers > 1:
        strides.append(step * element)
    steps = [size] if lie.dense else [step * element for step in lie.steps]
    return shape, (*strides, *steps[: len(row)])


def _array(
    tensor: torch.Tensor,
    shape: tuple[int, ...],
    dtype: npt.DTypeLike,
    offset: int,
    strides: tuple[int, ...],
) -> Array:
    """Host memory from byte *offset* of a tensor's storage on."""
    if 0 in shape:
        return np.empty(shape, dtype)  # it may begin anywhere, also where its storage is not
    # The storage, alive as long as the array: NumPy checks that it is not left.
    flat = _bytes().detach().set_(tensor.untyped_storage()).numpy()
    return np.ndarray(shape, dtype, flat, offset, strides)


def _tensor(tensor: torch.Tensor, form: _Form, layers: int, step: int) -> torch.Tensor:
    """The same of another device's memory. Dense rows are bytes."""
    places, strides, row, steps, dense = form.lie
    both, distances = ((layers,), (step,)) if layers > 1 else ((), ())
    memory = tensor.detach().as_strided((*places, *both, *row), (*strides, *distances, *steps))
    return memory.view(torch.uint8 if dense else INTEGERS[memory.element_size()])


@cache
def _bytes() -> torch.Tensor:
    """No bytes, to look at others through. To detach it takes half as long as to make one."""
    with torch.inference_mode(False):  # or only who is in inference mode could use it
        return torch.empty(0, dtype=torch.uint8, device="cpu")


@cache
def _item(size: int) -> np.dtype[np.void]:
    return np.dtype((np.void, size))  # which takes as long as a view


_DTYPES = {1: np.uint8, 2: np.int16, 4: np.int32, 8: np.int64}
"""NumPy's name for each of the integers."""
