"""The arrays of which a block is put together, and into which it is taken apart."""

from __future__ import annotations

from typing import TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from hexkv.kernels.coding.floats import Floats, widened
from hexkv.ports import CorruptFrame, DType

Piece: TypeAlias = bytes | memoryview | npt.NDArray[np.generic]
Number = TypeVar("Number", np.int8, np.uint8, np.uint16, np.uint32)


def raw(piece: Piece) -> memoryview:
    """The bytes of *piece*, without a copy if it is contiguous."""
    if isinstance(piece, bytes | memoryview):
        return memoryview(piece)
    return np.ascontiguousarray(piece).reshape(-1).view(np.uint8).data


class Cursor:
    """Takes a block apart, in the order in which it was put together."""

    def __init__(self, block: memoryview) -> None:
        self._block = block
        self._at = 0

    @property
    def at(self) -> int:
        """Bytes that were taken."""
        return self._at

    @property
    def left(self) -> int:
        """Bytes that were not taken yet."""
        return len(self._block) - self._at

    def take(self, kind: type[Number], count: int) -> npt.NDArray[Number]:
        """The next *count* numbers, in memory of their own.

        Raises:
            CorruptFrame: there are not so many.
        """
        dtype = np.dtype(kind).newbyteorder("<")
        size = count * dtype.itemsize
        if size > self.left:
            raise CorruptFrame(f"a block of {len(self._block)} bytes ends too early")
        found = np.frombuffer(self._block, dtype, count, self._at)
        self._at += size
        return found.astype(kind)

    def skip(self, size: int) -> int:
        """Take *size* bytes unseen; where they begin.

        Raises:
            CorruptFrame: there are not so many.
        """
        if size > self.left:
            raise CorruptFrame(f"a block of {len(self._block)} bytes ends too early")
        self._at += size
        return self._at - size

    def end(self) -> None:
        """Be sure that all was taken.

        Raises:
            CorruptFrame: it was not.
        """
        if self.left:
            raise CorruptFrame(f"a block of {len(self._block)} bytes goes on after its end")

    def peaks(self, dtype: DType, count: int) -> Floats:
        """The next *count* numbers of the layout's *dtype*, which are finite.

        Raises:
            CorruptFrame: they are not.
        """
        found = widened(self.take(np.uint8, count * dtype.itemsize).data, dtype)
        if not np.isfinite(found).all():
            raise CorruptFrame("a scale that is no number")
        return found
