"""The coders in plain torch, on any device: kernels for that device are compared with these.

It takes and returns the same as ``in_triton``. States are 64-bit integers here, since torch has few
operations on unsigned ones.
"""

from __future__ import annotations

import torch

from hexkv.kernels.coding.lowbit import FLOAT8_MOST, INT4, INT8
from hexkv.kernels.coding.plain import GROUP, LEAST
from hexkv.kernels.coding.tables import BITS, TOTAL


def to_int8(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ``[rows, peers]`` numbers in units of their row's largest magnitude over 127.

    Returns:
        ``[rows, peers]`` int8, and the largest magnitude of each row in single precision.
    """
    levels, peaks = quantise(values, INT8)
    return (levels.to(torch.int16) - INT8).to(torch.int8), peaks


def from_int8(levels: torch.Tensor, peaks: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return the values of :func:`to_int8`, exact to half a unit, as *dtype*."""
    return (levels.float() / INT8 * peaks[:, None]).to(dtype)


def quantise(values: torch.Tensor, half: int) -> tuple[torch.Tensor, torch.Tensor]:
    """See :func:`hexkv.kernels.coding.plain.quantise`; *values* are finite."""
    shares, peaks = _shares(values)
    return ((shares * half).round() + half).to(torch.uint8), peaks


def to_float8(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ``[rows, peers]`` numbers, scaled so that their row's largest magnitude becomes 448.

    Returns:
        ``[rows, peers]`` uint8, the bits of float8_e4m3fn as torch rounds to it, and the largest
        magnitude of each row in single precision.
    """
    shares, peaks = _shares(values)
    return (shares * FLOAT8_MOST).to(torch.float8_e4m3fn).view(torch.uint8), peaks


def from_float8(codes: torch.Tensor, peaks: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return the values of :func:`to_float8`, exact to about a 16th of each number, as *dtype*."""
    shares = codes.view(torch.float8_e4m3fn).float() / FLOAT8_MOST
    return (shares * peaks[:, None]).to(dtype)


def to_int4(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return ``[rows, peers]`` numbers as one of 16 steps from their row's least to its largest.

    Returns:
        Two steps in a byte, the first in its low half, ``[(rows * peers + 1) // 2]`` uint8; the
        least and the largest of each row in single precision.
    """
    low, high = values.float().aminmax(dim=1)
    spread = torch.where(high > low, high - low, 1.0)
    steps = ((values.float() - low[:, None]) / spread[:, None] * INT4).round().to(torch.uint8)
    pairs = torch.nn.functional.pad(steps.flatten(), (0, steps.numel() % 2)).view(-1, 2)
    return pairs[:, 0] | pairs[:, 1] << 4, low, high


def from_int4(
    pairs: torch.Tensor, low: torch.Tensor, high: torch.Tensor, peers: int, dtype: torch.dtype
) -> torch.Tensor:
    """Return the values of :func:`to_int4`, ``[rows, peers]``, to half a step, as *dtype*."""
    steps = torch.stack([pairs & 15, pairs >> 4], 1).flatten()[: len(low) * peers]
    shares = steps.view(-1, peers).float() / INT4
    low, high = low[:, None], high[:, None]
    # Not low + share * spread: that would round above the largest, and out of a dtype.
    return (shares * high + (1 - shares) * low).clamp(low, high).to(dtype)


def encode(
    symbols: torch.Tensor,
    classes: torch.Tensor,
    turns: torch.Tensor,
    counts: torch.Tensor,
    starts: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """See :func:`hexkv.kernels.coding.plain.encode`; all integers are int64.

    Args:
        symbols: ``[tokens, lanes]``.
        classes: ``[lanes]``.
        turns: ``[lanes]``.
        counts: ``Tables.counts``.
        starts: ``Tables.starts``.

    Returns:
        Words, the number of each group's words, and the states of the lanes.
    """
    tokens, lanes = symbols.shape
    groups = -(-lanes // GROUP)
    turned = (symbols - turns) % counts.shape[1]
    states = torch.full_like(classes, LEAST)
    sent = torch.zeros((tokens, groups * GROUP), dtype=torch.bool, device=symbols.device)
    low = torch.zeros_like(sent, dtype=torch.int64)
    for token in range(tokens - 1, -1, -1):
        count, start = counts[classes, turned[token]], starts[classes, turned[token]]
        full = states >= count << (32 - BITS)
        sent[token, :lanes] = full
        low[token, :lanes] = states & 0xFFFF
        states = torch.where(full, states >> 16, states)
        states = (states // count << BITS) + states % count + start
    sent, low = (by.view(tokens, groups, GROUP).transpose(0, 1) for by in (sent, low))
    return low[sent], sent.sum((1, 2)), states


def decode(
    words: torch.Tensor,
    lengths: torch.Tensor,
    states: torch.Tensor,
    classes: torch.Tensor,
    turns: torch.Tensor,
    slots: torch.Tensor,
    values: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See :func:`hexkv.kernels.coding.plain.decode`; all integers are int64.

    Args:
        words: ``[words]``.
        lengths: ``[groups]``, which add up to the words.
        states: ``[lanes]``.
        classes: ``[lanes]``.
        turns: ``[lanes]``.
        slots: ``Tables.slots``.
        values: ``[tokens, 2 * symbols]``, of any dtype.

    Returns:
        ``[tokens, lanes]`` values, and a scalar: True if every stream ended correctly.
    """
    groups, lanes = len(lengths), len(states)
    padded = torch.cat([words, words.new_zeros(1)])
    ends = torch.cumsum(lengths, 0)
    at = ends - lengths
    rows = classes * TOTAL
    hungry = torch.zeros((groups, GROUP), dtype=torch.int64, device=words.device)
    into = torch.empty((len(values), lanes), dtype=values.dtype, device=values.device)
    for token, row in enumerate(values):
        entries = slots[rows + (states & (TOTAL - 1))]
        into[token] = row[(entries & 0xFF) + turns]
        states = (entries >> 20) * (states >> BITS) + (entries >> 8 & (TOTAL - 1))
        hungry.view(-1)[:lanes] = states < LEAST
        places = at[:, None] + torch.cumsum(hungry, 1) - hungry
        at = at + hungry.sum(1)
        taken = padded[places.clamp(max=len(words))].view(-1)[:lanes]
        states = torch.where(states < LEAST, states << 16 | taken, states)
    return into, (at == ends).all() & (states == LEAST).all()


def _shares(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return *values* as parts of their row's largest magnitude, and that magnitude."""
    values = values.float()
    peaks = values.abs().amax(1) if values.numel() else values.new_zeros(len(values))
    # A quotient, not a product: 1 / peak may overflow.
    return values / torch.where(peaks > 0, peaks, 1.0)[:, None], peaks
