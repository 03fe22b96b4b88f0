"""The shape of a model's cache, found by running the model on a few tokens."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Mapping

import torch
from transformers import DynamicCache, PreTrainedModel, cache_utils

from hexkv.adapters.hf.argument import with_cache
from hexkv.adapters.hf.cache import CacheShape, RequestKV
from hexkv.adapters.hf.held import planes_of
from hexkv.kernels import dtype_of
from hexkv.kernels.transfer import gpus
from hexkv.ports import DType, KVLayout, LayerGroup, LayoutMismatch, Plane

_TEXT = [0, 1, 0]
"""The tokens that are run: their number distinguishes their dimension from that of one head or
batch, and they differ, as a sum over equal ones is hidden by the next norm."""

_PROBE = len(_TEXT)

_NOISE = 1e-4
"""By how much equal KV may differ, relative to its norm, or half of the dtype's epsilon if that is
more: batches of experts change their shape with the other tokens, and sums their order."""

_PLACEHOLDER = re.compile("(image|video|audio|speech)_token_(id|index)")

_OTHER_STATE = 0.25
"""By how much KV that is computed once more in another way may differ, relative to its norm. Far
above the rounding of many layers, as other shapes of the same sums round differently."""

_PER_TOKEN = {
    cache_utils.DynamicLayer,
    cache_utils.DynamicSlidingWindowLayer,
    getattr(cache_utils, "DummyLayer", None),
}
"""Kinds of layer that keep KV per token, or none, as one that attends with another layer's.
A window concerns the mask, not the KV. Releases before 5 know no layers without KV."""

_BOTH_WAYS: Mapping[str, tuple[object, ...]] = {
    "is_causal": (False,),
    # "vision" is of images alone, which are not cached here.
    "use_bidirectional_attention": (True, "all"),
}
"""Fields of a configuration, and the values with which a token's KV depends on later ones."""


def layout_of(model: PreTrainedModel) -> KVLayout:
    """The layout of *model*'s KV: multi-head, grouped-query or multi-head latent attention.

    Raises:
        LayoutMismatch: the model's KV cannot be cached by prefix.
    """
    return probe(model).layout


def probe(model: PreTrainedModel) -> CacheShape:
    """Layout and devices of *model*'s cache.

    Raises:
        LayoutMismatch: as for :func:`layout_of`.
    """
    _refuse_unfit(model)
    layers = compute_planes(model, _TEXT, DynamicCache())
    other = compute_planes(model, [*_TEXT[:-1], 1], DynamicCache())
    _refuse_seeing_ahead(model, layers, other)
    _refuse_other_positions(model, layers)
    dtypes = {plane.dtype for planes in layers for plane in planes}
    if len(dtypes) != 1:
        raise LayoutMismatch(f"the cache has {len(dtypes)} dtypes: {sorted(map(str, dtypes))}")
    for index, planes in enumerate(layers):
        for plane in planes:
            if plane.dim() != 4 or plane.shape[0] != 1 or plane.shape[2] != _PROBE:
                raise LayoutMismatch(
                    f"layer {index} keeps {tuple(plane.shape)} for {_PROBE} tokens, not "
                    "[1, heads, tokens, width]"
                )
    latent = getattr(model.config.get_text_config(decoder=True), "kv_lora_rank", None)
    layout = _layout(dtype_of(dtypes.pop()), layers, latent)
    shape = CacheShape(layout, tuple(keys.device for keys, _ in layers))
    _refuse_other_state(model, shape, layers)
    gpus(shape.devices)  # before the first request: memory that is mapped is registered
    return shape


def _layout(dtype: DType, layers: list[list[torch.Tensor]], latent: int | None) -> KVLayout:
    groups: list[LayerGroup] = []
    for keys, values in layers:
        # Releases cache MLA either compressed, or expanded to heads.
        compressed = latent is not None and tuple(keys.shape[1::2]) == (1, latent)
        names = ("latent", "rope") if compressed else ("k", "v")
        planes = tuple(
            Plane(name, plane.shape[1], plane.shape[3])
            for name, plane in zip(names, (keys, values), strict=True)
        )
        if groups and groups[-1].planes == planes:
            groups[-1] = LayerGroup(groups[-1].layers + 1, planes)
        else:
            groups.append(LayerGroup(1, planes))
    return KVLayout(dtype, tuple(groups))


def _refuse_unfit(model: PreTrainedModel) -> None:
    """Refuse models whose KV of a prefix depends on more than the prefix, or is not kept.

    Raises:
        LayoutMismatch: gives the reason.
    """
    config = model.config.get_text_config(decoder=True)
    name = type(model).__name__
    placeholders_of(model)
    if not model.can_generate():
        raise LayoutMismatch(f"{name} does not generate: it is no causal model with a head")
    for part in (model.config, config):
        for field, value in _BOTH_WAYS.items():
            if (used := getattr(part, field, None)) in value:
                raise LayoutMismatch(
                    f"{name} attends both ways ({field}={used!r}), so equal prefixes have different"
                    " KV"
                )
    if model.training:
        raise LayoutMismatch(f"{name} is in training mode, where dropout changes KV: call eval()")
    if model.config.is_encoder_decoder:
        raise LayoutMismatch(f"{name} is an encoder-decoder: its KV depends on another sequence")
    if getattr(model, "_is_stateful", False):
        raise LayoutMismatch(f"{name} keeps a recurrent state, which has no KV per token")
    for layer in _layers_of(model):
        if type(layer) not in _PER_TOKEN:
            raise LayoutMismatch(f"{name} caches in a {type(layer).__name__}, not KV per token")
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None)
    for kind in _rope_kinds(rope):
        if kind == "longrope" or "dynamic" in str(kind):
            raise LayoutMismatch(
                f"{name} scales RoPE ({kind}) by the length of the whole sequence, so equal "
                "prefixes have different KV"
            )


