"""Whose KV it is: what vLLM knows about a model, a rank and a request, as a namespace."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hexkv.adapters.vllm.messages import Scope
from hexkv.plugins.config import Loaded
from hexkv.plugins.weights import digest_of
from hexkv.ports import KVLayout, Namespace, ParallelSlice

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.request import Request

log = logging.getLogger("vllm.hexkv")

_MEDIA = (
    "media_io_kwargs",
    "mm_processor_kwargs",
    "mm_encoder_attn_dtype",
    "mm_encoder_fp8_scale_path",
    "video_pruning_rate",
    "video_pruning_method",
)
"""What decides how an image is seen, and is no part of what vLLM calls it."""

_BY_LENGTH = {"dynamic", "longrope"}
"""Kinds of RoPE that depend on how long sequences may become."""


@dataclass(frozen=True, slots=True)
class Rank:
    """A worker's place among those of one model."""

    number: int
    world: int
    tensor: int
    """Ranks that share the layers of one stage."""

    replicated: bool
    """Whether these ranks hold the same KV (latent attention), not each its own heads."""

    @classmethod
    def of(cls, config: VllmConfig, *, replicated: bool) -> Rank:
        """The rank whose configuration this is."""
        parallel = config.parallel_config
        tensor = int(parallel.tensor_parallel_size)
        world = tensor * int(parallel.pipeline_parallel_size)
        return cls(int(parallel.rank) % world, world, tensor, replicated)

    @property
    def piece(self) -> ParallelSlice:
        """The part of the model's KV that is here."""
        if self.replicated:
            return ParallelSlice(self.number // self.tensor, self.world // self.tensor)
        return ParallelSlice(self.number, self.world)

    @property
    def first(self) -> bool:
        """Whether it is the first of those that hold the same."""
        return not self.replicated or self.number % self.tensor == 0


def namespace_of(
    config: VllmConfig,
    layout: KVLayout,
    rank: Rank,
    configured: Loaded,
    *,
    inside: Mapping[str, str],
) -> Namespace:
    """The namespace of the KV of one rank.

    Args:
        config: vLLM's.
        layout: of the KV here.
        rank: whose KV it is.
        configured: name and revision in here are taken for true.
        inside: what else decides about the bytes in a block, where only vLLM understands them.
    """
    model = config.model_config
    said = configured.settings.model
    extra = dict(inside)
    if quantization := getattr(model, "quantization", None):
        extra["quantization"] = str(quantization)
    if overrides := getattr(model, "hf_overrides", None):
        extra["overrides"] = _digest(overrides)
    if media := _media(getattr(model, "multimodal_config", None)):
        extra["media"] = _digest(media)
    if _rope_by_length(getattr(model, "hf_text_config", None)):
        extra["length"] = str(model.max_model_len)
    name = str(model.model)
    return Namespace(
        model="" if said.name else Path(name).name if Path(name).is_dir() else name,
        layout=layout,
        revision="" if said.revision else _revision(config),
        parallel=rank.piece,
        extra=tuple(sorted(extra.items())),
    )


def counts_inputs(config: VllmConfig) -> bool:
    """Whether vLLM tells images, sounds, ... apart by a number within the process only.

    It does so where both of its caches that need to know equal ones are switched off.
    """
    multimodal = getattr(config.model_config, "multimodal_config", None)
    processed = getattr(multimodal, "mm_processor_cache_gb", None)
    return processed == 0 and not config.cache_config.enable_prefix_caching


def scope_of(request: Request, *, counted: bool = False) -> Scope | None:
    """What is special about a request; ``None`` if its KV depends on more than can be named.

    Args:
        request: vLLM's.
        counted: whether images in it are named by numbers that others may have, too.
    """
    if request.prompt_token_ids is None or getattr(request, "prompt_embeds", None) is not None:
        return None
    inputs = getattr(request, "mm_features", None) or ()
    if inputs and counted:
        return None
    lora = request.lora_request
    return Scope(
        "" if lora is None else _lora(str(lora.lora_name), str(lora.lora_path)),
        request.cache_salt or "",
        _inputs(inputs),
    )


def _revision(config: VllmConfig) -> str:
    model = config.model_config
    directory = Path(str(model.model))
    load_format = str(getattr(config.load_config, "load_format", ""))
    if load_format.rpartition(".")[2].lower() == "dummy":
        return f"dummy-{model.seed}"
    if directory.is_dir():
        return digest_of(directory)
    commit = getattr(getattr(model, "hf_config", None), "_commit_hash", None) or model.revision
    if not commit:
        log.warning(
            "nothing says which weights %s has: set model.revision, or equal names mean equal KV",
            model.model,
        )
    return str(commit or "")


def _media(multimodal: object) -> dict[str, object]:
    """How images, sounds, ... are seen, where that is not as the model has it."""
    said = {name: getattr(multimodal, name, None) for name in _MEDIA}
    if not said["video_pruning_rate"]:
        del said["video_pruning_method"]
    return {name: value for name, value in said.items() if value}


def _rope_by_length(hf_config: object) -> bool:
    names = ("rope_parameters", "rope_scaling")
    return any(_stretched(getattr(hf_config, name, None)) for name in names)


def _stretched(rope: object) -> bool:
    """Whether this, or what it says of one kind of layers, depends on how long texts may get."""
    if not isinstance(rope, Mapping):
        return False
    kind = rope.get("rope_type", rope.get("type"))
    return kind in _BY_LENGTH or any(map(_stretched, rope.values()))


def _lora(name: str, path: str) -> str:
    directory = Path(path)
    if not directory.is_dir():
        return f"{name} {path}"
    # A training run may write a new adapter over the old one.
    newest = max((file.stat().st_mtime_ns for file in directory.iterdir()), default=0)
    return f"{name} {_lora_digest(directory, newest)}"


@lru_cache(256)
def _lora_digest(directory: Path, newest: int) -> str:
    del newest
    return digest_of(directory)


def _inputs(features: Sequence[Any]) -> str:
    """A digest of what stands where in place of placeholder tokens."""
    if not features:
        return ""
    return _digest(
        [
            [feature.identifier, feature.mm_position.offset, feature.mm_position.length]
            for feature in features
        ]
    )


def _digest(value: object) -> str:
    return sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:32]
