"""The strides of tensors in their storages, and their memory as NumPy arrays.

All properties of a tensor are read here, once: torch takes as long to return one as the copy of a
kilobyte takes, and a window is made for each request.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from ctypes import PYFUNCTYPE, c_int, c_ssize_t, c_void_p, py_object, pythonapi
from functools import cache
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from hexkv.kernels.dtypes import INTEGERS
from hexkv.kernels.host.batches import Array
from hexkv.ports import InvalidRequest


class StridedView(NamedTuple):
    """The shape and strides of a tensor's ``[places, *row]`` in its storage, in elements."""

    places: tuple[int, ...]
    strides: tuple[int, ...]
    """From one place to the next, in each of their dimensions."""

    row: tuple[int, ...]
    """Shape of a row; of a dense one all its elements."""

    steps: tuple[int, ...]
    """Strides of a row."""

    dense: bool
    """True if each row is one run of elements."""

    dtype: torch.dtype

    element: int
    """Bytes of an element."""

    host: bool
    """True if NumPy reaches the memory."""

    given: tuple[int, ...]
    """Strides of the tensor's own dimensions."""


Form: TypeAlias = tuple[StridedView, torch.Tensor, torch.UntypedStorage, int, int]
"""Of a tensor: how it lies, itself, its storage, where that begins, and how many elements of it are
before the tensor. Views would take longer to make."""


def looked_at(
    planes: Sequence[Sequence[torch.Tensor]], axes: Sequence[int] | None, lead: int
) -> tuple[list[list[StridedView]], list[list[Form]]]:
    """Return how each of ``planes[layer][plane]`` lies, its dimensions in the order of *axes*.

    A place has *lead* dimensions. Consecutive tensors that view alike share one object.
    """
    views: list[list[StridedView]] = []
    forms: list[list[Form]] = []
    last, view = None, None
    for given in planes:
        in_row: list[StridedView] = []
        row: list[Form] = []
        for tensor in given:
            traits = tensor.shape, tensor.stride(), tensor.dtype, reaches(tensor)
            if view is None or traits != last:
                last, view = traits, _view_of(*traits, tensor.element_size(), axes, lead)
            storage = tensor.untyped_storage()
            in_row.append(view)
            row.append((view, tensor, storage, storage.data_ptr(), int(tensor.storage_offset())))
        views.append(in_row)
        forms.append(row)
    return views, forms


def reaches(tensor: torch.Tensor) -> bool:
    """True if NumPy reaches the memory."""
    return tensor.is_cpu


def _view_of(
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    dtype: torch.dtype,
    host: bool,
    element: int,
    axes: Sequence[int] | None,
    lead: int,
) -> StridedView:
    given = strides
    if axes is not None:
        shape = tuple([shape[axis] for axis in axes])
        strides = tuple([strides[axis] for axis in axes])
    row, steps = tuple(shape[lead:]), tuple(strides[lead:])
    expected, dense = 1, True
    for size, step in zip(reversed(row), reversed(steps), strict=True):
        if size != 1 and step != expected:
            dense = False
            break
        expected *= size
    if dense:
        row, steps = (expected,), (1,)
    places, apart = tuple(shape[:lead]), strides[:lead]
    return StridedView(places, apart, row, steps, dense, dtype, element, host, given)


def alike(views: Sequence[StridedView], others: Sequence[StridedView]) -> bool:
    """True if layers of these planes go into one group: their rows have one shape and dtype."""
    return all(
        one.row == two.row and one.dense == two.dense and one.dtype is two.dtype
        for one, two in zip(views, others, strict=True)
    )


def runs(forms: Sequence[Form]) -> Iterator[tuple[range, int]]:
    """Yield runs of layers in one storage at equal distances, and the distance in elements."""
    first = 0
    while first < len(forms):
        view, _, _, home, last = forms[first]
        end, step = first + 1, 0
        while end < len(forms) and forms[end][3] == home and forms[end][0] == view:
            distance = forms[end][4] - last
            if distance <= 0 or step not in (0, distance):
                break
            end, step, last = end + 1, distance, forms[end][4]
        yield range(first, end), step
        first = end


def row_of(view: StridedView) -> tuple[tuple[int, ...], int, npt.DTypeLike]:
    """Return the shape of a row in elements, their bytes, and their dtype. Dense rows are bytes."""
    row, size = ((view.row[0] * view.element,), 1) if view.dense else (view.row, view.element)
    return row, size, INTS[size]


def grid(
    view: StridedView, layers: int, step: int, row: tuple[int, ...], size: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return shape and strides in bytes of ``[places, layers, *row]``, or of one layer without."""
    element = view.element
    shape = (*view.places, *([layers] if layers > 1 else ()), *row)
    strides = [stride * element for stride in view.strides]
    if layers > 1:
        strides.append(step * element)
    steps = [size] if view.dense else [step * element for step in view.steps]
    return shape, (*strides, *steps[: len(row)])


def on_host(
    home: int,
    length: int,
    dtype: npt.DTypeLike,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    offset: int = 0,
) -> Array:
    """Return host memory from byte *offset* on of *length* bytes that begin at *home*.

    The caller keeps the storage, and ensures that it is still there. NumPy checks that it is not
    left. (A torch tensor would do both, in four times as long.)

    Raises:
        InvalidRequest: the storage is empty.
    """
    if 0 in shape:
        return np.empty(shape, dtype)  # it may begin anywhere, also outside its storage
    if not home:  # NumPy would take memory of its own for it, and check nothing
        raise InvalidRequest("KV has no memory: its storage was emptied")
    return np.ndarray(shape, dtype, _seen(home, length, _WRITABLE), offset, strides)


def bytes_at(address: int, size: int) -> memoryview:
    """Return *size* bytes of host memory at *address*, which the caller keeps."""
    found: memoryview = _seen(address, size, _WRITABLE)
    return found


def on_device(tensor: torch.Tensor, view: StridedView, layers: int, step: int) -> torch.Tensor:
    """Return memory of another device, ``[places, layers, *row]``. Dense rows are bytes."""
    places, strides, row, steps, dense, *_ = view
    both, distances = ((layers,), (step,)) if layers > 1 else ((), ())
    memory = tensor.detach().as_strided((*places, *both, *row), (*strides, *distances, *steps))
    return memory.view(torch.uint8 if dense else INTEGERS[memory.element_size()])


@cache
def item(size: int) -> np.dtype[np.void]:
    """Return the dtype of items of *size* bytes; making one takes as long as making a view."""
    return np.dtype((np.void, size))


INTS = {1: np.uint8, 2: np.int16, 4: np.int32, 8: np.int64}
"""NumPy's name for the integer of each size in bytes."""

# An array type of ctypes would be made for each size, which takes ten times as long.
_seen = PYFUNCTYPE(py_object, c_void_p, c_ssize_t, c_int)(("PyMemoryView_FromMemory", pythonapi))
_WRITABLE = 0x200
"""PyBUF_WRITE."""
