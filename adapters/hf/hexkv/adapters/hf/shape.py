"""What a model's cache looks like, found by running the model on a few tokens."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from hexkv.adapters.hf.cache import CacheShape, planes_of
from hexkv.kernels import dtype_of
from hexkv.ports import DType, KVLayout, LayerGroup, LayoutMismatch, Plane

_PROBE = 3
"""Tokens to run: a length that tells the token dimension from that of one head or batch."""

_NOISE = 1e-4
"""What equal KV may differ by, relative to its norm, or half of the dtype's epsilon if that is
more: batches of experts change their shape with the other tokens, and sums their order."""

_PER_TOKEN = (DynamicLayer, DynamicSlidingWindowLayer)
"""Kinds of layer that keep KV per token. A window is the mask's affair, not the KV's."""


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
    layers = _run(model, [0] * _PROBE)
    _refuse_seeing_ahead(model, layers, _run(model, [0] * (_PROBE - 1) + [1]))
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
    return CacheShape(layout, tuple(keys.device for keys, _ in layers))


def _layout(dtype: DType, layers: list[list[torch.Tensor]], latent: int | None) -> KVLayout:
    groups: list[LayerGroup] = []
    for keys, values in layers:
        # Releases differ in whether they cache MLA compressed, or expanded to heads.
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
        LayoutMismatch: says why.
    """
    config = model.config.get_text_config(decoder=True)
    name = type(model).__name__
    if not model.can_generate():
        raise LayoutMismatch(f"{name} does not generate: it is no causal model with a head")
    for part in (model.config, config):
        for field, value in _BOTH_WAYS.items():
            if (said := getattr(part, field, None)) in value:
                raise LayoutMismatch(
                    f"{name} attends both ways ({field}={said!r}), so equal prefixes have different"
                    " KV"
                )
    if model.training:
        raise LayoutMismatch(f"{name} is in training mode, where dropout changes KV: call eval()")
    if model.config.is_encoder_decoder:
        raise LayoutMismatch(f"{name} is an encoder-decoder: its KV depends on another sequence")
    if getattr(model, "_is_stateful", False):
        raise LayoutMismatch(f"{name} keeps a recurrent state, which has no KV per token")
    for layer in DynamicCache(config=model.config).layers:
        if type(layer) not in _PER_TOKEN:
            raise LayoutMismatch(f"{name} caches in a {type(layer).__name__}, not KV per token")
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None)
    for kind in _rope_kinds(rope):
        if kind in ("dynamic", "longrope"):
            raise LayoutMismatch(
                f"{name} scales RoPE ({kind}) by the length of the whole sequence, so equal "
                "prefixes have different KV"
            )


def _run(model: PreTrainedModel, tokens: list[int]) -> list[list[torch.Tensor]]:
    """``[layer][plane]`` of the KV of *tokens*.

    Raises:
        LayoutMismatch: the model keeps none.
    """
    cache = DynamicCache()
    with torch.no_grad():
        model(
            input_ids=torch.tensor([tokens], device=model.device),
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
    if not cache.layers:
        raise LayoutMismatch(f"{type(model).__name__} caches no KV")
    return planes_of(cache)


def _refuse_seeing_ahead(
    model: PreTrainedModel, one: list[list[torch.Tensor]], other: list[list[torch.Tensor]]
) -> None:
    """Refuse a model whose KV of all tokens but the last changes with the last.

    Whatever makes it do so: not every such model has a field that says it.

    Raises:
        LayoutMismatch: says which layer.
    """
    for index, pair in enumerate(zip(one, other, strict=True)):
        for first, second in zip(*pair, strict=True):
            known, again = (plane[..., :-1, :].double() for plane in (first, second))
            change = float((known - again).norm() / known.norm().clamp_min(1e-30))
            if change > max(_NOISE, torch.finfo(first.dtype).eps / 2):
                raise LayoutMismatch(
                    f"{type(model).__name__} attends both ways: KV of layer {index} changes by"
                    f" {change:.1%} with a later token, so equal prefixes have different KV"
                )
            if change:
                return  # what one layer rounds, the next ones make more of


def _rope_kinds(rope: object) -> Iterable[object]:
    if isinstance(rope, Mapping):
        yield rope.get("rope_type", rope.get("type"))
        for section in rope.values():  # one section per type of layer, in some models
            yield from _rope_kinds(section)
