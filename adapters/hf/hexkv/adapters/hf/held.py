"""The content of a transformers cache: the KV of how many tokens, and of which.

A cache is the host's. It may keep the last tokens only, have room for more than were computed, or
belong to another text: it is compared with its own counts and tokens before its KV gets a name.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from transformers import Cache, DynamicCache, PreTrainedModel, cache_utils
from transformers.cache_utils import CacheLayerMixin

from hexkv.adapters.hf.argument import with_cache
from hexkv.ports import InvalidRequest, LayoutMismatch

_PER_TOKEN = {
    getattr(cache_utils, name, None)
    for name in (
        "DynamicLayer",
        "DynamicSlidingWindowLayer",
        "StaticLayer",
        "StaticSlidingWindowLayer",
    )
}
"""Layers that keep KV as it was computed, token after token."""

_AT_ONCE = 1024
"""Tokens whose first layer is computed at a time."""


def planes_of(cache: Cache) -> list[list[torch.Tensor]]:
    """``[layer][plane]`` of ``[sequences, heads, tokens, width]``: of the tokens that it counts.

    Raises:
        LayoutMismatch: names the layer that keeps no KV per token, holds other tokens than it
            counts, or counts others than the first one.
    """
    layers = getattr(cache, "layers", None)
    if layers is None:
        raise LayoutMismatch(f"a {type(cache).__name__} is no cache of one decoder")
    planes = [_planes_of(index, layer) for index, layer in enumerate(layers)]
    first = planes[0][0].shape[2] if planes else 0
    for index, (keys, _) in enumerate(planes):
        if keys.shape[2] != first:
            raise LayoutMismatch(
                f"layer {index} of the cache counts {keys.shape[2]} tokens, and layer 0 counts"
                f" {first}"
            )
    return _settled(cache, planes) if getattr(cache, "offloading", False) else planes


def _planes_of(index: int, layer: object) -> list[torch.Tensor]:
    name, kind = f"layer {index} of the cache", type(layer)
    # Subclasses of others' making may keep anything; those of this package keep all tokens.
    known = kind in _PER_TOKEN or kind.__module__.startswith("hexkv.")
    if not isinstance(layer, CacheLayerMixin) or not known:
        raise LayoutMismatch(
            f"{name} is a {kind.__name__}, which does not keep KV per token as it was computed"
        )
    keys, values = layer.keys, layer.values
    if keys is None or values is None or keys.dim() != 4 or values.dim() != 4:
        raise LayoutMismatch(f"{name} holds no KV")
    name = f"{name}, a {kind.__name__},"
    counted, held = int(layer.get_seq_length()), min(keys.shape[2], values.shape[2])
    if counted > held:
        raise LayoutMismatch(
            f"{name} counts {counted} tokens and holds the KV of {held}: the first ones have left"
            " its window. A plain DynamicCache() keeps them"
        )
    # A static window counts twice. Once it has rolled the two differ, also after a crop.
    placed = int(getattr(layer, "cumulative_length", counted))
    if placed != counted:
        raise LayoutMismatch(
            f"{name} counts {counted} tokens and has {placed} in their places: its window has"
            " rolled. A plain DynamicCache() keeps all tokens"
        )
    return [plane.detach()[:, :, :counted] for plane in (keys, values)]


def _settled(cache: Cache, planes: list[list[torch.Tensor]]) -> list[list[torch.Tensor]]:
    """*planes* on the host, once the copies that an offloading cache has begun are over."""
    for device in {getattr(layer, "device", None) for layer in cache.layers}:
        wait = getattr(getattr(torch, device.type, None), "synchronize", None) if device else None
        if wait is not None:
            wait(device)
    return [[plane.cpu() for plane in layer] for layer in planes]


def differences(known: Sequence[torch.Tensor], other: Sequence[torch.Tensor]) -> torch.Tensor:
    """``[sequences, tokens]``: by how much KV differs, relative to its norm; of all planes most.

    Args:
        known: ``[1 or sequences, heads, tokens, width]`` for each plane.
        other: ``[sequences, heads, tokens, width]`` for each plane.
    """
    parts = []
    for one, two in zip(known, other, strict=True):
        wanted = one.float()
        norm = torch.linalg.vector_norm(wanted, dim=(1, 3)).clamp_min(1e-30)
        parts.append(torch.linalg.vector_norm(two.float() - wanted, dim=(1, 3)) / norm)
    # A difference that is no number is that of another token's KV.
    return torch.stack(parts).amax(0).nan_to_num(torch.inf)


def tolerance(dtype: torch.dtype) -> float:
    """Differences of one token's KV that are rounding, as other shapes sum in another order."""
    return max(0.02, 4 * torch.finfo(dtype).eps)


class _Stopped(Exception):
    """The model has come to its first layer."""


class _FirstLayer(DynamicCache):
    """A cache that claims to hold some tokens, and takes the KV of the first layer only."""

    def __init__(self, start: int) -> None:
        super().__init__()
        self.start = start
        self.fresh: tuple[torch.Tensor, torch.Tensor] | None = None

    def get_seq_length(self, layer_idx: int = 0) -> int:  # noqa: ARG002 - all layers alike
        return self.start

    def get_mask_sizes(
        self,
        query_length: int | torch.Tensor,
        layer_idx: int = 0,  # noqa: ARG002 - all layers alike
    ) -> tuple[int, int]:
        # Releases before 5 give positions.
        length = query_length if isinstance(query_length, int) else len(query_length)
        return self.start + length, 0

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_: object, **__: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        self.fresh = key_states, value_states
        raise _Stopped


def first_layer(
    model: PreTrainedModel, tokens: Sequence[int], start: int
) -> tuple[torch.Tensor, torch.Tensor] | None:
    """KV of *tokens* from position *start* on, in the first layer; nothing else is computed.

    There, KV depends on a token and its position alone. ``None`` if the model does not stop.
    """
    cache = _FirstLayer(start)
    try:
        with torch.no_grad():
            model(
                input_ids=torch.tensor([tokens], device=model.device),
                **with_cache(model, cache),
                use_cache=True,
                logits_to_keep=1,
            )
    except _Stopped:
        pass
    return cache.fresh


def refuse_other_tokens(
    model: PreTrainedModel, tokens: Sequence[int], planes: Sequence[torch.Tensor]
) -> None:
    """Refuse KV of a first layer that is not that of *tokens*, from position 0 on.

    Args:
        model: computes the first layer again.
        tokens: those that the KV is claimed to be of.
        planes: ``[1, heads, tokens or more, width]``: the first layer's.

    Raises:
        InvalidRequest: names the token.
    """
    for start in range(0, len(tokens), _AT_ONCE):
        some = tokens[start : start + _AT_ONCE]
        fresh = first_layer(model, some, start)
        if fresh is None:
            raise InvalidRequest(f"{type(model).__name__} shows no KV of its first layer alone")
        held = [plane[:, :, start : start + len(some)] for plane in planes]
        again = [plane.to(old.device) for plane, old in zip(fresh, held, strict=True)]
        apart = differences(again, held)[0] > tolerance(fresh[0].dtype)
        if bool(apart.any()):
            at = start + int(apart.nonzero()[0])
            raise InvalidRequest(
                f"layer 0 of the cache holds other KV at position {at} than that of token"
                f" {tokens[at]}: it was computed from other tokens, at other positions, or by other"
                " weights"
            )
