"""Namespaces of KV, from vLLM's data about a model, a rank and a request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hexkv.adapters.vllm.configuration.options import digest_of_value, options_of
from hexkv.adapters.vllm.messages import Scope
from hexkv.kernels.weights import digest_of, folder_of
from hexkv.plugins.configuration.config import Loaded
from hexkv.ports import ConfigError, KVLayout, Namespace, ParallelSlice

if TYPE_CHECKING:
    from vllm.config import LoadConfig, ModelConfig, VllmConfig
    from vllm.v1.request import Request

_BY_LENGTH = {"dynamic", "longrope"}
"""Kinds of RoPE that depend on how long sequences may become."""

_WHENCE = {"_name_or_path", "_commit_hash", "transformers_version"}
"""Fields of a configuration that describe its origin, and not the model."""

_WITHOUT_MODEL = {"ngram", "ngram_gpu", "suffix"}
"""Ways to draft tokens that have no KV. The model's KV of wrong drafts is never stored."""

_DRAFT = ("method", "quantization", "kv_cache_dtype", "parallel_drafting")
"""Settings that decide about a draft's KV beside its weights and configuration."""


@dataclass(frozen=True, slots=True)
class Rank:
    """A worker's place among those of one model."""

    number: int
    world: int

    replicas: int = 1
    """Consecutive ranks that hold the same KV. It divides the number of ranks of a stage."""

    @classmethod
    def of(cls, config: VllmConfig, replicas: int = 1) -> Rank:
        """The rank of this configuration."""
        parallel = config.parallel_config
        world = int(parallel.tensor_parallel_size) * int(parallel.pipeline_parallel_size)
        return cls(int(parallel.rank) % world, world, replicas)

    @property
    def piece(self) -> ParallelSlice:
        """The part of the model's KV that is here, among those that differ."""
        return ParallelSlice(self.number // self.replicas, self.world // self.replicas)

    @property
    def first(self) -> bool:
        """True for the first of those that hold the same."""
        return self.number % self.replicas == 0


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
        rank: of the worker.
        configured: hexkv's; with ``model.weights`` in it, the operator vouches for the weights.
        inside: other facts that decide about the bytes in a block that only vLLM understands.

    Raises:
        ConfigError: it is not known which weights the model has, or will have.
    """
    model = config.model_config
    given = configured.settings.model
    extra = dict(inside) | options_of(config)
    if quantization := getattr(model, "quantization", None):
        extra["quantization"] = str(quantization)
    if "cache.cache_dtype" in extra:
        extra.setdefault("compute", str(model.dtype))
    if getattr(model, "hf_overrides", None) or getattr(model, "hf_config_path", None):
        extra["config"] = _in_force(model)
    if _rope_by_length(getattr(model, "hf_text_config", None)):
        extra["length"] = str(model.max_model_len)
    if draft := _draft(config):
        extra["draft"] = draft
    name = str(model.model)
    return Namespace(
        model="" if given.name else Path(name).name if Path(name).exists() else name,
        layout=layout,
        revision="" if given.weights else weights_of(model, config.load_config),
        parallel=rank.piece,
        extra=tuple(sorted(extra.items())),
    )


def counts_inputs(config: VllmConfig) -> bool:
    """True if vLLM identifies images, sounds, ... by a number within the process only.

    It does so if both of its caches that need to recognise equal ones are switched off.
    """
    multimodal = getattr(config.model_config, "multimodal_config", None)
    processed = getattr(multimodal, "mm_processor_cache_gb", None)
    return processed == 0 and not config.cache_config.enable_prefix_caching


def scope_of(request: Request, *, counted: bool = False) -> Scope | None:
    """The scope of a request; ``None`` if its KV depends on more than can be named.

    Args:
        request: vLLM's.
        counted: True if images in it are named by numbers that others may have, too.
    """
    if request.prompt_token_ids is None or getattr(request, "prompt_embeds", None) is not None:
        return None
    inputs = getattr(request, "mm_features", None) or ()
    if inputs and counted:
        return None
    lora = request.lora_request
    return Scope(
        "" if lora is None else str(lora.lora_name),
        request.cache_salt or "",
        _inputs(inputs),
        0 if lora is None else int(lora.lora_int_id),
    )


def weights_of(model: ModelConfig, load: LoadConfig) -> str:
    """Return a digest of the weights of a model, or the commit that they are of.

    Raises:
        ConfigError: they are not where they can be examined, or cannot be read.
    """
    load_format = str(getattr(load, "load_format", "")).rpartition(".")[2].lower()
    if load_format == "dummy":  # drawn for this configuration
        return f"dummy-{model.seed}-{_in_force(model)}"
    if load_format != "tensorizer" and (place := _place(model, load)) is not None:
        try:
            return digest_of(place)
        except OSError as error:
            raise ConfigError(f"the weights of {model.model}: {error}") from error
    commit = getattr(model.hf_config, "_commit_hash", None)
    fetched = bool(getattr(model, "model_weights", None))
    if load_format == "tensorizer" or fetched or not commit:
        raise ConfigError(
            f"the weights of {model.model} are unknown, so KV of others could be taken for"
            " theirs. Load them from a folder or from a commit, or vouch for them: model.weights"
            " is a text that no other weights are ever given"
        )
    return str(commit)


def weights_at(config: VllmConfig, place: str | None) -> str:
    """The digest of the weights that vLLM reads on a reload; empty if there is none.

    Args:
        config: vLLM's.
        place: a folder or a name that the reload reads; ``None``: that of the first ones.

    Raises:
        ConfigError, OSError: they cannot be read.
    """
    if place is None:
        return weights_of(config.model_config, config.load_config)
    folder = folder_of(place, None, getattr(config.load_config, "download_dir", None))
    return "" if folder is None else digest_of(folder)


def _place(model: ModelConfig, load: LoadConfig) -> Path | None:
    """Where vLLM read the weights: a folder, a file, or a copy of a hub's."""
    # For weights in an object store, ``model`` is a folder with the configuration alone.
    name = str(getattr(model, "model_weights", "") or model.model)
    if Path(name).exists():
        return Path(name)
    return folder_of(name, model.revision, getattr(load, "download_dir", None))


def _draft(config: VllmConfig) -> str:
    """The facts that decide about a draft model's KV; empty for ways to draft without KV."""
    speculative = getattr(config, "speculative_config", None)
    model = getattr(speculative, "draft_model_config", None)
    if speculative is None or model is None or str(speculative.method) in _WITHOUT_MODEL:
        return ""
    load = getattr(speculative, "draft_load_config", None) or config.load_config
    weights = weights_of(model, load)
    options = {name: getattr(speculative, name, None) for name in _DRAFT}
    return digest_of_value([weights, _in_force(model), options])


def _in_force(model: ModelConfig) -> str:
    """A digest of a model's configuration as it is in force, wherever its parts come from."""
    config = model.hf_config
    given = config.to_dict() if hasattr(config, "to_dict") else vars(config)
    return digest_of_value({name: given[name] for name in given if name not in _WHENCE})


def _rope_by_length(hf_config: object) -> bool:
    names = ("rope_parameters", "rope_scaling")
    return any(_stretched(getattr(hf_config, name, None)) for name in names)


def _stretched(rope: object) -> bool:
    """True if this RoPE, or that of one kind of layers, depends on the longest length."""
    if not isinstance(rope, Mapping):
        return False
    kind = rope.get("rope_type", rope.get("type"))
    return kind in _BY_LENGTH or any(map(_stretched, rope.values()))


def _inputs(features: Sequence[Any]) -> str:
    """A digest of the inputs in place of placeholder tokens, and of their positions."""
    if not features:
        return ""
    return digest_of_value(
        [
            [feature.identifier, feature.mm_position.offset, feature.mm_position.length]
            for feature in features
        ]
    )
