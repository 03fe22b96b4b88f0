"""The functions of ``plain``, compiled by numba: the same bytes, many times as fast.

Importing this compiles, or loads the code that an earlier process compiled; it takes seconds once
and then a tenth of one. Everything runs without the GIL. All indices come from shapes, from checked
tables or from counters that are compared before each row, so no input leads outside an array.

The coder goes through 64 lanes at a time, in short loops without order that LLVM turns into the
vector code of the processor at hand. The part with an order, which lanes move a word and where it
is, is a loop over those lanes alone, a tenth to a quarter of them: see :func:`_less`. That takes
operations of LLVM that each of its targets has, so there is one path for all processors.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba.core import types

from hexkv.kernels.coding.compiled_bits import join as join
from hexkv.kernels.coding.compiled_bits import lower as lower
from hexkv.kernels.coding.compiled_bits import symbols as symbols
from hexkv.kernels.coding.compiled_counts import by_class as by_class
from hexkv.kernels.coding.compiled_counts import counted as counted
from hexkv.kernels.coding.compiled_counts import histograms as histograms
from hexkv.kernels.coding.compiled_counts import weighed as weighed
from hexkv.kernels.coding.compiled_floats import narrowed as narrowed
from hexkv.kernels.coding.floats import Floats, Words
from hexkv.kernels.coding.jit import compile_for, inline
from hexkv.kernels.coding.plain import GROUP, LEAST, Bytes, Streams
from hexkv.kernels.coding.tables import BITS, TOTAL, Gaussians, Tables

_FINITE = np.uint32(0x7F800000)
_MAGNITUDE = np.uint32(0x7FFFFFFF)
_LOW = np.uint32(TOTAL - 1)
_BYTE = np.uint32(0xFF)
_WORD = np.uint32(0xFFFF)
_BITS = np.uint32(BITS)
_UP = np.uint32(32 - BITS)
_LEAST = np.uint32(LEAST)
_8, _16, _20 = np.uint32(8), np.uint32(16), np.uint32(20)
_ONE = np.uint64(1)
_ALL = np.uint64((1 << GROUP) - 1)
_WORDS = ir.VectorType(ir.IntType(32), GROUP)
_BITMAP = ir.IntType(GROUP)


@inline
def _less(_: Any, left: Any, right: Any) -> Any:
    """Return a bit for each lane of a group, the first the lowest: 1 where *left* is less.

    Both are arrays of ``GROUP`` uint32 at least. Bits are in this order on little-endian machines,
    the only ones that numba compiles for.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        rows = []
        for kind, array in zip(signature.args, arguments, strict=True):
            data = context.make_array(kind)(context, builder, array).data
            row = builder.load(builder.bitcast(data, _WORDS.as_pointer()))
            row.align = 4
            rows.append(row)
        return builder.bitcast(builder.icmp_unsigned("<", *rows), _BITMAP)

    return types.uint64(left, right), generate


@inline
def _lowest(_: Any, bits: Any) -> Any:
    """Return the place of the lowest bit that is set; one of them has to be."""

    def generate(_: Any, builder: Any, __: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 1))

    return types.uint64(bits), generate


def quantise(values: Floats, half: int) -> tuple[Bytes, Floats] | None:
    """See :func:`hexkv.kernels.coding.plain.quantise`."""
    symbols = np.empty(values.shape, np.uint8)
    peaks = np.empty(len(values), np.float32)
    return (symbols, peaks) if _quantise(values, half, symbols, peaks) else None


@compile_for("boolean(f4[:, ::1], i8, u1[:, ::1], f4[::1])")
def _quantise(values: Floats, half: int, symbols: Bytes, peaks: Floats) -> bool:
    tokens, channels = values.shape
    bits = values.view(np.uint32)
    most = np.float32(half)
    for token in range(tokens):
        # Magnitudes of floats are in the order of their bits, with NaN behind infinity.
        peak = np.uint32(0)
        for channel in range(channels):
            peak = max(peak, bits[token, channel] & _MAGNITUDE)
        if peak >= _FINITE:
            return False
        for channel in range(channels):
            if bits[token, channel] & _MAGNITUDE == peak:
                peaks[token] = abs(values[token, channel])
                break
        divisor = peaks[token] if peak else np.float32(1)
        for channel in range(channels):
            level = np.rint(values[token, channel] / divisor * most)
            symbols[token, channel] = np.uint8(np.int32(level + most))
    return True