def _layers_of(model: PreTrainedModel) -> list[object]:
    """The layers of the cache that transformers would make for *model*.

    Raises:
        LayoutMismatch: it cannot make one.
    """
    try:
        return list(DynamicCache(config=model.config).layers)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise LayoutMismatch(
            f"{type(model).__name__} has a configuration without the kinds of its layers' caches"
        ) from error


def compute_planes(
    model: PreTrainedModel, tokens: list[int], cache: DynamicCache, **more: torch.Tensor
) -> list[list[torch.Tensor]]:
    """``[layer][plane]`` of the KV that *cache* holds after *tokens*.

    Raises:
        LayoutMismatch: the model keeps none, or cannot be run this way.
    """
    name = type(model).__name__
    known = cache.get_seq_length()
    try:
        with torch.no_grad():
            model(
                input_ids=torch.tensor([tokens], device=model.device),
                **with_cache(model, cache),
                use_cache=True,
                logits_to_keep=1,
                **more,
            )
    except Exception as error:
        after = "after a loaded prefix" if known else "of text"
        raise LayoutMismatch(
            f"{name} does not compute several tokens {after} ({type(error).__name__}: {error})"
        ) from error
    if not cache.layers:
        raise LayoutMismatch(f"{name} caches no KV")
    return planes_of(cache)


def _refuse_other_positions(model: PreTrainedModel, layers: list[list[torch.Tensor]]) -> None:
    """Refuse a model that counts positions itself, and otherwise than ``generate``.

    That gives positions from 0 to every model that takes some. RoBERTa's begin behind the padding.

    Raises:
        LayoutMismatch: the two differ, so that one's KV does not fit the other.
    """
    if "position_ids" not in inspect.signature(model.forward).parameters:
        return
    positions = torch.arange(_PROBE, device=model.device)[None]
    again = compute_planes(model, _TEXT, DynamicCache(), position_ids=positions)
    for first, second in zip(layers, again, strict=True):
        if max(map(relative_change, first, second)) > _OTHER_STATE:
            raise LayoutMismatch(
                f"{type(model).__name__} counts positions otherwise than generate() does, whose KV"
                " differs from that of the model by itself"
            )


def _refuse_other_state(
    model: PreTrainedModel, shape: CacheShape, layers: list[list[torch.Tensor]]
) -> None:
    """Refuse a model that cannot go on from keys and values of a prefix alone.

    As it must after a hit: the KV of a first token is loaded, and the others are computed.

    Raises:
        LayoutMismatch: names the layer.
    """
    room = RequestKV(shape, _PROBE)
    room.fill([[plane[:, :, :1] for plane in planes] for planes in layers])
    again = compute_planes(model, _TEXT[1:], room.cache(1, _PROBE))
    for index, pair in enumerate(zip(layers, again, strict=True)):
        for first, second in zip(*pair, strict=True):
            if (change := relative_change(first, second)) > _OTHER_STATE:
                raise LayoutMismatch(
                    f"{type(model).__name__} keeps more of a prefix than keys and values: with"
                    f" these alone, KV of layer {index} changes by {change:.1%}"
                )


def relative_change(first: torch.Tensor, second: torch.Tensor) -> float:
    """By how much *second* differs, relative to the norm of *first*."""
    known, again = first.double(), second.double()
    return float((known - again).norm() / known.norm().clamp_min(1e-30))


def _refuse_seeing_ahead(
    model: PreTrainedModel, one: list[list[torch.Tensor]], other: list[list[torch.Tensor]]
) -> None:
    """Refuse a model whose KV of all tokens but the last changes with the last.

    The cause does not matter: not every such model has a field for it.

    Raises:
        LayoutMismatch: names the layer.
    """
    for index, pair in enumerate(zip(one, other, strict=True)):
        for first, second in zip(*pair, strict=True):
            change = relative_change(first[..., :-1, :], second[..., :-1, :])
            if change > max(_NOISE, torch.finfo(first.dtype).eps / 2):
                raise LayoutMismatch(
                    f"{type(model).__name__} attends both ways: KV of layer {index} changes by"
                    f" {change:.1%} with a later token, so equal prefixes have different KV"
                )
            if change:
                return  # later layers enlarge the rounding of this one


def placeholders_of(model: PreTrainedModel) -> Mapping[int, str]:
    """Tokens that stand for input other than text, as ``image_token_id`` does, with the field.

    Raises:
        LayoutMismatch: the model sees images, and none of its tokens stand for them.
    """
    found: dict[int, str] = {}
    sees = False
    parts = [model.config]
    while parts:
        part = parts.pop()
        inner = (getattr(part, name, None) for name in getattr(part, "sub_configs", ()))
        parts += [config for config in inner if config is not None]
        for name, value in vars(part).items():
            sees |= name == "vision_config" and value is not None
            if _PLACEHOLDER.fullmatch(name) and isinstance(value, int):
                found[value] = name
    if sees and not found:
        raise LayoutMismatch(
            f"{type(model).__name__} sees images that no token stands for, so equal tokens have"
            " different KV"
        )
    return found


def _rope_kinds(rope: object) -> Iterable[object]:
    if isinstance(rope, Mapping):
        yield rope.get("rope_type", rope.get("type"))
        for section in rope.values():  # one section per type of layer, in some models
            yield from _rope_kinds(section)
