"""Which model this is, so that no other model's KV is taken for its own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import sha256

import torch
from transformers import PreTrainedModel

from hexkv.adapters.hf.shape import layout_of
from hexkv.ports import Namespace

_SAMPLES = 1024
"""Elements that are looked at of each tensor."""

_UNRELATED = {"_name_or_path", "architectures", "dtype", "torch_dtype", "transformers_version"}
"""Fields of a configuration that do not change KV, or are in the layout."""


def namespace_of_model(
    model: PreTrainedModel,
    *,
    name: str = "",
    revision: str = "",
    lora: str = "",
    salt: str = "",
    extra: Mapping[str, str] | None = None,
) -> Namespace:
    """The namespace of *model*'s KV.

    Args:
        model: its layout is found by running it on a few tokens.
        name: how the model is called; by default as it was loaded, or its type. Hosts
            that share a cache must call it the same.
        revision: of the weights, for instance a commit hash. Without one it is a digest of
            the configuration and of a sample of the weights, see :func:`weights_digest`.
        lora: identity of the LoRA adapter, if one is active.
        salt: the tenant's.
        extra: further identity.

    Raises:
        LayoutMismatch: the model's KV cannot be cached by prefix.
    """
    return Namespace(
        model=name or model.config.name_or_path or model.config.model_type,
        layout=layout_of(model),
        revision=revision or weights_digest(model),
        lora=lora,
        salt=salt,
        extra=tuple(sorted((extra or {}).items())),
    )


def weights_digest(model: PreTrainedModel) -> str:
    """A digest of the configuration and of up to 1,024 evenly spaced elements of every tensor.

    Takes milliseconds per hundred tensors. Models trained or initialised apart differ in it
    for sure; two that differ in a few rows of one matrix alone need a *revision*.
    """
    config = {k: v for k, v in model.config.to_dict().items() if k not in _UNRELATED}
    digest = sha256(json.dumps(config, sort_keys=True, default=str).encode())
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"\n{name} {tensor.dtype} {tuple(tensor.shape)} ".encode())
        flat = tensor.detach().reshape(-1)
        sample = flat[:: max(1, flat.numel() // _SAMPLES)][:_SAMPLES].cpu()
        digest.update(bytes(sample.contiguous().view(torch.uint8).tolist()))
    return f"weights-{digest.hexdigest()[:32]}"
