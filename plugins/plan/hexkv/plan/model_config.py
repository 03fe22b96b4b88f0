"""The shape of a model's KV, from the ``config.json`` beside its weights."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hexkv.plan.cache_size import ModelShape
from hexkv.ports import ConfigError, DType, InvalidRequest

_LARGEST = 1 << 22
_MOST = 1 << 24
"""The largest number allowed in it."""


def read_shape(path: Path, dtype: DType | None = None) -> ModelShape:
    """Return the shape in the file at *path*, or in the folder *path*.

    Attention by ``num_key_value_heads`` and ``head_dim``, or their defaults where they are missing;
    latent attention by ``kv_lora_rank`` and ``qk_rope_head_dim``. Of ``layer_types`` those count
    that attend. Layers that attend within a window count whole: a cache keeps all of it.

    Args:
        path: of the file.
        dtype: of the KV, if it differs from the weights'.

    Raises:
        ConfigError: it cannot be read, or does not describe the KV.
    """
    path = path / "config.json" if path.is_dir() else path
    try:
        with path.open("rb") as file:
            text = file.read(_LARGEST + 1)
        if len(text) > _LARGEST:
            raise ConfigError(f"{path}: too long for a configuration")
        config = json.loads(text)
    except (OSError, ValueError, RecursionError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise ConfigError(f"{path}: {why}") from error
    if isinstance(config, dict) and isinstance(config.get("text_config"), dict):
        config = {**config, **config["text_config"]}  # of a multimodal model
    try:
        return _shape(config, dtype)
    except (ValueError, TypeError, AttributeError, InvalidRequest) as error:
        raise ConfigError(f"{path}: {error}") from error


def _shape(config: Mapping[str, Any], dtype: DType | None) -> ModelShape:
    if dtype is None:
        given = config.get("dtype") or config.get("torch_dtype")
        if given is None:
            raise ValueError("no dtype: say which")
        dtype = DType(str(given).removeprefix("torch."))
    layers = _layers(config)
    if config.get("kv_lora_rank") is not None:
        return ModelShape(
            dtype,
            layers,
            latent_width=_number(config, "kv_lora_rank"),
            rope_width=_number(config, "qk_rope_head_dim"),
        )
    heads = _number(config, "num_key_value_heads", "num_attention_heads", "n_head")
    if config.get("head_dim") is not None:
        width = _number(config, "head_dim")
    else:
        width = _number(config, "hidden_size", "n_embd") // _number(
            config, "num_attention_heads", "n_head"
        )
    return ModelShape(dtype, layers, heads, width, width)


def _layers(config: Mapping[str, Any]) -> int:
    layers = _number(config, "num_hidden_layers", "n_layer")
    kinds = config.get("layer_types")
    if isinstance(kinds, list):
        attend = [str(kind).endswith("attention") and "linear" not in str(kind) for kind in kinds]
        layers = sum(attend)
    return layers - int(config.get("num_kv_shared_layers") or 0)


def _number(config: Mapping[str, Any], *names: str) -> int:
    """Return the first of *names* that is present."""
    for name in names:
        value = config.get(name)
        if value is not None:
            if type(value) is not int or not 0 < value <= _MOST:
                raise ValueError(f"{name} is {value!r}")
            return value
    raise ValueError(f"no {' or '.join(names)}")
