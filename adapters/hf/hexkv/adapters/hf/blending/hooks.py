"""Rows that are left out of a layer, by hooks that torch has for it.

The hook of a decoder layer looks for a :class:`BlendedCache` among what the layer is given, so any
number of threads may use the model at once, with and without one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from hexkv.adapters.hf.blending.cache import BlendedCache
from hexkv.adapters.hf.blending.progress import Progress

_ROWS = {1: 0, 2: 1, 3: 1, 4: 2}
"""By the number of dimensions, which one counts tokens: positions, ``[batch, tokens]``, hidden
states or rotary angles, masks."""


def install(layers: Sequence[nn.Module], owners: Sequence[int]) -> list[RemovableHandle]:
    """Hook *layers*, so that they compute the rows that a blended cache says.

    Args:
        layers: the decoder's.
        owners: which of them fills each layer of the cache.
    """
    return [
        layer.register_forward_pre_hook(partial(_before, index, owners), with_kwargs=True)
        for index, layer in enumerate(layers)
    ]


def _before(
    index: int,
    owners: Sequence[int],
    _: nn.Module,
    args: tuple[object, ...],
    kwargs: dict[str, object],
) -> tuple[tuple[object, ...], dict[str, object]] | None:
    """Leave out rows from what decoder layer *index* is given."""
    for value in (*args, *kwargs.values()):
        if isinstance(value, BlendedCache):
            progress = value.progress
            break
    else:
        return None
    if progress is None:
        return None
    check = progress.check_layer
    if index <= (-1 if check < 0 else owners[check]):
        return None
    progress.choose()
    if progress.rows is None or len(progress.rows) == progress.first_rows:
        return None
    if "attention_mask" in kwargs and kwargs["attention_mask"] is None:
        kwargs = {**kwargs, "attention_mask": _causal(progress)}
    return (
        tuple(_rows_of(value, progress) for value in args),
        {name: _rows_of(value, progress) for name, value in kwargs.items()},
    )


def _causal(progress: Progress) -> torch.Tensor:
    """``[1, 1, kept, tokens]``: what transformers leaves to the kernel where all rows are there."""
    return (torch.arange(progress.tokens) <= progress.positions[:, None])[None, None]


def _rows_of(value: object, progress: Progress) -> object:
    """*value* with the chosen rows of each tensor that has all of them."""
    if isinstance(value, torch.Tensor):
        rows, dim = progress.rows, _ROWS.get(value.dim())
        if rows is None or dim is None or value.shape[dim] != progress.first_rows:
            return value
        return value.index_select(dim, rows.to(value.device))
    if isinstance(value, tuple | list) and not hasattr(value, "_fields"):
        return type(value)(_rows_of(item, progress) for item in value)
    if isinstance(value, Mapping) and type(value) is dict:
        return {name: _rows_of(item, progress) for name, item in value.items()}
    return value
