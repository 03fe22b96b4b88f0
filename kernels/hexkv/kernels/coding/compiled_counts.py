"""How often symbols occur, as ``plain`` and ``tables`` count them, compiled by numba."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hexkv.kernels.coding.jit import compile_for
from hexkv.kernels.coding.plain import GROUP, Bytes
from hexkv.kernels.coding.tables import TOTAL


def histograms(symbols: Bytes) -> npt.NDArray[np.uint32]:
    """See :func:`hexkv.kernels.coding.plain.histograms`."""
    seen = np.zeros((symbols.shape[1], 256), np.uint32)
    _histograms(symbols, seen)
    return seen


@compile_for("void(u1[:, ::1], u4[:, ::1])")
def _histograms(symbols: Bytes, seen: npt.NDArray[np.uint32]) -> None:
    tokens, lanes = symbols.shape
    for first in range(0, lanes, GROUP):  # whose counts stay in the cache
        end = min(first + GROUP, lanes)
        for token in range(tokens):
            for lane in range(first, end):
                seen[lane, symbols[token, lane]] += np.uint32(1)


def by_class(seen: npt.NDArray[np.uint32], classes: Bytes, many: int) -> npt.NDArray[np.int64]:
    """See :func:`hexkv.kernels.coding.plain.by_class`."""
    found = np.zeros((many, seen.shape[1]), np.int64)
    _by_class(seen, classes, found)
    return found


@compile_for("void(u4[:, ::1], u1[::1], i8[:, ::1])")
def _by_class(seen: npt.NDArray[np.uint32], classes: Bytes, found: npt.NDArray[np.int64]) -> None:
    lanes, symbols = seen.shape
    for lane in range(lanes):
        row = classes[lane]
        for symbol in range(symbols):
            found[row, symbol] += np.int64(seen[lane, symbol])


def counted(seen: npt.NDArray[np.int64]) -> npt.NDArray[np.uint32]:
    """See :func:`hexkv.kernels.coding.tables.counted`."""
    counts = np.empty(seen.shape, np.uint32)
    _counted(seen, counts)
    return counts


@compile_for("void(i8[:, ::1], u4[:, ::1])")
def _counted(seen: npt.NDArray[np.int64], counts: npt.NDArray[np.uint32]) -> None:
    rows, symbols = seen.shape
    for row in range(rows):
        total, there = np.int64(0), np.int64(0)
        for symbol in range(symbols):
            total += seen[row, symbol]
            there += seen[row, symbol] > 0
        likeliest, left = 0, np.int64(TOTAL)
        for symbol in range(symbols):
            share = seen[row, symbol] * (TOTAL - there) // max(total, 1)
            counts[row, symbol] = share + (seen[row, symbol] > 0)
            left -= np.int64(counts[row, symbol])
            if counts[row, symbol] > counts[row, likeliest]:
                likeliest = symbol
        counts[row, likeliest] += np.uint32(left)
        if counts[row, likeliest] == TOTAL:
            counts[row, likeliest] -= np.uint32(1)
            counts[row, (likeliest + 1) % symbols] += np.uint32(1)


def weighed(
    seen: npt.NDArray[np.uint32], weights: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """See :func:`hexkv.kernels.coding.plain.weighed`."""
    found = np.empty((len(weights), len(seen)))
    _weighed(seen, weights, found)
    return found


@compile_for("void(u4[:, ::1], f8[:, ::1], f8[:, ::1])")
def _weighed(
    seen: npt.NDArray[np.uint32],
    weights: npt.NDArray[np.float64],
    found: npt.NDArray[np.float64],
) -> None:
    rows, symbols = weights.shape
    counts = np.zeros((symbols, GROUP))
    sums = np.empty(GROUP)
    for first in range(0, len(seen), GROUP):
        width = min(GROUP, len(seen) - first)
        for lane in range(width):
            for symbol in range(symbols):
                counts[symbol, lane] = seen[first + lane, symbol]
        for row in range(rows):
            for lane in range(GROUP):
                sums[lane] = 0
            for symbol in range(symbols):
                weight = weights[row, symbol]
                for lane in range(GROUP):
                    sums[lane] += counts[symbol, lane] * weight
            for lane in range(width):
                found[row, first + lane] = sums[lane]
