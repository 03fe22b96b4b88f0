"""Sequences in host memory: all planes of one shape in one copy, or each in one of its own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate, chain, repeat
from operator import attrgetter, mul
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from hexkv.kernels.dtypes import torch_dtype
from hexkv.kernels.host.batches import Array
from hexkv.kernels.host.forms import INTS, item, on_host
from hexkv.kernels.host.moves import Move
from hexkv.ports import InvalidRequest, KVLayout, Plane

_heads_of, _width_of = attrgetter("heads"), attrgetter("width")
_shape_of, _dtype_of = attrgetter("shape"), attrgetter("dtype")
_home_of, _strides_of = torch.Tensor.data_ptr, torch.Tensor.stride
_storage_of = torch.Tensor.untyped_storage
_start_of, _size_of = torch.UntypedStorage.data_ptr, torch.UntypedStorage.nbytes


class _Shape(NamedTuple):
    """The strides of planes of one shape, in memory and in a chunk.

    A run of bytes that is contiguous in both is one item: all heads of a token, or one of them.
    """

    dtype: npt.DTypeLike
    shape: tuple[int, ...]
    """``[tokens]`` or ``[tokens, heads]`` in items, or ``[tokens, heads, width]`` in elements."""

    steps: tuple[int, ...]
    """Bytes from one to the next in memory."""

    strides: tuple[int, ...]
    """Bytes from one to the next in a chunk."""

    @classmethod
    def of(cls, heads: int, width: int, apart: Sequence[int], tokens: int, element: int) -> _Shape:
        """Return that of ``[1, heads, tokens, width]`` with strides *apart*, in elements."""
        _, head, token, step = [places * element for places in apart]
        size = width * element
        if (step == element or width == 1) and (head == size or heads == 1):
            size *= heads
            return cls(item(size), (tokens,), (token,), (size,))
        if step == element or width == 1:
            return cls(item(size), (tokens, heads), (token, head), (heads * size, size))
        shape, strides = (tokens, heads, width), (heads * size, size, element)
        return cls(INTS[element], shape, (token, head, step), strides)


_Traits: TypeAlias = tuple[int, int, tuple[int, ...], int]
"""Heads, width, strides in elements, and the address of the storage; 0: any."""

_Row: TypeAlias = tuple[int, torch.Tensor, torch.UntypedStorage]
"""Bytes of each token of a chunk before a plane, its tensor, and the storage of that."""


class _Planes(NamedTuple):
    """Planes of one shape, at equal distances in a chunk."""

    shape: _Shape
    tensors: Sequence[torch.Tensor]
    homes: Sequence[int]
    """The address of each tensor."""

    strides: Sequence[tuple[int, ...]]
    """Those of each tensor, in elements."""

    storages: Sequence[torch.UntypedStorage]
    """Those of the tensors: memories do not keep them."""

    before: int
    """Bytes of each token of a chunk before the first plane."""

    apart: int
    """Bytes of each token of a chunk from one plane to the next."""

    grid: Sequence[int]
    """Rows, if several, and columns of planes in one memory; empty if each has its own."""

    far: Sequence[int]
    """Bytes of each token of a chunk from one to the next of these."""

    memories: Sequence[Array]
    """``[tokens, *grid, ...]``."""

    @classmethod
    def of(cls, shape: _Shape, strides: tuple[int, ...], rows: Sequence[_Row]) -> _Planes:
        """Return that of tensors with *strides*."""
        befores, tensors, storages = zip(*rows, strict=True)
        apart = befores[1] - befores[0] if len(befores) > 1 else 0
        homes, alike = [*map(_home_of, tensors)], [strides] * len(rows)
        places = [*zip(map(_start_of, storages), map(_size_of, storages), strict=True)]
        dtype, lies, steps, _ = shape
        # Never across storages: neighbouring allocations are luck.
        lines = _lines(homes) if len({*places}) == 1 else ()
        grid, far = [], []
        if lines:
            columns, distances = len(homes) // len(lines), [homes[1] - homes[0]]
            grid, far, places = [columns], [apart], places[:1]
            if len(lines) > 1:  # a dimension of one row would keep NumPy from copying runs
                distances.insert(0, lines[1] - lines[0])
                grid.insert(0, len(lines))
                far.insert(0, columns * apart)
            lies, steps = (lies[0], *grid, *lies[1:]), (steps[0], *distances, *steps[1:])
        memories = [
            on_host(*place, dtype, lies, steps, home - place[0])
            for place, home in zip(places, homes, strict=False)
        ]
        return cls(shape, tensors, homes, alike, storages, befores[0], apart, grid, far, memories)


def _even(places: Sequence[int]) -> bool:
    """True if *places* are at equal distances, and not all of them the same."""
    if len(places) == 1:
        return True
    step = places[1] - places[0]
    return step != 0 and [*places] == [*range(places[0], places[0] + step * len(places), step)]


def _lines(places: Sequence[int]) -> Sequence[int]:
    """Return the first place of each row, if these are rows at equal distances, alike and even."""
    if len(places) == 1:
        return ()
    if _even(places):
        return places[:1]
    step = places[1] - places[0]
    ends = (i for i in range(2, len(places)) if places[i] - places[i - 1] != step)
    columns = next(ends, 1)
    lines, row = places[::columns], range(0, columns * step, step) if step else ()
    expected = [first + offset for first in lines for offset in row]
    return lines if _even(lines) and expected == [*places] else ()


def refuse_changed(
    layout: KVLayout, planes: Sequence[Plane], tensors: Sequence[torch.Tensor], tokens: int
) -> None:
    """Refuse *tensors*, one for each plane, that have changed since they were checked.

    Raises:
        InvalidRequest: one has another shape or dtype than *tokens* tokens of *layout*.
    """
    shapes = [(1, plane.heads, tokens, plane.width) for plane in planes]
    alike = [*map(_dtype_of, tensors)].count(torch_dtype(layout.dtype)) == len(tensors)
    if not alike or [*map(_shape_of, tensors)] != shapes:
        raise InvalidRequest("KV has another shape or dtype than when it was checked")


class HostSequence:
    """Planes of ``[1, heads, tokens, width]`` in host memory.

    Arrays are made at the first copy of their layers, for a window may be made for one chunk.
    """

    def __init__(
        self, layout: KVLayout, tensors: Sequence[Sequence[torch.Tensor]], tokens: int
    ) -> None:
        """Use *tensors* in host memory, which were checked, as *layout* of *tokens* tokens."""
        self._layout = layout
        self._tensors = tensors
        self._tokens = tokens
        self._looked: dict[range, list[_Planes]] = {}

    def verify(self, layers: range) -> None:
        """Refuse tensors of *layers* that lie elsewhere than when their arrays were made.

        Raises:
            InvalidRequest: one has other memory or strides.
        """
        for _, tensors, homes, strides, *_ in self._looked.get(layers, ()):
            if homes != [*map(_home_of, tensors)] or strides != [*map(_strides_of, tensors)]:
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
        """Return the part of each batch of chunks that each memory has, and that memory."""
        pairs: list[tuple[Array, Move, Array]] = []
        if layers not in self._looked:
            self._looked[layers] = self._look(layers)
        for shape, _, _, _, _, before, apart, grid, far, memories in self._looked[layers]:
            dtype, (_, *row), _, (each, *strides) = shape
            for move in moves:
                tokens, _, buffer, offset, step, _ = batch = move.batch
                sizes = [batch.height, tokens, *grid, *row]
                steps = [step, each, *map(tokens.__mul__, far), *strides]
                if several := len(memories) > 1:  # one view of all planes
                    sizes.insert(0, len(memories))
                    steps.insert(0, tokens * apart)
                parts: Array = np.ndarray(sizes, dtype, buffer, offset + tokens * before, steps)
                apiece: Iterable[Array] = parts if several else [parts]
                pairs += zip(apiece, repeat(move), memories, strict=False)
        return pairs

    def _look(self, layers: range) -> list[_Planes]:
        if not layers:
            return []
        layout, part = self._layout, slice(layers.start, layers.stop)
        element, some = layout.dtype.itemsize, self._tensors[part]
        tensors, planes = [*chain(*some)], [*chain(*layout.planes[part])]
        refuse_changed(layout, planes, tensors, self._tokens)
        heads, widths = [*map(_heads_of, planes)], [*map(_width_of, planes)]
        sizes = [element * size for size in map(mul, heads, widths)]
        befores = accumulate(sizes, initial=layout.layer_span(layers.start, 1)[0])
        storages = [*map(_storage_of, tensors)]
        # Layers in storages of their own are viewed together in a chunk, others by storage.
        first = {given[0].untyped_storage().data_ptr() for given in some[:2]}
        homes: Iterable[int] = map(_start_of, storages)
        if len(first) == len(some[:2]):
            homes = repeat(0)
        found: dict[_Traits, list[_Row]] = {}
        last: _Traits | None = None
        rows: list[_Row] = []
        each = zip(heads, widths, map(_strides_of, tensors), homes, strict=False)
        for traits, row in zip(each, zip(befores, tensors, storages, strict=False), strict=False):
            if traits != last:  # mostly all lie alike
                last, rows = traits, found.setdefault(traits, [])
            rows.append(row)
        made: list[_Planes] = []
        for (head, width, strides, _), rows in found.items():
            shape = _Shape.of(head, width, strides, self._tokens, element)
            if _even([row[0] for row in rows]):
                made.append(_Planes.of(shape, strides, rows))
            else:
                made += [_Planes.of(shape, strides, [row]) for row in rows]
        return made
