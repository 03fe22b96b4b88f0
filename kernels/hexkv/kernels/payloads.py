"""Blocks of coded chunks: their places, and how a device that decodes them reads each.

A serde and a device's kernels have to agree on these. A payload goes to the device as it is; the
host finds where its blocks begin and end, and reads nothing else. Needs numpy, and never imports
torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from functools import lru_cache
from itertools import chain, repeat
from struct import Struct
from typing import NamedTuple, Protocol, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt

from hexkv.kernels.coding.plain import GROUP
from hexkv.ports import CorruptFrame, DType, KVLayout

Numbers: TypeAlias = npt.NDArray[np.int64]

LINE_FIELDS = 2
"""Of a chunk, before its blocks: the place of its first token in the slots; its tokens."""

BLOCK_FIELDS = 3
"""Of a block: where it begins and ends in the payloads; a number that some forms need."""

_HEAD = Struct("<8sQQ")
_SIZE = 8


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


def coded_sizes(
    dtype: DType, forms: tuple[Numbers, Numbers], rows: Numbers, heads: Numbers, tokens: int
) -> tuple[Numbers, npt.NDArray[np.bool_]]:
    """Return the least size of each plane's block, and True where no other is possible.

    Args:
        dtype: of the layout.
        forms: the coding and ``together`` of each plane.
        rows: elements of a token.
        heads: of each plane.
        tokens: of the chunk.
    """
    coding, together = forms
    item, numbers = dtype.itemsize, rows * tokens
    groups = np.where(together > 0, -(-tokens // np.maximum(together, 1)) * rows, heads * tokens)
    whole, sevens, _ = FORMS[dtype]
    least = np.select(
        [coding == one for one in Coding],
        [
            1 + item * tokens + 6 * rows + 4 * -(-rows // GROUP),
            item * heads * tokens + numbers,
            item * rows + numbers,
            2 * item * groups + (numbers + 1) // 2,
            numbers * whole + (7 * sevens) * -(-numbers // 8) + 2,
        ],
    )
    return least, (coding != Coding.LEVELS) & (coding != Coding.BITS)


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
        self,
        payloads: Sequence[memoryview],
        layout: KVLayout,
        tokens: Sequence[int],
        layers: range,
    ) -> Numbers:
        """Return where blocks begin and end in their payloads, ``[payloads, planes, 2]`` in bytes.

        They are those of a run of *layers*; the rest of *payloads* is not read. A block is checked
        by the device that decodes it.

        Args:
            payloads: of a call's chunks.
            layout: of the chunks.
            tokens: of each chunk.
            layers: a run of them.

        Raises:
            CorruptFrame: a payload is not of the form that the serde writes for its shape.
        """
        ...


class Columns(NamedTuple):
    """Properties of the planes of some layers, before any payload: a column for each."""

    rows: Numbers
    """Elements of a token."""

    planes: Numbers
    """Bytes of a token."""

    layer: Numbers
    """Its number among these layers."""

    before: Numbers
    """Bytes of the indexes before its block, those of former layers included."""

    lasts: Numbers | slice
    """By layer: the number of its last plane."""

    sizes: Numbers
    """By layer: bytes of a token."""

    indexes: Numbers
    """By layer: bytes of its part before the blocks."""


@lru_cache(maxsize=256)
def columns(layout: KVLayout, layers: range) -> Columns:
    """Return the columns of the planes of *layers*."""
    planes = [layout.planes[layer] for layer in layers]
    counts = np.array([len(some) for some in planes], np.int64)
    ends = np.cumsum(counts)
    rows = np.array([p.heads * p.width for some in planes for p in some], np.int64)
    each = rows * layout.dtype.itemsize
    sizes = np.add.reduceat(each, ends - counts)
    layer = np.repeat(np.arange(len(planes)), counts)
    step = int(counts[0])
    alike = bool((counts == step).all())
    lasts = slice(step - 1, None, step) if alike else ends - 1  # a slice takes a tenth of the time
    return Columns(rows, each, layer, _SIZE * ends[layer], lasts, sizes, _SIZE * counts)


def plane_blocks(
    payloads: Sequence[memoryview],
    magic: bytes,
    layout: KVLayout,
    tokens: Sequence[int],
    layers: range,
) -> Numbers:
    """Return the blocks of *layers* for :meth:`SupportsDevicePlanes.device_blocks`.

    See ``hexkv.plugins.support.payload`` for the format. All payloads are parsed together: one by
    one, those of a layer would take the host longer than the bus.

    Args:
        payloads: of a call's chunks; one at least.
        magic: the first 8 bytes of each.
        layout: of the chunks.
        tokens: of each chunk.
        layers: a run of them.

    Raises:
        CorruptFrame: a payload has another head, or sizes do not add up.
    """
    of = columns(layout, layers)
    sizes, stops = _parts(payloads, magic, layout, tokens)
    sizes, stops = sizes[:, layers.start : layers.stop], stops[:, layers.start : layers.stop]
    starts = stops - sizes
    index, before = _indexes(payloads, starts, of), of.before
    whole = of.sizes * np.array(tokens)[:, None]
    if (sizes >= whole).any():
        before = _raw_layers(index, sizes, whole, tokens, of)
    each = _numbers(index, len(payloads), len(of.rows))
    ends = each.cumsum(axis=1)
    ends += before
    ends += starts[:, :1]
    if ends[:, of.lasts].tolist() != stops.tolist():
        raise CorruptFrame("the blocks of a layer do not add up to its part")
    blocks = np.empty((*each.shape, 2), np.int64)
    blocks[..., 0], blocks[..., 1] = ends - each, ends
    return blocks


_Index: TypeAlias = list[bytes | memoryview]


def _parts(
    payloads: Sequence[memoryview], magic: bytes, layout: KVLayout, tokens: Sequence[int]
) -> tuple[Numbers, Numbers]:
    """Return the sizes of the parts of all layers, and where they end, ``[payloads, layers]``."""
    begin, token = _HEAD.size + _SIZE * layout.layers, layout.token_bytes
    index: _Index = [payload[:begin] for payload in payloads]
    heads = [(count * token, len(payload)) for count, payload in zip(tokens, payloads, strict=True)]
    begins = [begin] * len(payloads)
    for number in [n for n, (raw, size) in enumerate(heads) if size == _HEAD.size + raw]:
        # The chunk itself, without an index.
        every = columns(layout, range(layout.layers)).sizes * tokens[number]
        index[number] = bytes(index[number][: _HEAD.size]) + every.tobytes()
        begins[number] = _HEAD.size
    return _checked_parts(b"".join(index), begin // _SIZE, tuple(heads), tuple(begins), magic)


@lru_cache(maxsize=8)
def _checked_parts(
    index: bytes,
    row: int,
    heads: Sequence[tuple[int, int]],
    begins: Sequence[int],
    magic: bytes,
) -> tuple[Numbers, Numbers]:
    """Return the parts that *index* describes; kept, as each layer of the same payloads needs them.

    Args:
        index: the beginnings of payloads, one after the other.
        row: numbers of each beginning.
        heads: of each payload, the bytes of its chunk and its own.
        begins: of each payload, where its first part begins.
        magic: the first 8 bytes of each.
    """
    read = _numbers([index], len(heads), row)
    if (read[:, 0] != int.from_bytes(magic, "little", signed=True)).any() or read[
        :, 1:3
    ].tolist() != [[*head] for head in heads]:
        raise CorruptFrame("a payload of another serde or shape")
    sizes = read[:, _HEAD.size // _SIZE :]
    stops = np.cumsum(sizes, axis=1)
    stops += np.array(begins)[:, None]
    if (
        sizes.min() < 0
        or sizes.max() > _MOST
        or stops[:, -1].tolist() != [size for _, size in heads]
    ):
        raise CorruptFrame("the parts of a payload do not add up to it")
    stops.setflags(write=False)
    return sizes, stops


def _indexes(payloads: Sequence[memoryview], starts: Numbers, of: Columns) -> _Index:
    """Return the bytes of each part before its blocks; without a check, as those may be none."""
    owners = chain.from_iterable(map(repeat, payloads, repeat(starts.shape[1])))
    ends = (starts + of.indexes).ravel().tolist()
    places = zip(owners, starts.ravel().tolist(), ends, strict=True)
    return [payload[start:end] for payload, start, end in places]


def _raw_layers(
    index: _Index, sizes: Numbers, whole: Numbers, tokens: Sequence[int], of: Columns
) -> Numbers:
    """Put the sizes of planes into *index* for parts that are layers themselves, and have none.

    Returns:
        the bytes of indexes before each block.
    """
    if (sizes > whole).any():
        raise CorruptFrame("a part that is longer than its layer")
    raw = sizes == whole
    for chunk, layer in zip(*np.nonzero(raw), strict=True):
        own = of.planes[of.layer == layer] * tokens[chunk]
        index[chunk * raw.shape[1] + layer] = own.tobytes()
    missing = np.cumsum(raw * of.indexes, axis=1)
    before: Numbers = of.before - missing[:, of.layer]
    return before


def _numbers(index: Sequence[bytes | memoryview], rows: int, row: int) -> Numbers:
    """Return the numbers that are side by side in *index*, ``[rows, row]``."""
    read = b"".join(index)
    if len(read) != _SIZE * rows * row:
        raise CorruptFrame("a payload ends within an index")
    return np.frombuffer(read, "<i8").reshape(rows, row)


_MOST = 1 << 48
"""Bytes: more than any payload has, and few enough for sums."""
