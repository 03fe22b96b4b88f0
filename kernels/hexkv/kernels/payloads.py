"""The places of a coded chunk's numbers in its payload, for a device that decodes it.

A serde and a device's kernels have to agree on these. A payload goes to the device as it is; these
are places in it, in bytes, at any alignment. Needs numpy, and never imports torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt

from hexkv.ports import KVLayout


class CodedPlane(NamedTuple):
    """Levels coded by rANS, as :mod:`hexkv.kernels.coding.plain` reads them."""

    half: int
    """Levels are ``-half .. half``, and their tables ``tables(half)``."""

    scales: int
    """``[tokens]`` largest magnitudes in the dtype of the layout, finite."""

    classes: int
    """``[lanes]`` uint8, each less than ``CLASSES``."""

    turns: int
    """``[lanes]`` uint8, each less than the symbols."""

    states: int
    """``[lanes]`` uint32."""

    lengths: npt.NDArray[np.uint32]
    """Words of each group of lanes."""

    words: int
    """uint16, group after group."""


class Int8Plane(NamedTuple):
    """Numbers in units of the largest magnitude of their token's head over 127."""

    scales: int
    """``[tokens, heads]`` in the dtype of the layout, finite."""

    levels: int
    """``[tokens, heads, width]`` int8."""


class Float8Plane(NamedTuple):
    """float8_e4m3fn, in units of the largest magnitude of their channel over 448."""

    scales: int
    """``[channels]`` in the dtype of the layout, finite."""

    codes: int
    """``[channels, tokens]`` uint8."""


class Int4Plane(NamedTuple):
    """Sixteen steps from the least to the largest number of a group."""

    least: int
    """``[groups]`` in the dtype of the layout, finite."""

    largest: int
    """``[groups]`` in the dtype of the layout, finite."""

    pairs: int
    """Two steps in a byte, the first in its low half, group after group."""

    together: int
    """Tokens of a channel that are a group, in parts of ``[channels, together]``, the last
    of which has the remaining tokens; even. Zero: a head of a token is one, ``[tokens, heads]``."""


class BitsPlane(NamedTuple):
    """The upper bits of numbers coded by rANS, by tables of the payload's; the lower as they are.

    Of bfloat16 and float32 the nine highest bits are coded, of float16 the eight highest.
    """

    lower: Sequence[int]
    """The lower bits, ``[numbers]`` bytes each, the least significant first. The last of bfloat16
    and float32 has seven bits of each number, in seven bytes for each eight: seven eighths of the
    numbers have a byte of their own, in seven parts, whose highest bits are the last eighth's."""

    meanings: int
    """``[symbols]`` uint16: upper bits."""

    symbols: int
    counts: int
    """``[tables, symbols]`` uint16; each row adds up to ``TOTAL``, and none is all of it."""

    tables: int

    classes: int
    """``[lanes]`` uint8, each less than *tables*."""

    states: int
    """``[lanes]`` uint32."""

    lengths: npt.NDArray[np.uint32]
    """Words of each group of lanes."""

    words: int
    """uint16, group after group."""


class RawPlane(NamedTuple):
    """The plane itself."""

    start: int


ScaledPlane: TypeAlias = Int8Plane | Float8Plane | Int4Plane
PlaneOfPayload: TypeAlias = CodedPlane | BitsPlane | ScaledPlane | RawPlane


class DevicePart(NamedTuple):
    """The part of a payload that a device needs."""

    start: int
    end: int
    """Bytes of the payload."""

    planes: Sequence[PlaneOfPayload]
    """Each plane of each layer, in order; their places count from *start*."""


@runtime_checkable
class SupportsDevicePlanes(Protocol):
    """The additional ability of a serde whose payloads a device can decode."""

    def device_planes(
        self, payload: memoryview, layout: KVLayout, tokens: int, layers: range
    ) -> DevicePart:
        """Return where a run of *layers* is in *payload*; the rest of it is not read.

        Everything that could lead a reader out of tables or the payload has been checked; the
        device checks that streams end as they should.

        Raises:
            CorruptFrame: *payload* is not of the form that the serde writes for this shape.
        """
        ...
