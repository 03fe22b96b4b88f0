"""The arrays that are joined to a block, and into which it is split."""

from __future__ import annotations

from typing import TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from hexkv.kernels.coding.floats import Floats, widened
from hexkv.ports import CorruptFrame, DType

Piece: TypeAlias = bytes | memoryview | npt.NDArray[np.generic]
Number = TypeVar("Number", np.int8, np.uint8, np.uint16, np.uint32)


def raw(piece: Piece) -> memoryview:
    """Return the bytes of *piece*, without a copy if it is contiguous."""
    if isinstance(piece, bytes | memoryview):
        return memoryview(piece)
    return np.ascontiguousarray(piece).reshape(-1).view(np.uint8).data


class Cursor:
    """Reads the arrays of a block, in the order in which they were joined."""

    def __init__(self, block: memoryview) -> None:
        self._block = block
        self._at = 0

    @property
    def at(self) -> int:
        """The number of bytes read."""
        return self._at

    @property
    def left(self) -> int:
        """The number of bytes not read yet."""
        return len(self._block) - self._at

    def take(self, kind: type[Number], count: int) -> npt.NDArray[Number]:
        """Return the next *count* numbers, in memory of their own.

        Raises:
            CorruptFrame: the block has fewer.
        """
        dtype = np.dtype(kind).newbyteorder("<")
        size = count * dtype.itemsize
        if size > self.left:
            raise CorruptFrame(f"a block of {len(self._block)} bytes ends too early")
        found = np.frombuffer(self._block, dtype, count, self._at)
        self._at += size
        return found.astype(kind)

    def skip(self, size: int) -> int:
        """Skip *size* bytes. Return the offset at which they begin.

        Raises:
            CorruptFrame: the block has fewer.
        """
        if size > self.left:
            raise CorruptFrame(f"a block of {len(self._block)} bytes ends too early")
        self._at += size
        return self._at - size

    def end(self) -> None:
        """Check that the whole block was read.

        Raises:
            CorruptFrame: it was not.
        """
        if self.left:
            raise CorruptFrame(f"a block of {len(self._block)} bytes goes on after its end")

    def peaks(self, dtype: DType, count: int) -> Floats:
        """Return the next *count* numbers of the layout's *dtype*, which are finite.

        Raises:
            CorruptFrame: they are not.
        """
        found = widened(self.take(np.uint8, count * dtype.itemsize).data, dtype)
        if not np.isfinite(found).all():
            raise CorruptFrame("a scale that is no number")
        return found
