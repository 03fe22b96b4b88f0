"""What ``plain`` computes, compiled by numba: the same bytes, many times as fast.

Importing this compiles, or loads what an earlier process compiled; it takes seconds once
and then a tenth of one. Everything runs without the GIL. All indices come from shapes, from
checked tables or from counters that are compared before each row, so no input leads
outside an array.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numba
import numpy as np
import numpy.typing as npt

from hexkv.kernels.coding.floats import Floats, Words
from hexkv.kernels.coding.plain import GROUP, LEAST, Bytes, Streams
from hexkv.kernels.coding.tables import BITS, TOTAL, Tables

F = TypeVar("F", bound=Callable[..., object])

_FINITE = np.uint32(0x7F800000)
_MAGNITUDE = np.uint32(0x7FFFFFFF)
_LOW = np.uint32(TOTAL - 1)
_BYTE = np.uint32(0xFF)
_WORD = np.uint32(0xFFFF)
_BITS = np.uint32(BITS)
_UP = np.uint32(32 - BITS)
_LEAST = np.uint32(LEAST)
_8, _16, _20 = np.uint32(8), np.uint32(16), np.uint32(20)


def _compile(*signatures: str) -> Callable[[F], F]:
    """numba, for given types only, so that no call ever waits for a compiler."""

    def decorate(function: F) -> F:
        for cache in (True, False):
            try:
                made: F = numba.njit(  # type: ignore[assignment]
                    list(signatures),
                    nogil=True,
                    cache=cache,
                    error_model="numpy",
                    boundscheck=False,
                )(function)
            except RuntimeError:  # there is no folder that numba can write its cache to
                if not cache:
                    raise
            else:
                return made
        raise AssertionError("unreachable")

    return decorate


def quantise(values: Floats, half: int) -> tuple[Bytes, Floats] | None:
    """See :func:`hexkv.kernels.coding.plain.quantise`."""
    symbols = np.empty(values.shape, np.uint8)
    peaks = np.empty(len(values), np.float32)
    return (symbols, peaks) if _quantise(values, half, symbols, peaks) else None


@_compile("boolean(f4[:, ::1], i8, u1[:, ::1], f4[::1])")
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


@_compile("void(u1[:, ::1], i8[::1], i8[::1])")
def _moments(symbols: Bytes, sums: npt.NDArray[np.int64], squares: npt.NDArray[np.int64]) -> None:
    tokens, lanes = symbols.shape
    for token in range(tokens):
        for lane in range(lanes):
            symbol = np.int64(symbols[token, lane])
            sums[lane] += symbol
            squares[lane] += symbol * symbol


def histograms(symbols: Bytes) -> npt.NDArray[np.uint32]:
    """See :func:`hexkv.kernels.coding.plain.histograms`."""
    seen = np.zeros((symbols.shape[1], 256), np.uint32)
    _histograms(symbols, seen)
    return seen


@_compile("void(u1[:, ::1], u4[:, ::1])")
def _histograms(symbols: Bytes, seen: npt.NDArray[np.uint32]) -> None:
    tokens, lanes = symbols.shape
    for first in range(0, lanes, GROUP):  # whose counts stay in the cache
        end = min(first + GROUP, lanes)
        for token in range(tokens):
            for lane in range(first, end):
                seen[lane, symbols[token, lane]] += np.uint32(1)


def encode(symbols: Bytes, classes: Bytes, turns: Bytes, tables: Tables) -> Streams:
    """See :func:`hexkv.kernels.coding.plain.encode`."""
    lanes = symbols.shape[1]
    words = np.empty(symbols.size, np.uint16)
    lengths = np.empty(-(-lanes // GROUP), np.uint32)
    states = np.empty(lanes, np.uint32)
    used = _encode(symbols, classes, turns, tables.packed, words, lengths, states)
    return words[:used], lengths, states


@_compile("i8(u1[:, ::1], u1[::1], u1[::1], u4[:, ::1], u2[::1], u4[::1], u4[::1])")
def _encode(
    symbols: Bytes,
    classes: Bytes,
    turns: Bytes,
    packed: npt.NDArray[np.uint32],
    words: npt.NDArray[np.uint16],
    lengths: npt.NDArray[np.uint32],
    states: npt.NDArray[np.uint32],
) -> int:
    tokens, lanes = symbols.shape
    many = packed.shape[1]
    entries = np.empty(GROUP, np.uint32)
    table = packed.reshape(-1)
    stream = np.empty(tokens * GROUP + 1, np.uint16)  # and one that is written in vain
    used = 0
    for group in range(len(lengths)):
        first = group * GROUP
        width = min(GROUP, lanes - first)
        state = states[first : first + width]
        turn = turns[first : first + width]
        row = classes[first : first + width]
        state[:] = _LEAST
        at = len(stream)
        for token in range(tokens - 1, -1, -1):
            symbol = symbols[token, first : first + width]
            # Three short loops: the first and the last have no order, and become vector code.
            for lane in range(width):
                turned = np.int32(symbol[lane]) - np.int32(turn[lane])
                turned += np.int32(many) if turned < 0 else np.int32(0)
                entries[lane] = table[np.int32(row[lane]) * np.int32(many) + turned]
            for lane in range(width - 1, -1, -1):
                full = state[lane] >= (entries[lane] & _WORD) << _UP
                # Written in any case, and overwritten unless it counts: no branch to guess.
                stream[at - 1] = np.uint16(state[lane] & _WORD)
                state[lane] = state[lane] >> _16 if full else state[lane]
                at -= int(full)
            for lane in range(width):
                count = entries[lane] & _WORD
                # Doubles divide 32-bit integers exactly, and many at a time.
                whole = np.uint32(np.float64(state[lane]) / np.float64(count))
                rest = state[lane] - whole * count
                state[lane] = (whole << _BITS) + rest + (entries[lane] >> _16)
        length = len(stream) - at
        words[used : used + length] = stream[at:]
        lengths[group] = np.uint32(length)
        used += length
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
    ended: bool = _decode(padded, ends, states.copy(), classes, turns, tables.slots, values, into)
    return ended


@_compile(
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
    tokens, lanes = into.shape
    last = len(words) - GROUP
    rows = np.empty(GROUP, np.uint32)
    entries = np.empty(GROUP, np.uint32)
    at = 0
    for group in range(len(ends)):
        first = group * GROUP
        width = min(GROUP, lanes - first)
        state = states[first : first + width]
        turn = turns[first : first + width]
        for lane in range(width):
            rows[lane] = np.uint32(classes[first + lane]) << _BITS
        for token in range(tokens):
            if at > last:
                return False
            target = into[token, first : first + width]
            # Three short loops: the first two have no order, and become vector code.
            for lane in range(width):
                entries[lane] = slots[rows[lane] + (state[lane] & _LOW)]
            for lane in range(width):
                entry = entries[lane]
                state[lane] = (entry >> _20) * (state[lane] >> _BITS) + (entry >> _8 & _LOW)
                target[lane] = values[token, (entry & _BYTE) + turn[lane]]
            for lane in range(width):
                hungry = state[lane] < _LEAST
                fed = state[lane] << _16 | np.uint32(words[at])
                state[lane] = fed if hungry else state[lane]
                at += int(hungry)
        if at != ends[group]:
            return False
        for lane in range(width):
            if state[lane] != _LEAST:
                return False
    return True
