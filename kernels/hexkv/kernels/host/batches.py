"""The chunks of one call as rows of one strided array: made together, not one by one.

Making a view costs one or two microseconds, which is also the time to copy some kilobytes. The
chunks of a call mostly lie in one buffer, the block pool's; the port gives their places in it only
by their addresses. No row is read or written but those of the chunks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from ctypes import addressof, c_char
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from hexkv.ports import Span

Array: TypeAlias = npt.NDArray[Any]


class Batch(NamedTuple):
    """Chunks of one length in one buffer: chunk *i* is row ``rows[i]``, or row *i*."""

    tokens: int
    """The number of tokens in each chunk."""

    starts: Sequence[int]
    """The position of each chunk's first token."""

    buffer: memoryview

    offset: int
    """Byte at which row 0 begins."""

    step: int
    """Bytes from one row to the next, which may be less than zero, or than a row is long."""

    rows: npt.NDArray[np.int64] | None
    """``[chunks]``; ``None`` where the chunks are all rows, in order."""

    def view(
        self, dtype: npt.DTypeLike, at: int, shape: tuple[int, ...], strides: tuple[int, ...]
    ) -> Array:
        """Return ``[rows, *shape]``, from byte *at* of every chunk on; use only rows of chunks.

        Read-only if the buffer is. NumPy checks that it does not leave the buffer.
        """
        return np.ndarray(
            (self.height, *shape), dtype, self.buffer, self.offset + at, (self.step, *strides)
        )

    @property
    def height(self) -> int:
        """The number of rows, up to the last chunk's."""
        return len(self.starts) if self.rows is None else int(self.rows.max()) + 1

    def units(self, tokens: int) -> npt.NDArray[np.int64]:
        """Return ``[chunks, units]``: the positions of all units of *tokens* tokens, in units."""
        firsts = np.array(self.starts, np.int64)[:, None] // tokens
        return firsts + np.arange(self.tokens // tokens)

    def turned(self) -> Batch:
        """Return the same batch from the last row to the first, if chunks are all rows."""
        last = self.offset + self.step * (len(self.starts) - 1)
        return self._replace(starts=self.starts[::-1], offset=last, step=-self.step)

    @property
    def some(self) -> slice | npt.NDArray[np.int64]:
        """The index of all chunks' rows in a view."""
        return slice(None) if self.rows is None else self.rows

    @property
    def numbers(self) -> Sequence[int]:
        """Each chunk's row in a view."""
        return range(len(self.starts)) if self.rows is None else self.rows.tolist()

    def each(self, view: Array) -> Sequence[Array]:
        """Return each chunk's row of a view."""
        return [view[row] for row in self.numbers]


def batches(spans: Sequence[Span]) -> list[Batch]:
    """Return all *spans* but empty ones: those of one length and one buffer together, in order."""
    if len(spans) == 1:
        return [_alone(spans[0])] if spans[0].end > spans[0].start else []
    found: dict[tuple[int, int, bool], list[Span]] = {}
    for span in spans:
        start, end, data = span
        if end > start:
            alike = end - start, id(data.obj), data.readonly
            group = found.get(alike)
            if group is None:
                group = found[alike] = []
            group.append(span)
    made: list[Batch] = []
    for group in found.values():
        together = _together(group) if len(group) > 1 else None
        made.extend(map(_alone, group) if together is None else [together])
    return made


def _alone(span: Span) -> Batch:
    start, end, data = span
    return Batch(end - start, [start], data, 0, 0, None)


def _together(spans: Sequence[Span]) -> Batch | None:
    """Return *spans* of one length and one exporter as a batch, if its memory is theirs."""
    first = spans[0]
    try:
        whole = memoryview(first.data.obj).cast("B")
    except (TypeError, ValueError, BufferError):
        return None  # it does not export its memory a second time, or not as one run of bytes
    # Python integers: for a few hundred, NumPy takes longer.
    home = address_of(whole)
    places = [at - home for at in addresses_of([span.data for span in spans])]
    low, high = min(places), max(places)
    if not 0 <= low <= high <= whole.nbytes - first.data.nbytes:
        return None  # it exports other memory than the first time
    if first.data.readonly:
        whole = whole.toreadonly()
    tokens, starts = first.end - first.start, [span.start for span in spans]
    step = places[1] - places[0]
    if step and places == [*range(places[0], places[0] + step * len(places), step)]:
        return Batch(tokens, starts, whole, places[0], step, None)
    distances = [place - low for place in places]
    step = math.gcd(*distances) or 1
    return Batch(tokens, starts, whole, low, step, np.array(distances) // step)


def addresses_of(chunks: Sequence[memoryview]) -> list[int]:
    """Return the address of each; of memory that may be written, by no call for each."""
    begin = c_char.from_buffer
    try:
        return [addressof(begin(data)) for data in chunks]
    except TypeError:
        return [*map(address_of, chunks)]


def address_of(data: memoryview) -> int:
    if data.readonly:
        return int(np.frombuffer(data, np.uint8).ctypes.data)
    # This takes an eighth of the time of NumPy and torch.
    return addressof(c_char.from_buffer(data))
