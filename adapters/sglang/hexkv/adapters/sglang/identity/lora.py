"""Names of pages that identify their LoRA adapter by its content.

SGLang makes the name of a page from tokens, and from a request's ``extra_key`` with the number of
its adapter behind. Of an adapter that was loaded at run time the number is a new one each time,
also when SGLang loads one again that it had evicted itself (``--max-loaded-loras``): stored pages
would never be found again. So adapters are digested where they are loaded, tensors and
configuration, and the digest takes the place of the number in the ``extra_key``. SGLang's own tree
goes by it as well, which is as true there.

An ``extra_key`` that a client chose cannot be read as the name of an adapter: those that begin
as ours do are marked.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import wraps
from hashlib import sha256
from typing import Any

from hexkv.adapters.sglang.wrapping import Plain, wrap

log = logging.getLogger("hexkv.sglang")

_MANAGER = "sglang.srt.lora.lora_manager"
_REQUESTS = "sglang.srt.managers.schedule_batch"
_MARK = "hexkv-lora:"
_NONE = "-"

_TENSORS = ("added_tokens_embeddings", "embedding_layers")
_KNOWN = {
    *_TENSORS,
    "base_hf_config",
    "base_model",
    "config",
    "load_config",
    "lora_backend",
    "pinned_added_tokens_embeddings",
    "pinned_embedding_layers",
    "scaling",
    "training",
    "uid",
}
"""Attributes of SGLang's adapters besides their layers: digested, copies, or the model's own."""


@dataclass
class Contents:
    """The content of the adapters of this process."""

    digests: dict[str, str] = field(default_factory=dict)
    """By SGLang's number, of those that are loaded."""

    naming: bool = False
    """True if requests are named by it: once there is a cache that lasts."""

    def name(self, adapter: str | None, extra_key: str | None) -> str | None:
        """The ``extra_key`` by content of a request for *adapter*, or for none.

        Args:
            adapter: SGLang's number.
            extra_key: SGLang's, which ends with the number.
        """
        digest = self.digests.get(adapter or "")
        if adapter is not None and digest is not None:
            return f"{_MARK}{digest}:{(extra_key or '').removesuffix(adapter)}"
        if extra_key is not None and extra_key.startswith(_MARK):
            return f"{_MARK}{_NONE}:{extra_key}"
        return extra_key


CONTENTS = Contents()
"""The content of this process's adapters: a scheduler has those of its model."""


def name_by_content() -> None:
    """Name requests by the content of their adapters from now on."""
    CONTENTS.naming = True


def watch() -> None:
    """Digest adapters as they are loaded, and rename each request."""
    for method in ("load_lora_weights", "load_lora_weights_from_tensors"):
        wrap(_MANAGER, "LoRAManager", method, _digesting)
    wrap(_REQUESTS, "Req", "__init__", _naming)


def _digesting(plain: Plain) -> Plain:
    @wraps(plain)
    def load(manager: Any, lora_ref: Any, *args: object, **named: object) -> object:
        answer = plain(manager, lora_ref, *args, **named)
        known, number = manager.loras, lora_ref.lora_id
        for gone in CONTENTS.digests.keys() - known.keys():
            del CONTENTS.digests[gone]
        try:
            CONTENTS.digests[number] = digest_of_adapter(known[number])
        except Exception as error:  # noqa: BLE001 - the adapter is loaded, and works without a name
            log.warning(
                "pages of the LoRA adapter %s are found until it is unloaded, and by this server"
                " only: its content is not known (%s: %s)",
                lora_ref.lora_name,
                type(error).__name__,
                error,
            )
        else:
            log.info("the LoRA adapter %s is %s", lora_ref.lora_name, CONTENTS.digests[number])
        return answer

    return load


def _naming(plain: Plain) -> Plain:
    @wraps(plain)
    def init(request: Any, *args: object, **named: object) -> None:
        plain(request, *args, **named)
        if CONTENTS.naming:
            request.extra_key = CONTENTS.name(request.lora_id, request.extra_key)

    return init


def digest_of_adapter(adapter: Any) -> str:
    """A digest of a LoRA adapter as SGLang loaded it: every tensor, and its configuration.

    Raises:
        TypeError: there is something in it that is not known here.
    """
    unknown = {name for name in vars(adapter) if not name.startswith("_")} - _KNOWN
    if unknown:
        raise TypeError(f"it has {', '.join(sorted(unknown))}")
    config = adapter.config
    text = json.dumps([config.hf_config, config.added_tokens_config], sort_keys=True)
    digest = sha256(f"{len(text)} {text}\n".encode())
    parts = [layer.weights for layer in adapter.layers]
    for part in (*parts, *(getattr(adapter, name, {}) for name in _TENSORS)):
        digest.update(_digest_of_tensors(part))
    return digest.hexdigest()[:32]


def _digest_of_tensors(tensors: Mapping[str, Any]) -> bytes:
    import torch

    digest = sha256()
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{len(name)} {name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        data = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        digest.update(data.numpy().data)
    return digest.digest()
