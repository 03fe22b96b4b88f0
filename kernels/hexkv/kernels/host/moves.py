"""Batches of chunks and their places in memory: copied in few calls.

In host memory NumPy copies, on the calling thread: torch splits a copy among threads, which wait
for each other wherever processors are busy. The exception is where torch is faster: it selects into
strided rows at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from numpy.lib.stride_tricks import as_strided

from hexkv.kernels.host.batches import Array, Batch

Memory: TypeAlias = Array | torch.Tensor
"""``[places, ...]`` in host memory, or on another device."""

Places: TypeAlias = npt.NDArray[np.int64]

_SMALL = 8 << 10
"""Bytes below which a separate call takes longer than a copy through a buffer."""

_ITEM = 256
"""Bytes of an item from which an index costs less than reading out of order."""

_INDEXED = 256 << 10
"""Bytes of a chunk's part from which a separate call is worth its cost."""

_MOST_ITEMS = 1 << 16
"""The most items with cached indices; half a megabyte for each shape."""


class Run:
    """A batch of chunks, each of tokens that lie one after the other in memory."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        starts, tokens = batch.starts, batch.tokens
        self._starts = starts
        self._all: slice | None = None
        self._alone: slice | None = None
        """The slice of a single chunk: the preparation for several takes as long as its copy."""

        end = starts[0] + tokens * len(starts)
        if len(starts) == 1:
            self._all = self._alone = slice(starts[0], end)
        elif starts == [*range(starts[0], end, tokens)]:
            self._all = slice(starts[0], end)

    def gather(self, chunks: Array, memory: Memory) -> None:
        """Copy from *memory*, ``[tokens, ...]``, to *chunks*, ``[rows, tokens, ...]``."""
        if self._alone is not None and not isinstance(memory, torch.Tensor):
            chunks[...] = memory[self._alone]
            return
        together = self._together(chunks, memory)
        if together is None:
            for row, part in self._apart(chunks, memory):
                if isinstance(part, torch.Tensor):
                    torch.from_numpy(row).copy_(part, non_blocking=True)
                else:
                    row[...] = part
        elif self.batch.rows is None:
            chunks[...] = together
        else:
            chunks[self.batch.rows] = together

    def scatter(self, chunks: Array, memory: Memory) -> None:
        """Copy the other way."""
        order = None if chunks.nbytes < _INDEXED else self._order(chunks, memory)
        if order is not None:
            items, index, step = order
            for row, start in zip(self.batch.each(chunks), self._starts, strict=True):
                items[start * step :][index] = row.reshape(-1)
        elif self._alone is not None and not isinstance(memory, torch.Tensor):
            memory[self._alone] = chunks
        elif (together := self._together(chunks, memory)) is not None:
            together[...] = chunks if self.batch.rows is None else chunks[self.batch.rows]
        else:
            for row, part in self._apart(chunks, memory):
                if isinstance(part, torch.Tensor):
                    part.copy_(_tensor(row), non_blocking=True)
                else:
                    part[...] = row

    def _order(
        self, chunks: Array, memory: Memory
    ) -> tuple[Array, npt.NDArray[np.intp], int] | None:
        """Return how to scatter in the order of chunks, where NumPy would use that of *memory*.

        With a head's tokens one after the other in memory it would leap through the chunk, which
        takes up to a third longer.

        Returns:
            The items of *memory* as they lie, the places of those of its first chunk among them,
            and how many there are from one token to the next.
        """
        one = chunks[0]
        if isinstance(memory, torch.Tensor) or one.nbytes < _INDEXED:
            return None
        if one.itemsize < _ITEM or one.size > _MOST_ITEMS or not one.flags.c_contiguous:
            return None
        index = _places_of(one.shape, memory.strides, memory.itemsize)
        if index is None:
            return None
        turned = memory.T
        if turned.flags.c_contiguous:
            items = turned.reshape(-1)  # of whole tensors, in a tenth of the time of as_strided
        else:
            ends = zip(memory.shape, memory.strides, strict=True)
            last = sum((count - 1) * stride for count, stride in ends) // memory.itemsize
            items = as_strided(memory, (last + 1,), (memory.itemsize,))
        return items, index, memory.strides[0] // memory.itemsize

    def _apart(self, chunks: Array, memory: Memory) -> Iterator[tuple[Array, Memory]]:
        """Yield each chunk, and its memory."""
        for row, start in zip(self.batch.each(chunks), self._starts, strict=True):
            yield row, memory[start : start + self.batch.tokens]

    def _together(self, chunks: Array, memory: Memory) -> Array | None:
        """Return the memory of all chunks, ``[chunks, tokens, ...]``, if they are moved at once."""
        if self._all is None or isinstance(memory, torch.Tensor):
            return None
        if self.batch.rows is not None and chunks[0].nbytes >= _SMALL:
            return None  # NumPy would make a copy of them first
        part = memory[self._all]
        return part.reshape(len(self._starts), self.batch.tokens, *part.shape[1:])


class Scattered:
    """A batch of chunks whose units lie anywhere in memory, or have no place."""

    def __init__(self, batch: Batch, places: Places, block: int | None = None) -> None:
        """Take the places of units.

        Args:
            batch: of chunks.
            places: ``[chunks, units]``; below zero: no place.
            block: places of a block, if memory is ``[blocks, block, ...]``.
        """
        if batch.rows is None and batch.step < 0:  # order is free; torch needs it forward
            batch, places = batch.turned(), np.ascontiguousarray(places[::-1])
        self.batch = batch
        self._places = places
        self._block = block
        self._whole = not bool((places < 0).any())
        self._single = places[:, 0].tolist() if places.shape[1] == 1 and block is None else None

    def gather(self, chunks: Array, memory: Memory) -> None:
        """Copy from *memory*, ``[places, ...]``, to *chunks*, ``[rows, units, ...]``.

        Every unit has a place.
        """
        batch, size = self.batch, chunks[0].nbytes
        if isinstance(memory, torch.Tensor):
            for row, at in zip(batch.each(chunks), self._places, strict=True):
                torch.from_numpy(row).copy_(memory[self._there(at, memory)], non_blocking=True)
        elif self._single and batch.rows is None and size >= _SMALL // 2 and _torchs(chunks):
            # NumPy would collect all units in a buffer before it copies them to the chunks.
            torch.index_select(
                torch.from_numpy(memory),
                0,
                torch.from_numpy(self._places[:, 0]),
                out=torch.from_numpy(chunks[:, 0]),
            )
        elif size < _SMALL:
            chunks[batch.some] = memory[self._index(self._places)]
        elif self._single:
            units = chunks[:, 0]
            for number, place in zip(batch.numbers, self._single, strict=True):
                units[number] = memory[place]
        else:
            for row, at in zip(batch.each(chunks), self._places, strict=True):
                self._collect(row, memory, at)

    def scatter(self, chunks: Array, memory: Memory) -> None:
        """Copy the other way, and skip units without a place."""
        batch, places = self.batch, self._places
        if self._whole and not isinstance(memory, torch.Tensor):
            if batch.rows is None or chunks[0].nbytes < _SMALL:
                memory[self._index(places)] = chunks[batch.some]
                return
            if self._single:
                units = chunks[:, 0]
                for number, place in zip(batch.numbers, self._single, strict=True):
                    memory[place] = units[number]
                return
        for row, at in zip(batch.each(chunks), places, strict=True):
            kept = at >= 0
            row, at = (row, at) if kept.all() else (row[kept], at[kept])
            if isinstance(memory, torch.Tensor):
                data = _tensor(row).to(memory.device, non_blocking=True)
                memory[self._there(at, memory)] = data
            else:
                memory[self._index(at)] = row

    def _collect(self, row: Array, memory: Array, places: Places) -> None:
        """Copy units to one chunk's *row*, without an intermediate copy if possible."""
        if self._block is None and row.flags.c_contiguous and memory.flags.c_contiguous:
            np.take(memory, places, axis=0, out=row, mode="clip")
        elif self._block is None and row[0].nbytes >= _SMALL // 2:
            for one, place in zip(row, places.tolist(), strict=True):
                one[...] = memory[place]
        else:
            row[...] = memory[self._index(places)]

    def _index(self, places: Places) -> Places | tuple[Places, Places]:
        """Return *places* as an index of memory."""
        return places if self._block is None else np.divmod(places, self._block)

    def _there(self, places: Places, memory: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return *places* as an index of another device's memory."""
        index = self._index(places)
        each = index if isinstance(index, tuple) else (index,)
        return tuple(torch.from_numpy(one).to(memory.device) for one in each)


@lru_cache(maxsize=64)
def _places_of(
    shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int
) -> npt.NDArray[np.intp] | None:
    """Return the offsets of an array's items, in items, in the order of its dimensions.

    ``None`` if NumPy takes them in that order anyway, or they are not at whole items.
    """
    if list(strides) == sorted(strides, reverse=True):
        return None
    if any(stride <= 0 or stride % itemsize for stride in strides):
        return None
    steps = [
        np.arange(count, dtype=np.intp) * (stride // itemsize)
        for count, stride in zip(shape, strides, strict=True)
    ]
    return sum(np.ix_(*steps), start=np.zeros(shape, np.intp)).reshape(-1)


def _torchs(array: Array) -> bool:
    """True if torch can use *array*: it allows no strides below zero, or of half elements."""
    return array.flags.aligned and min(array.strides) >= 0


def _tensor(row: Array) -> torch.Tensor:
    # torch has no read-only tensors, and warns about making a writable one of these.
    return torch.from_numpy(row if row.flags.writeable else row.copy())


Move: TypeAlias = Run | Scattered
