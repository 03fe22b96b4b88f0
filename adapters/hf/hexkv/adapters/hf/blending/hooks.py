"""Rows that are left out of a layer, by hooks that torch has for it.

The hook of a decoder layer looks for a :class:`BlendedCache` among the layer's arguments, so any
number of threads may use the model at once, with and without one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import pairwise

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle
from transformers import DynamicCache, PreTrainedModel

from hexkv.adapters.hf.blending.cache import BlendedCache
from hexkv.adapters.hf.blending.progress import Pass
from hexkv.adapters.hf.shape import compute_planes
from hexkv.ports import LayoutMismatch

_ROWS = {1: 0, 2: 1, 3: 1, 4: 2}
"""By the number of dimensions, which one counts tokens: positions, ``[batch, tokens]``, hidden
states or rotary angles, masks."""

_TOKENS = [1, 0, 1]


def install(layers: Sequence[nn.Module], owners: Sequence[int]) -> list[RemovableHandle]:
    """Hook *layers*, so that they compute the rows that a blended cache chooses.

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
    """Leave out rows of the arguments of decoder layer *index*."""
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
    if progress.whole:
        return None
    if "attention_mask" in kwargs and kwargs["attention_mask"] is None:
        given = (value for value in args if isinstance(value, torch.Tensor))
        device = next((value.device for value in given), None)
        kwargs = {**kwargs, "attention_mask": progress.causal().to(device)}
    return (
        tuple(_rows_of(value, progress) for value in args),
        {name: _rows_of(value, progress) for name, value in kwargs.items()},
    )


def _rows_of(value: object, progress: Pass) -> object:
    """*value* with the chosen rows of each tensor that has all of them."""
    if isinstance(value, torch.Tensor):
        rows, dim = progress.rows, _ROWS.get(value.dim())
        if rows is None or dim is None or value.shape[dim] != progress.first_rows:
            return value
        rows = rows.to(value.device)
        if len(rows) == 1:
            return value.index_select(dim, rows[0])
        if not dim:
            return value  # the same for all prompts: a model that needs it is found out by a trial
        each = value.expand(len(rows), *value.shape[1:])
        parts = zip(each, rows, strict=True)
        return torch.stack([one.index_select(dim - 1, its) for one, its in parts])
    if isinstance(value, tuple | list) and not hasattr(value, "_fields"):
        return type(value)(_rows_of(item, progress) for item in value)
    if isinstance(value, Mapping) and type(value) is dict:
        return {name: _rows_of(item, progress) for name, item in value.items()}
    return value


class _Owners(DynamicCache):
    """A cache that notes which module was under way when each of its layers was filled."""

    def __init__(self) -> None:
        super().__init__()
        self.under_way: dict[int, int] = {}
        """By list of modules the index of the one that began last."""

        self.of_layers: list[dict[int, int]] = []

    def update(
        self,
        key_states: torch.Tensor,
        value_states: torch.Tensor,
        layer_idx: int,
        *args: object,
        **kwargs: object,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append to a layer."""
        if layer_idx == len(self.of_layers):
            self.of_layers.append(dict(self.under_way))
        updated: tuple[torch.Tensor, torch.Tensor] = super().update(
            key_states, value_states, layer_idx, *args, **kwargs
        )
        return updated


def decoder_layers(model: PreTrainedModel) -> tuple[Sequence[nn.Module], list[int]]:
    """The decoder's layers, and which of them fills each layer of the cache.

    Raises:
        LayoutMismatch: no list of modules fills one layer after the other.
    """
    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
    cache = _Owners()

    def note(which: int, index: int) -> None:
        cache.under_way[which] = index

    handles = [
        layer.register_forward_pre_hook(lambda *_, which=which, index=index: note(which, index))
        for which, layers in enumerate(lists)
        for index, layer in enumerate(layers)
    ]
    try:
        compute_planes(model, _TOKENS, cache)
    finally:
        for handle in handles:
            handle.remove()
    for which, layers in enumerate(lists):
        owners = [under_way.get(which, -1) for under_way in cache.of_layers]
        if owners and owners[0] >= 0 and all(a <= b for a, b in pairwise(owners)):
            return list(layers), owners
    raise LayoutMismatch(f"{type(model).__name__} has no list of layers that fill its cache")
