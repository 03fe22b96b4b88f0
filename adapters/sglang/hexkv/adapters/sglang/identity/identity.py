"""Namespaces of KV, from SGLang's data about a model and a rank.

SGLang's names of pages distinguish tokens, LoRA adapters and salts, and nothing else.
"""

from __future__ import annotations

import inspect
import json
import logging
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from importlib import import_module
from pathlib import Path

from hexkv.adapters.sglang.configuration import Configuration
from hexkv.adapters.sglang.identity import arguments as judged
from hexkv.adapters.sglang.identity.files import FILES
from hexkv.adapters.sglang.identity.lora import CONTENTS
from hexkv.kernels.weights import folder_of
from hexkv.ports import ConfigError, DType, KVLayout, Namespace, ParallelSlice

log = logging.getLogger("hexkv.sglang")

_ARGUMENTS = (
    ("sglang.srt.runtime_context", "get_server_args"),
    ("sglang.srt.server_args", "get_global_server_args"),  # before 0.5.23
)


@dataclass(frozen=True, slots=True)
class Rank:
    """A scheduler's place among those of one model."""

    tensor: int = 0
    tensors: int = 1
    stage: int = 0
    stages: int = 1
    context: int = 0
    contexts: int = 1

    replicated: bool = False
    """True if the ranks of a stage hold the same KV (latent attention), not each its own heads."""

    @classmethod
    def of(cls, config: object) -> Rank:
        """The rank that a ``HiCacheStorageConfig`` describes; older versions have fewer fields.

        Raises:
            ConfigError: pages are divided in a way that they cannot be found by.
        """

        def number(name: str, otherwise: int) -> int:
            return int(getattr(config, name, otherwise) or otherwise)

        if number("dcp_size", 1) > 1:
            raise ConfigError("hexkv does not cache KV that is divided by decode context")
        return cls(
            number("tp_rank", 0),
            number("tp_size", 1),
            number("pp_rank", 0),
            number("pp_size", 1),
            number("attn_cp_rank", 0),
            number("attn_cp_size", 1),
            bool(getattr(config, "is_mla_model", False)),
        )

    @property
    def piece(self) -> ParallelSlice:
        """The part of the model's KV that is here."""
        if self.replicated:
            return ParallelSlice(self.stage, self.stages)
        return ParallelSlice(self.stage * self.tensors + self.tensor, self.stages * self.tensors)

    @property
    def whole(self) -> ParallelSlice:
        """The place among all ranks, for KV that each of them has of its own."""
        return ParallelSlice(self.stage * self.tensors + self.tensor, self.stages * self.tensors)


def server_arguments() -> object | None:
    """SGLang's arguments in this process, where there is a server."""
    for module, name in _ARGUMENTS:
        try:
            found: object = getattr(import_module(module), name)()
        except (ImportError, AttributeError, ValueError, RuntimeError, AssertionError):
            continue
        if found is not None:
            return found
    return None


def namespace_of(
    layout: KVLayout,
    rank: Rank,
    configured: Configuration,
    *,
    page: int,
    arguments: object | None,
    name: str | None = None,
    inside: Mapping[str, str] | None = None,
) -> Namespace:
    """The namespace of one rank's KV.

    Args:
        layout: of the KV here.
        rank: of the scheduler.
        configured: its settings of the model are added by
            :func:`hexkv.plugins.composition.identity.identify`.
        page: tokens in a page.
        arguments: SGLang's own; ``None`` outside a server.
        name: of the model, where there are no arguments.
        inside: other facts that decide about the bytes in a page that only SGLang understands.

    Raises:
        ConfigError: the model or its weights are not known, or SGLang would mix LoRA
            adapters.
    """
    named = configured.engine.settings.model
    path = str(getattr(arguments, "model_path", None) or name or "")
    if not path and not named.name:
        raise ConfigError("the model is unknown: set model.name")
    _refuse_mixing(arguments)
    extra = judged.joined_by(arguments) | dict(inside or {})
    place = FILES.place(_MODEL, path, _place(path, arguments))
    if (dtype := _dtype(arguments)) not in ("auto", layout.dtype.value):
        extra["dtype"] = dtype
    if (length := _length(place, arguments)) is not None:
        extra["length"] = length
    # SGLang keeps eight bits in plain bytes, for any format.
    if layout.dtype is DType.UINT8:
        extra["kv_cache_dtype"] = str(getattr(arguments, "kv_cache_dtype", "auto"))
    if not named.lora and (adapters := _held_by_adapters(arguments)):
        extra["adapters"] = adapters
    if rank.contexts > 1:
        extra["context"] = f"{rank.context} of {rank.contexts}"
    if configured.chosen.namespace == "own":
        extra |= {"engine": "sglang", "page": str(page)}
    return Namespace(
        model="" if named.name else Path(path).name if Path(path).exists() else path,
        layout=layout,
        revision="" if named.weights else _weights(path, place, arguments),
        parallel=rank.piece,
        extra=tuple(sorted(extra.items())),
    )


_MODEL = "model_path"
_LORA = "lora_paths"


def files_of(arguments: object | None) -> Iterator[tuple[str, str, Path | None]]:
    """Each argument that names files which KV depends on, its value, and where they are."""
    path = str(getattr(arguments, _MODEL, None) or "")
    yield _MODEL, path, _place(path, arguments)
    yield from judged.files_of(arguments)
    for _, adapter, _ in _adapters(arguments):
        yield _LORA, str(adapter), adapter if adapter.is_dir() else None


