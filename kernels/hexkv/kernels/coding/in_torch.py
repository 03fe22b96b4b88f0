"""The decoder in torch, on any device: what a kernel for that device is compared with.

States are 64-bit integers here, since torch has few operations on unsigned ones.
"""

from __future__ import annotations

import torch

from hexkv.kernels.coding.plain import GROUP, LEAST
from hexkv.kernels.coding.tables import BITS, TOTAL


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
        ``[tokens, lanes]`` values, and a scalar: whether every stream ended as it should.
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