def moments(symbols: Bytes) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """See :func:`hexkv.kernels.coding.plain.moments`."""
    sums = np.zeros(symbols.shape[1], np.int64)
    squares = np.zeros(symbols.shape[1], np.int64)
    _moments(symbols, sums, squares)
    return sums, squares


@compile_for("void(u1[:, ::1], i8[::1], i8[::1])")
def _moments(symbols: Bytes, sums: npt.NDArray[np.int64], squares: npt.NDArray[np.int64]) -> None:
    tokens, lanes = symbols.shape
    for token in range(tokens):
        for lane in range(lanes):
            symbol = np.int64(symbols[token, lane])
            sums[lane] += symbol
            squares[lane] += symbol * symbol


def encode(symbols: Bytes, classes: Bytes, turns: Bytes, tables: Tables) -> Streams:
    """See :func:`hexkv.kernels.coding.plain.encode`."""
    tokens, lanes = symbols.shape
    groups = -(-lanes // GROUP)
    words = np.empty(tokens * groups * GROUP, np.uint16)
    lengths = np.empty(groups, np.uint32)
    states = np.empty(lanes, np.uint32)
    table = np.empty(2 * tables.counts.size + 1, np.uint32)
    _entries(tables.counts, table)
    symbols = _whole(symbols)
    used = _encode(symbols, classes, turns, table, tables.symbols, words, lengths, states)
    return words[:used], lengths, states


@compile_for("void(u4[:, ::1], u4[::1])")
def _entries(counts: npt.NDArray[np.uint32], table: npt.NDArray[np.uint32]) -> None:
    """Fill the table of an encoder: :attr:`~hexkv.kernels.coding.tables.Tables.packed`, by rows.

    Each row twice, so that a symbol and its turn lead to an entry without wrapping. The last entry
    is that of a lane that does not exist: a symbol that leaves a state as it is.
    """
    rows, symbols = counts.shape
    for row in range(rows):
        start = np.uint32(0)
        for symbol in range(symbols):
            at = 2 * row * symbols + symbol
            table[at] = table[at + symbols] = np.uint32(start << _16) | counts[row, symbol]
            start += counts[row, symbol]
    table[len(table) - 1] = np.uint32(TOTAL)


@compile_for("i8(u1[:, ::1], u1[::1], u1[::1], u4[::1], i8, u2[::1], u4[::1], u4[::1])")
def _encode(
    symbols: Bytes,
    classes: Bytes,
    turns: Bytes,
    table: npt.NDArray[np.uint32],
    many: int,
    words: npt.NDArray[np.uint16],
    lengths: npt.NDArray[np.uint32],
    states: npt.NDArray[np.uint32],
) -> int:
    tokens, lanes = len(symbols), len(states)
    state = np.empty(GROUP, np.uint32)
    row = np.empty(GROUP, np.uint32)
    entries = np.empty(GROUP, np.uint32)
    bounds = np.empty(GROUP, np.uint32)
    stream = np.empty(tokens * GROUP, np.uint16)
    starts = np.empty(tokens, np.int64)
    used = 0
    for group in range(len(lengths)):
        first = group * GROUP
        width = min(GROUP, lanes - first)
        there = _ALL >> np.uint64(GROUP - width)
        for lane in range(GROUP):
            state[lane] = _LEAST
            row[lane] = len(table) - 1
            if lane < width:
                row[lane] = (2 * classes[first + lane] + 1) * many - turns[first + lane]
        at = 0
        for token in range(tokens - 1, -1, -1):
            starts[token] = at
            for lane in range(GROUP):
                entries[lane] = table[np.uint32(row[lane] + symbols[token, first + lane])]
            for lane in range(GROUP):
                bounds[lane] = (entries[lane] & _WORD) << _UP
            full = ~_less(state, bounds) & there
            while full:
                lane = _lowest(full)
                full &= full - _ONE
                stream[at] = np.uint16(state[lane])
                state[lane] >>= _16
                at += 1
            for lane in range(GROUP):
                count = entries[lane] & _WORD
                # Doubles divide 32-bit integers exactly, and many at a time.
                whole = np.uint32(np.float64(state[lane]) / np.float64(count))
                rest = np.uint32(state[lane] - np.uint32(whole * count))
                state[lane] = np.uint32(whole << _BITS) + rest + (entries[lane] >> _16)
        for lane in range(width):
            states[first + lane] = state[lane]
        lengths[group] = np.uint32(at)
        # The last row that was coded is the first to be decoded.
        for token in range(tokens):
            for place in range(starts[token], at):
                words[used] = stream[place]
                used += 1
            at = starts[token]
    return used


def decode(
    streams: Streams,
    classes: Bytes,
    turns: Bytes,
    tables: Tables,
    values: Words,
    into: Words,
) -> bool:
    """See :func:`hexkv.kernels.coding.plain.decode`."""
    words, lengths, states = streams
    # A row takes a word per lane at most: with as many to spare only rows need checking.
    padded = np.concatenate([words, np.zeros(GROUP, np.uint16)])
    ends = np.cumsum(lengths, dtype=np.int64)
    tokens, lanes = into.shape
    whole: Words = into
    if lanes % GROUP:
        whole = np.empty((tokens, len(lengths) * GROUP), into.dtype)
    # Gaussians keep the slots of their counts; all others compute them once per call.
    slots = tables.slots if isinstance(tables, Gaussians) else _slots_of(tables.counts)
    ended: bool = _decode(padded, ends, states, classes, turns, slots, values, whole)
    if whole is not into:
        into[:] = whole[:, :lanes]
    return ended


def _slots_of(counts: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    """See :attr:`hexkv.kernels.coding.tables.Tables.slots`."""
    slots = np.empty(len(counts) * TOTAL, np.uint32)
    _slots(counts, slots)
    return slots


@compile_for("void(u4[:, ::1], u4[::1])")
def _slots(counts: npt.NDArray[np.uint32], slots: npt.NDArray[np.uint32]) -> None:
    rows, symbols = counts.shape
    at = 0
    for row in range(rows):
        for symbol in range(symbols):
            count = counts[row, symbol]
            entry = np.uint32(count << _20) | np.uint32(symbol)
            for place in range(count):
                slots[at + place] = entry | np.uint32(place << _8)
            at += count


@compile_for(
    "boolean(u2[::1], i8[::1], u4[::1], u1[::1], u1[::1], u4[::1], u2[:, ::1], u2[:, ::1])",
    "boolean(u2[::1], i8[::1], u4[::1], u1[::1], u1[::1], u4[::1], u4[:, ::1], u4[:, ::1])",
)
def _decode(
    words: npt.NDArray[np.uint16],
    ends: npt.NDArray[np.int64],
    states: npt.NDArray[np.uint32],
    classes: Bytes,
    turns: Bytes,
    slots: npt.NDArray[np.uint32],
    values: Words,
    into: Words,
) -> bool:
    last = len(words) - GROUP
    state = np.empty(GROUP, np.uint32)
    row = np.empty(GROUP, np.uint32)
    turn = np.empty(GROUP, np.uint32)
    entries = np.empty(GROUP, np.uint32)
    least = np.empty(GROUP, np.uint32)
    at = 0
    for group in range(len(ends)):
        first = group * GROUP
        width = min(GROUP, len(states) - first)
        there = _ALL >> np.uint64(GROUP - width)
        for lane in range(GROUP):
            least[lane] = _LEAST
            state[lane] = states[first + lane] if lane < width else _LEAST
            row[lane] = np.uint32(classes[first + lane]) << _BITS if lane < width else 0
            turn[lane] = turns[first + lane] if lane < width else 0
        for token in range(len(into)):
            if at > last:
                return False
            of_token = token if len(values) > 1 else 0
            for lane in range(GROUP):
                entries[lane] = slots[np.uint32(row[lane] + (state[lane] & _LOW))]
            for lane in range(GROUP):
                entry = entries[lane]
                state[lane] = np.uint32((entry >> _20) * (state[lane] >> _BITS)) + (
                    entry >> _8 & _LOW
                )
            for lane in range(GROUP):
                symbol = np.uint32((entries[lane] & _BYTE) + turn[lane])
                into[token, first + lane] = values[of_token, symbol]
            hungry = _less(state, least) & there
            while hungry:
                lane = _lowest(hungry)
                hungry &= hungry - _ONE
                state[lane] = state[lane] << _16 | np.uint32(words[at])
                at += 1
        if at != ends[group]:
            return False
        for lane in range(width):
            if state[lane] != _LEAST:
                return False
    return True


def _whole(symbols: Bytes) -> Bytes:
    """Return *symbols* of whole groups, padded with lanes of zeros if needed."""
    missing = -symbols.shape[1] % GROUP
    return np.pad(symbols, ((0, 0), (0, missing))) if missing else symbols
