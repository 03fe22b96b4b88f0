"""Counts what changes a model's weights in this process, whoever asks for it.

SGLang records an update of weights only where it got a new ``weight_version``. But all ways of
changing them, by tensors, over the network, by CUDA IPC or from disk, go through a few methods of
its classes, which are looked up by name at each call. Each of them is wrapped here by a count, and
by nothing else. ``watch`` does that in every process as SGLang starts it (its plugin group
``sglang.srt.plugins``), so that an update is also known to a backend that is attached afterwards;
and once more when a backend is opened, should the plugin have been switched off
(``SGLANG_PLUGINS``).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import wraps
from threading import Lock

_RUNNER = "sglang.srt.model_executor"
_UPDATES = (
    "begin_weight_update",  # what follows may be written into the weights from outside
    "load_weights_from_distributed",
    "update_weights_from_disk",
    "update_weights_from_distributed",  # until 0.5.20
    "update_weights_from_ipc",
    "update_weights_from_tensor",
)
CHANGES = {
    (f"{_RUNNER}.model_runner_components.weight_updater", "WeightUpdater"): _UPDATES,
    (f"{_RUNNER}.model_runner", "ModelRunner"): _UPDATES,  # until 0.5.17
    ("sglang.srt.utils.weight_checker", "WeightChecker"): ("_reset_tensors",),
}
"""The methods that change weights, by module and class. A version has some of them."""

_SAVER = "sglang.srt.utils.torch_memory_saver_adapter"


@dataclass
class Changes:
    """How often weights changed in this process, or began to."""

    seen: int = 0
    watched: set[str] = field(default_factory=set)
    """The methods that are counted."""

    lock: Lock = field(default_factory=Lock)

    def count(self) -> None:
        """Count a change, before it is made: what reads KV at the same time is to stop."""
        with self.lock:
            self.seen += 1


CHANGED = Changes()
"""Of this process: a model's weights are its own."""


def watch() -> None:
    """Count every change of weights from now on. Again: whatever was imported meanwhile, too.

    Modules are not imported for this: only a scheduler's process has weights.
    """
    for (module, name), methods in CHANGES.items():
        for method in methods:
            _wrap(module, name, method, lambda *_: True)
    # Without a copy in host memory, weights that gave their memory back come back as anything.
    _wrap(_SAVER, "_TorchMemorySaverAdapterReal", "pause", _loses_weights)


def _wrap(module: str, name: str, method: str, changes: Callable[..., bool]) -> None:
    owner = getattr(sys.modules.get(module), name, None)
    plain = vars(owner).get(method) if owner is not None else None
    if plain is None or f"{name}.{method}" in CHANGED.watched:
        return

    @wraps(plain)
    def counted(*args: object, **named: object) -> object:
        if changes(*args, *named.values()):
            CHANGED.count()
        return plain(*args, **named)

    setattr(owner, method, counted)
    CHANGED.watched.add(f"{name}.{method}")


def _loses_weights(saver: object, tag: str) -> bool:
    from hexkv.adapters.sglang.identity import server_arguments

    del saver
    kept = getattr(server_arguments(), "enable_weights_cpu_backup", False)
    return tag == "weights" and not kept