def _place(path: str, arguments: object | None) -> Path | None:
    """Where SGLang read the weights: a folder, a file, or a copy of the hub's."""
    if path and Path(path).exists():
        return Path(path)
    return folder_of(path, _given(arguments, "revision"), _given(arguments, "download_dir"))


def _weights(path: str, place: Path | None, arguments: object | None) -> str:
    """A text that distinguishes the weights that SGLang serves from all others."""
    way = str(getattr(arguments, "load_format", "auto")).rpartition(".")[2].lower()
    elsewhere = [
        name for name in _ELSEWHERE if _given(arguments, name) not in (None, "off", "False")
    ]
    seed = _given(arguments, "random_seed")
    commit = _given(arguments, "revision") or ""
    if way == "dummy" and seed is not None:
        # The folder has a configuration at least.
        return f"dummy-{seed} {FILES.digest(place) if place else path}"
    if way in _FROM_FOLDER and not elsewhere:
        if place is not None:
            return FILES.digest(place, f", or {_VOUCH}")
        if _COMMIT.fullmatch(commit):
            return commit
    how = f" ({', '.join([f'load_format={way}', *elsewhere])})"
    raise ConfigError(f"the weights of {path} are unknown{how}: {_VOUCH}")


_VOUCH = "set model.weights to a text that no other weights have"

_FROM_FOLDER = {
    "auto",
    "bitsandbytes",
    "fastsafetensors",
    "gguf",
    "instanttensor",
    "layered",
    "mistral",
    "npcache",
    "pt",
    "runai_streamer",
    "safetensors",
    "sharded_state",
}
"""Ways of loading that read the model's folder, and nothing else."""

_ELSEWHERE = ("checkpoint_engine_wait_weights_before_ready", "weight_cache_mode")
"""Arguments with which weights come from another process, not from the folder."""

_COMMIT = re.compile("[0-9a-f]{40}")
"""A commit, which names weights on the hub for good; a branch or a tag does not."""

_DTYPES = {"half": "float16", "float": "float32"}


def _given(arguments: object | None, name: str) -> str | None:
    value = getattr(arguments, name, None)
    return None if value is None else str(value)


def _dtype(arguments: object | None) -> str:
    """The dtype that the model computes in; by default its checkpoint's."""
    named = _given(arguments, "dtype") or "auto"
    return _DTYPES.get(named, named)


def _adapters(arguments: object | None) -> Iterator[tuple[str, Path, str]]:
    """Name, place, and SGLang's number of each LoRA adapter that a server begins with."""
    found = getattr(arguments, _LORA, None) or ()
    if getattr(arguments, "enable_lora", None) is False:
        return
    pairs = found.items() if isinstance(found, Mapping) else map(_name_and_path, found)
    for name, given in pairs:
        path, number = getattr(given, "lora_path", given), getattr(given, "lora_id", "")
        yield name, Path(str(path)), str(number)


def _held_by_adapters(arguments: object | None) -> str | None:
    """A digest of the LoRA adapters whose pages have no name by content; None without any.

    SGLang distinguishes these by their paths alone. The others have their content in their pages'
    names (:mod:`hexkv.adapters.sglang.identity.lora`), so a retrained one leaves the base model's
    as it is.
    """
    known = []
    for name, path, number in _adapters(arguments):
        if number in CONTENTS.digests:
            continue
        if not path.is_dir():
            log.warning("the weights of the LoRA adapter %s are unknown: set model.lora", path)
        content = FILES.digest(path, ", or set model.lora") if path.is_dir() else path
        known.append(f"{name} {content}")
    return sha256("\n".join(sorted(known)).encode()).hexdigest()[:32] if known else None


def _name_and_path(given: object) -> tuple[str, object]:
    """One of ``--lora-paths``: SGLang's record of it, a mapping, ``NAME=PATH``, or a path."""
    if isinstance(given, str):
        name, _, path = given.rpartition("=")
        return name or path, path
    if isinstance(given, Mapping):
        return str(given.get("lora_name")), given.get("lora_path")
    return str(getattr(given, "lora_name", None)), given


def _length(place: Path | None, arguments: object | None) -> str | None:
    """The longest sequence, if RoPE depends on it."""
    config = None if place is None else place / "config.json"
    asked = getattr(arguments, "context_length", None)
    if config is None or not config.is_file():
        return None if asked is None else str(asked)
    try:
        read = json.loads(config.read_bytes())
    except ValueError as error:
        raise ConfigError(f"{config}: is no JSON: {error}") from error
    if _stretched(read):
        return str(asked or read.get("max_position_embeddings", ""))
    return None


def _stretched(config: object) -> bool:
    """True if RoPE depends on the length anywhere: models have parts, and kinds of layers."""
    if isinstance(config, list):
        return any(map(_stretched, config))
    if not isinstance(config, dict):
        return False
    kind = config.get("rope_type", config.get("type"))
    return kind in ("dynamic", "longrope") or any(map(_stretched, config.values()))


def _refuse_mixing(arguments: object | None) -> None:
    utils = import_module("sglang.srt.mem_cache.utils")
    if hasattr(utils, "storage_namespace_seed"):
        return
    known = getattr(utils, "get_hash_str", None)
    seeded = known is not None and "extra_key" in inspect.signature(known).parameters
    if getattr(arguments, "enable_lora", False) and not seeded:
        raise ConfigError("this SGLang names pages without their LoRA adapter: use a newer one")
    log.warning("this SGLang names pages without the request's salt: tenants can see each other's")
