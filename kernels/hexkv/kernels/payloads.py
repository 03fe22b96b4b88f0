"""Blocks of coded chunks: their places, and how a device that decodes them reads each.

A serde and a device's kernels have to agree on these. A payload goes to the device as it is; the
host finds where its blocks begin and end, and reads nothing else. Needs numpy, and never imports
torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from functools import lru_cache
from typing import NamedTuple, Protocol, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt

from hexkv.ports import CorruptFrame, DType, KVLayout

Numbers: TypeAlias = npt.NDArray[np.int64]


class Coding(IntEnum):
    """The form of a block; one as long as its plane is the plane, in any of them."""

    LEVELS = 0
    """Levels coded by rANS: the largest level in a byte, ``[tokens]`` largest magnitudes in the
    dtype of the layout, ``[lanes]`` classes and turns in a byte each, states in four, words of each
    group of lanes in four, and the words. See :mod:`hexkv.kernels.coding.plain`."""

    INT8 = 1
    """``[tokens, heads]`` scales in the dtype of the layout; ``[tokens, heads, width]`` int8, in
    units of the scale over 127."""

    FLOAT8 = 2
    """``[channels]`` scales; ``[channels, tokens]`` float8_e4m3fn, in units of the scale over
    448."""

    INT4 = 3
    """Least, then largest number of each group; sixteen steps between them, two in a byte, the
    first in its low half, group after group."""

    BITS = 4
    """The upper bits of numbers coded by rANS with tables of its own, the lower ones as they are.

    Of bfloat16 and float32 the nine highest bits are coded, of float16 the eight highest. First the
    lower bits: bytes, the least significant first; the last of bfloat16 and float32 has seven bits
    of each number, in seven bytes for each eight: seven eighths of the numbers have a byte of their
    own, in seven parts, whose highest bits are the last eighth's. Then symbols less one and tables,
    a byte each; upper bits of each symbol in two; ``[tables, symbols]`` counts in two, which add up
    to ``TOTAL``, and none is all of it; the table of each lane in one, and states, words of groups
    and words as above."""


class PlaneForm(NamedTuple):
    """How the blocks of a plane are coded."""

    coding: Coding
    together: int = 0
    """Of ``INT4``: tokens of a channel that are a group, in parts of ``[channels, together]``, the
    last of which has the remaining tokens; even. Zero: a head of a token is one."""


FORMS = {DType.BFLOAT16: (0, True, 7), DType.FLOAT16: (1, False, 8), DType.FLOAT32: (2, True, 23)}
"""Of ``BITS`` by dtype: the number of arrays of whole bytes in the lower bits; whether there is one
of seven bits; the number of all lower bits."""


@runtime_checkable
class SupportsDevicePlanes(Protocol):
    """The additional ability of a serde whose payloads a device can decode."""

    @property
    def name(self) -> str:
        """The name of the serde in frames: whatever has it decodes alike."""
        ...

    def device_forms(self, layout: KVLayout) -> Sequence[PlaneForm]:
        """Return the form of each plane of each layer, in order."""
        ...

    def device_blocks(
        self, payload: memoryview, layout: KVLayout, tokens: int, layers: range
    ) -> Numbers:
        """Return where the blocks of a run of *layers* begin and end, ``[planes, 2]`` in bytes.

        The rest of *payload* is not read. A block is checked by the device that decodes it.

        Raises:
            CorruptFrame: *payload* is not of the form that the serde writes for this shape.
        """
        ...


class Columns(NamedTuple):
    """Properties of the planes of some layers, before any payload: a column for each."""

    rows: Numbers
    """Elements of a token."""

    layer: Numbers
    """Its number among these layers."""

    number: Numbers
    """Its number in its layer."""

    firsts: Numbers
    """By layer: the number of its first plane."""

    counts: Numbers
    """By layer: its planes."""


@lru_cache(maxsize=256)
def columns(layout: KVLayout, layers: range) -> Columns:
    """Return the columns of the planes of *layers*."""
    planes = [layout.planes[layer] for layer in layers]
    counts = np.array([len(some) for some in planes], np.int64)
    firsts = np.cumsum(counts) - counts
    layer = np.repeat(np.arange(len(planes)), counts)
    rows = np.array([p.heads * p.width for some in planes for p in some], np.int64)
    return Columns(rows, layer, np.arange(len(rows)) - firsts[layer], firsts, counts)


def plane_blocks(
    payload: memoryview,
    parts: Sequence[tuple[int, int]],
    layout: KVLayout,
    tokens: int,
    layers: range,
) -> Numbers:
    """Return the blocks of *layers* for :meth:`SupportsDevicePlanes.device_blocks`.

    A part has 8 bytes for the size of each block, and then the blocks; one as long as its layer is
    the layer.

    Args:
        payload: of a chunk.
        parts: where those of all layers begin and end.
        layout: of the chunk.
        tokens: of the chunk.
        layers: a run of them.

    Raises:
        CorruptFrame: sizes do not add up.
    """
    of = columns(layout, layers)
    start, stop = np.array(parts[layers.start : layers.stop], np.int64).T
    whole = of.rows * (tokens * layout.dtype.itemsize)
    raw = stop - start == np.add.reduceat(whole, of.firsts)
    whole_bytes = np.frombuffer(payload, np.uint8)
    at = np.minimum(start[of.layer] + 8 * of.number, len(whole_bytes) - 8)
    told = whole_bytes[at[:, None] + _EIGHT].view("<i8")[:, 0]
    sizes = np.where(raw[of.layer], whole, told)
    if sizes.min() < 0 or sizes.max() > len(whole_bytes):
        raise CorruptFrame("a block that leaves its payload")
    before = np.cumsum(sizes) - sizes
    begin = start + np.where(raw, 0, 8 * of.counts) - before[of.firsts]
    blocks = np.empty((len(sizes), 2), np.int64)
    blocks[:, 0] = begin[of.layer] + before
    blocks[:, 1] = blocks[:, 0] + sizes
    if (blocks[of.firsts + of.counts - 1, 1] != stop).any():
        raise CorruptFrame("the blocks of a layer do not add up to its part")
    return blocks


_EIGHT = np.arange(8)
