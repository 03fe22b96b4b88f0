"""Reads the KV memory from vLLM's configuration, and refuses KV that cannot be cached."""

from __future__ import annotations

import platform
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from hexkv.adapters.vllm.configuration.windows import LayerShape
from hexkv.ports import LayoutMismatch

if TYPE_CHECKING:
    from vllm.config import ModelConfig, VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig

_CACHEABLE = "FullAttentionSpec"
"""Name of the class of specs whose KV stays where it is for as long as the request runs."""

_HEADS = re.compile("kv_head|head_kv|key_value_head|query_group|attention_group")
"""In the names of configurations' fields for the number of KV heads of some layers, or of all."""


@dataclass(frozen=True, slots=True)
class Memory:
    """vLLM's KV memory, as its configuration describes it."""

    blocks: int
    block: int
    """Tokens in a block."""

    layers: Mapping[str, LayerShape]
    replicas: int
    """Consecutive ranks of a stage that hold the same: see :func:`replicas_of`."""


def saves_within() -> bool:
    """True if a step has to end with its saves: vLLM runs within a caller's process.

    Then no step follows a caller's last request, in which its blocks could be freed.
    """
    from vllm import envs  # tests read configurations without vLLM

    return not envs.VLLM_ENABLE_V1_MULTIPROCESSING


def refuse(config: VllmConfig) -> None:
    """Stop where KV of a prefix must not be used again.

    Raises:
        LayoutMismatch: it must not; one line gives the reason.
    """
    model = config.model_config
    for config in (getattr(model, "hf_config", None), getattr(model, "hf_text_config", None)):
        both = getattr(config, "use_bidirectional_attention", None) in (True, "all")
        if both or getattr(config, "is_causal", True) is False:
            raise LayoutMismatch(
                "hexkv does not cache models that attend both ways: a token's KV depends on what"
                " comes after it (is_causal or use_bidirectional_attention in config.json)"
            )
    if getattr(config, "diffusion_config", None) is not None:
        raise LayoutMismatch(
            "hexkv does not cache diffusion models: a token's KV depends on what comes after it"
        )
    if not getattr(model, "is_prefix_caching_supported", True):
        raise LayoutMismatch(
            "hexkv does not cache this model: vLLM itself cannot use a prefix of it again, for"
            " its answers are made of all tokens (is_prefix_caching_supported is false)"
        )


def describe(config: VllmConfig, kv: KVCacheConfig) -> Memory:
    """The memory of a model whose KV can be cached by prefix.

    Raises:
        LayoutMismatch: it cannot; one line gives the reason.
    """
    refuse(config)
    parallel = config.parallel_config
    for name in ("decode_context_parallel_size", "prefill_context_parallel_size"):
        if getattr(parallel, name, 1) > 1:
            raise LayoutMismatch(f"hexkv does not cache KV that is divided by {name}")
    if len(kv.kv_cache_groups) != 1:
        raise LayoutMismatch(
            f"hexkv does not cache hybrid models: this one has {len(kv.kv_cache_groups)} groups of"
            " KV; use OffloadingConnector with hexkv's OffloadingSpec"
        )
    (group,) = kv.kv_cache_groups
    specs = getattr(group.kv_cache_spec, "kv_cache_specs", None)
    if not isinstance(specs, Mapping):
        specs = dict.fromkeys(group.layer_names, group.kv_cache_spec)
    text = getattr(config.model_config, "hf_text_config", None)
    layers = {name: _shape(name, specs[name], text) for name in group.layer_names}
    return Memory(
        blocks=int(kv.num_blocks),
        block=int(group.kv_cache_spec.block_size),
        layers=layers,
        replicas=replicas_of(config, [specs[name] for name in layers]),
    )


