"""The identity of a model, so that no other model's KV is taken for its own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from weakref import WeakKeyDictionary

from transformers import PreTrainedModel

from hexkv.adapters.hf.checkpoint import checkpoint_of
from hexkv.adapters.hf.memory import memory_digest
from hexkv.adapters.hf.shape import layout_of
from hexkv.adapters.hf.snapshot import Snapshot
from hexkv.kernels.weights import digest_of
from hexkv.plugins.composition.identity import VOUCHED
from hexkv.ports import Namespace

_NAMED: WeakKeyDictionary[PreTrainedModel, tuple[str, Snapshot]] = WeakKeyDictionary()
"""By model the last revision that :func:`namespace_of_model` gave it, and its weights then."""

_DIGESTS = ("weights-", "memory-")


def namespace_of_model(
    model: PreTrainedModel,
    *,
    name: str = "",
    weights: str = "",
    lora: str = "",
    salt: str = "",
    extra: Mapping[str, str] | None = None,
) -> Namespace:
    """The namespace of *model*'s KV.

    The section ``model`` of a configuration adds to it, as it does under every host.

    Args:
        model: its layout is found by running it on a few tokens.
        name: how the model is called; by default the last part of the folder that it was
            loaded from, its name on the hub, or its type. Hosts that share a cache must call it
            the same.
        weights: in place of :func:`weights_digest`, as ``model.weights`` in a configuration: the
            caller vouches that it means equal weights, configurations and code.
        lora: identity of the LoRA adapter, if one is active.
        salt: the tenant's.
        extra: further identity.

    Raises:
        LayoutMismatch: the model's KV cannot be cached by prefix, or parts of it are not in
            memory and *weights* is not given.
    """
    layout = layout_of(model)  # runs the model, which may make buffers
    snapshot = Snapshot(model)
    revision = f"{VOUCHED}{weights}" if weights else weights_digest(model)
    _NAMED[model] = revision, snapshot
    return Namespace(
        model=name or _name(model),
        layout=layout,
        revision=revision,
        lora=lora,
        salt=salt,
        extra=tuple(sorted((extra or {}).items())),
    )


def weights_digest(model: PreTrainedModel) -> str:
    """A digest of the weights: ``weights-...`` of a checkpoint, or ``memory-...`` of this model.

    Of the checkpoint, as other hosts compute it, if the model in memory is proven to equal the
    checkpoint; else of all parameters and buffers, which transformers alone can share.
    Either way each byte of the model in memory is read.

    Raises:
        LayoutMismatch: a part of the model is not in memory.
    """
    folder = checkpoint_of(model)
    return memory_digest(model) if folder is None else digest_of(folder)


def snapshot_of(model: PreTrainedModel, namespace: Namespace) -> Snapshot | None:
    """The weights that *model* had when *namespace* was made; ``None`` if it is of others.

    A namespace that :func:`namespace_of_model` did not make is taken for that of the weights now.
    """
    revision, snapshot = _NAMED.get(model, ("", None))
    if snapshot is None:
        return Snapshot(model)
    if namespace.revision.startswith(_DIGESTS) and namespace.revision != revision:
        return None
    return snapshot


def _name(model: PreTrainedModel) -> str:
    name = model.config.name_or_path or model.config.model_type
    return Path(name).absolute().name if Path(name).is_dir() else name
