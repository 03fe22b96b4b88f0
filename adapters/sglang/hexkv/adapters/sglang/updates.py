"""Counts what changes a model's weights in this process, whoever asks for it.

SGLang records an update of weights only where it got a new ``weight_version``. But all ways of
changing them, by tensors, over the network, by CUDA IPC or from disk, go through a few methods of
its classes, which are looked up by name at each call. Each of them is wrapped here by a count.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import wraps
from threading import Lock

from hexkv.adapters.sglang.wrapping import Plain, wrap

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
    """Count every change of weights from now on."""
    for (module, name), methods in CHANGES.items():
        for method in methods:
            if wrap(module, name, method, _counting(lambda *_: True)):
                CHANGED.watched.add(f"{name}.{method}")
    # Without a copy in host memory, weights that gave their memory back come back as anything.
    wrap(_SAVER, "_TorchMemorySaverAdapterReal", "pause", _counting(_loses_weights))


def _counting(changes: Callable[..., bool]) -> Callable[[Plain], Plain]:
    def around(plain: Plain) -> Plain:
        @wraps(plain)
        def counted(*args: object, **named: object) -> object:
            if changes(*args, *named.values()):
                CHANGED.count()
            return plain(*args, **named)

        return counted

    return around


def _loses_weights(saver: object, tag: str) -> bool:
    from hexkv.adapters.sglang.identity import server_arguments

    del saver
    kept = getattr(server_arguments(), "enable_weights_cpu_backup", False)
    return tag == "weights" and not kept