def replicas_of(config: VllmConfig, specs: Sequence[object]) -> int:
    """The number of consecutive ranks of a stage with the same KV; 1 where that is not certain.

    All of them, for latent attention and its index. Where a model has fewer KV heads than
    there are ranks, vLLM gives ranks ``r * n`` to ``r * n + n - 1`` the same one
    (``num_kv_head_replicas`` of its linear layers).

    Args:
        config: vLLM's.
        specs: of all layers that have KV.
    """
    tensor = int(config.parallel_config.tensor_parallel_size)
    if all(map(_is_latent, specs)):
        return tensor
    speculative = getattr(config, "speculative_config", None)
    if getattr(speculative, "draft_model_config", None) is not None:
        return 1  # its layers are among these, and may have another number of heads
    heads = {getattr(spec, "num_kv_heads", None) for spec in specs}
    total = config.model_config.get_total_num_kv_heads()
    if heads != {1} or type(total) is not int or not 0 < total < tensor or tensor % total:
        return 1
    return tensor // total if _heads_said(config.model_config) == {total} else 1


def _heads_said(model: ModelConfig) -> set[int]:
    """Every number of KV heads in a model's configuration, of any of its layers."""
    found: set[int] = set()
    overrides = getattr(getattr(model, "model_arch_config", None), "per_layer_overrides", None)
    text: Any = getattr(model, "hf_text_config", None)
    todo: list[tuple[str, object]] = [("", overrides)]
    todo.append(("", text.to_dict() if hasattr(text, "to_dict") else vars(text)))
    while todo:
        name, value = todo.pop()
        if isinstance(value, Mapping):
            todo.extend((str(inner), held) for inner, held in value.items())
        elif isinstance(value, list | tuple):
            todo.extend((name, held) for held in value)
        elif type(value) is int and _HEADS.search(name):
            found.add(value)
    return found


def _shape(name: str, spec: Any, text: object) -> LayerShape:
    if _CACHEABLE not in (kind.__name__ for kind in type(spec).__mro__):
        raise LayoutMismatch(f"hexkv does not cache {name}, a layer of {type(spec).__name__}")
    if getattr(spec, "non_causal", False):
        raise LayoutMismatch(f"hexkv does not cache {name}: its KV depends on what comes later")
    size = getattr(spec, "unpadded_page_size_bytes", None) or spec.real_page_size_bytes
    heads = getattr(spec, "num_heads", None) or spec.num_kv_heads
    key = int(spec.head_size)
    if not _is_latent(spec):
        value = getattr(spec, "head_size_v", None)
        return LayerShape(int(size), int(heads), key, key if value is None else int(value))
    latent = getattr(text, "kv_lora_rank", 0) or 0
    known = latent + (getattr(text, "qk_rope_head_dim", 0) or 0) == key
    return LayerShape(int(size), 1, key, 0, latent if known else 0)


def _is_latent(spec: object) -> bool:
    return any("MLA" in kind.__name__ for kind in type(spec).__mro__)


def tokens_lie_apart(caches: Mapping[str, torch.Tensor]) -> bool:
    """True if the backends that run here keep the tokens of a block apart.

    All for NVIDIA GPUs do; some for others shuffle a block, and those for CPUs pack it.
    """
    on_gpu = all(cache.device.type == "cuda" for cache in caches.values())
    return on_gpu and torch.version.hip is None


def inside_of_blocks(
    config: VllmConfig, memory: Memory, caches: Mapping[str, torch.Tensor], version: str
) -> dict[str, str]:
    """The facts that decide about the bytes of a block that only vLLM understands.

    A release may pack blocks in another way without notice, hence its number.
    """
    cache = next(iter(caches.values()))
    heads, widths = zip(
        *((s.heads, (s.key_width, s.value_width)) for s in memory.layers.values()), strict=True
    )
    return {
        "block": f"{memory.block} tokens",
        "cache": f"{config.cache_config.cache_dtype} in {cache.dtype}",
        "compute": str(config.model_config.dtype),
        "device": f"{cache.device.type} {instructions(cache.device.type)}".strip(),
        "engine": f"vllm {'.'.join(version.split('.')[:2])}",
        "heads": f"{sorted(set(heads))} of {sorted(set(widths))}",
    }


def instructions(device: str) -> str:
    """The instructions of a CPU, as far as they decide how blocks are packed."""
    if device != "cpu":
        return ""
    amx = getattr(torch.cpu, "_is_amx_tile_supported", lambda: False)()
    level = torch.backends.cpu.get_cpu_capability()
    return f"{platform.machine()} {level}{' AMX' if amx else ''}"
