"""The LoRA adapters that a worker has loaded: a digest of each, of the tensors as loaded.

vLLM keeps the adapter that it loaded first, even if the file changes; so an adapter is known in
the worker alone, once it is loaded. vLLM has no hook for that: the method of its worker that
reads an adapter is wrapped.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from hashlib import sha256
from threading import Lock
from typing import Any, Protocol

import torch

from hexkv.adapters.vllm.guard import guarded

log = logging.getLogger("vllm.hexkv")


class Digest(Protocol):
    """A hash object of ``hashlib``."""

    def update(self, data: bytes | memoryview, /) -> None: ...


class Adapters:
    """The adapters of one worker. Safe from any thread.

    A name stands for one content as long as the worker lives: vLLM's own prefix cache, which
    saves may copy from, goes by names. Once another content came under it, the name is
    neither loaded nor stored.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._loaded: dict[int, tuple[str, weakref.ref[object]]] = {}
        self._digests: dict[str, str] = {}
        """By name; empty where there were several, or the content is not known."""

    def loaded(self, name: str, number: int, adapter: object, *, whole: bool = True) -> None:
        """Take in an *adapter* that vLLM has loaded under *name* and *number*.

        Args:
            name: of the request.
            number: vLLM's, of which each has one adapter at a time.
            adapter: the tensors; it is in use for as long as the object lives.
            whole: True if all of it is here.
        """
        digest = ""
        try:
            digest = digest_of_adapter(adapter) if whole else ""
        finally:
            with self._lock:
                known = self._digests.setdefault(name, digest)
                if known != digest:
                    self._digests[name] = ""
                self._loaded.pop(number, None)
                self._loaded[number] = name, weakref.ref(adapter)
        if not digest:
            log.warning("the LoRA adapter %r is not cached: this rank has only a part of it", name)
        elif known != digest:
            log.warning(
                "the LoRA adapter %r is no longer cached: it was replaced under its name."
                " Give a new version a new name, or restart vLLM.",
                name,
            )

    def identity(self, name: str, number: int) -> str | None:
        """The content of an adapter that is loaded; ``None``: it is not, or it is not known."""
        with self._lock:
            here, adapter = self._loaded.get(number, ("", None))
            digest = self._digests.get(name, "")
            if here != name or adapter is None or adapter() is None or not digest:
                return None
            return digest


_watched: list[tuple[object, weakref.ref[Adapters]]] = []
"""By vLLM's configuration of LoRA, of which each engine of a process has one."""


def watch(lora_config: object, manager: Any) -> Adapters:
    """The adapters that an engine loads from now on.

    Args:
        lora_config: the engine's own object: its manager of adapters has it, too.
        manager: vLLM's class ``WorkerLoRAManager``.
    """
    adapters = Adapters()
    _watched[:] = [(config, known) for config, known in _watched if known() is not None]
    _watched.append((lora_config, weakref.ref(adapters)))
    read: Callable[..., object] | None = getattr(manager, "_load_adapter", None)
    if read is None:
        log.warning("LoRA adapters are not cached: this vLLM does not report the loaded tensors")
    elif not hasattr(read, "hexkv"):
        manager._load_adapter = _notifying(read)
    return adapters


def _notifying(read: Callable[..., object]) -> Callable[..., object]:
    @wraps(read)
    def reading(manager: Any, lora_request: Any, *args: Any, **kwargs: Any) -> object:
        adapter = read(manager, lora_request, *args, **kwargs)
        _notify(manager, lora_request, adapter)
        return adapter

    reading.hexkv = True  # type: ignore[attr-defined]  # a mark: wrapped once
    return reading


@guarded(None)
def _notify(manager: Any, request: Any, adapter: object) -> None:
    # With experts spread over ranks, each loads those of its own only.
    part = getattr(getattr(manager, "_adapter_manager", None), "moe_ep_load_spec", None)
    for config, known in _watched:
        if config is manager.lora_config and (adapters := known()) is not None:
            name, number = str(request.lora_name), int(request.lora_int_id)
            adapters.loaded(name, number, adapter, whole=part is None)


def digest_of_adapter(adapter: object) -> str:
    """A digest of everything in an adapter but its number.

    Raises:
        TypeError: there is something in it of a kind that is not known.
    """
    digest = sha256()
    fields = {name: value for name, value in vars(adapter).items() if name != "id"}
    _feed(digest, fields)
    return digest.hexdigest()[:32]


def _feed(digest: Digest, value: object) -> None:
    if isinstance(value, torch.Tensor):
        digest.update(f"tensor {value.dtype} {list(value.shape)}\n".encode())
        data = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        digest.update(data.numpy().data)
    elif isinstance(value, Mapping):
        digest.update(f"mapping {len(value)}\n".encode())
        for name in sorted(value, key=repr):
            _feed(digest, name)
            _feed(digest, value[name])
    elif value is None or isinstance(value, bool | int | float | str):
        text = repr(value)
        digest.update(f"{type(value).__name__} {len(text)} {text}\n".encode())
    elif isinstance(value, Sequence):
        digest.update(f"sequence {len(value)}\n".encode())
        for inner in value:
            _feed(digest, inner)
    elif hasattr(value, "__dict__"):
        digest.update(f"object {type(value).__name__}\n".encode())
        _feed(digest, vars(value))
    else:
        raise TypeError(f"an adapter holds a {type(value).__name__}")
