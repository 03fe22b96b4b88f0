"""The upper bits of numbers as symbols for an entropy coder, and the lower ones as they are.

The upper bits of bfloat16 and float32 are sign and exponent. Both have seven bits more than whole
bytes below them: these are stored in a byte each, except for every eighth, whose bits are the
highest of the other seven.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from hexkv.ports import DType

Bytes: TypeAlias = npt.NDArray[np.uint8]
Words: TypeAlias = npt.NDArray[np.uint8] | npt.NDArray[np.uint16] | npt.NDArray[np.uint32]

UPPER = {DType.BFLOAT16: 9, DType.FLOAT32: 9}
"""The number of upper bits of a dtype; those that are not here have eight."""

_SEVEN = 0x7F
_MOST = 128
"""Exponents that a symbol of eight bits can tell apart beside a sign."""


def words(plane: memoryview, dtype: DType) -> Words:
    """Return the elements of *plane* as integers."""
    if dtype.itemsize == 1:
        return np.frombuffer(plane, np.uint8)
    return np.frombuffer(plane, "<u2" if dtype.itemsize == 2 else "<u4")


def symbols(elements: Words, dtype: DType) -> tuple[Bytes, npt.NDArray[np.uint16]] | None:
    """Return the upper bits of *elements* as symbols below 256, and each symbol's meaning.

    Numbers in their order are those of one sign, then those of the other, by magnitude.

    ``None`` if there are too many of them, as infinities and NaN beside small numbers are.
    """
    if dtype not in UPPER:
        return (elements >> 8 * (dtype.itemsize - 1)).astype(np.uint8), np.arange(
            256, dtype=np.uint16
        )
    bits = 8 * dtype.itemsize
    exponents = (elements >> bits - 9).astype(np.uint8)
    least = least_of(exponents)
    if least is None:
        return None
    found = np.maximum(exponents, np.uint8(least))
    found -= np.uint8(least)
    found |= (elements >> bits - 8 & 0x80).astype(np.uint8)
    return found, meanings(least)


def least_of(exponents: Bytes) -> int | None:
    """Return the exponent whose place zero takes; ``None`` if there are too many exponents."""
    # Zero is far from all others: it takes the place before them. As bytes, it is behind them.
    least, most = int((exponents - np.uint8(1)).min()), int(exponents.max())
    return None if most - least >= _MOST else min(least, most)


@lru_cache(maxsize=256)
def meanings(least: int) -> npt.NDArray[np.uint16]:
    """Return the meaning of each symbol, where *least* is the place of zero."""
    place = np.arange(256, dtype=np.uint16)
    exponent = np.where(place & 0x7F, least + (place & 0x7F), 0)
    found = ((place & 0x80) << 1 | exponent & 0xFF).astype(np.uint16)
    found.flags.writeable = False
    return found


def lower(elements: Words, dtype: DType) -> list[Bytes]:
    """Return all other bits: whole bytes, the least significant first, then the rest."""
    rest = 8 * dtype.itemsize - UPPER.get(dtype, 8)
    planes = [(elements >> 8 * at).astype(np.uint8) for at in range(rest // 8)]
    return (
        [*planes, _sevens((elements >> 8 * (rest // 8)).astype(np.uint8))] if rest % 8 else planes
    )


def sizes(elements: int, dtype: DType) -> list[int]:
    """Return the bytes of each of the arrays of :func:`lower`."""
    rest = 8 * dtype.itemsize - UPPER.get(dtype, 8)
    return [elements] * (rest // 8) + [7 * -(-elements // 8)] * (rest % 8 > 0)


def join(upper: Words, planes: list[Bytes], dtype: DType) -> None:
    """Add the bits of *planes*, as :func:`lower` gives them, to the elements in *upper*."""
    rest = 8 * dtype.itemsize - UPPER.get(dtype, 8)
    for at, plane in enumerate(planes):
        plain = plane if 8 * at + 8 <= rest else _unpacked(plane, upper.size)
        wide = plain.astype(upper.dtype)
        np.bitwise_or(upper, np.left_shift(wide, 8 * at, out=wide), out=upper)


def _sevens(elements: Bytes) -> Bytes:
    """Return the lower seven bits of *elements*, in seven bytes for each eight."""
    share = -(-len(elements) // 8)
    parts = np.zeros(8 * share, np.uint8)
    np.bitwise_and(elements, _SEVEN, out=parts[: len(elements)])
    *packed, last = parts.reshape(8, share)
    for at, part in enumerate(packed):
        part |= (last << (7 - at)) & np.uint8(~_SEVEN & 0xFF)
    return parts[: 7 * share]


def _unpacked(packed: Bytes, count: int) -> Bytes:
    """Return the *count* elements of seven bits that :func:`_sevens` packed."""
    share = len(packed) // 7
    parts = np.empty(8 * share, np.uint8)
    np.bitwise_and(packed, _SEVEN, out=parts[: 7 * share])
    last = parts[7 * share :]
    last[:] = 0
    for at, part in enumerate(packed.reshape(7, share)):
        last |= (part >> 7) << at
    return parts[:count]
