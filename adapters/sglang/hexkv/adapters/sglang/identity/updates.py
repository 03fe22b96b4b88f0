"""Every change of a model's weights in this process, as it begins, and its outcome.

All ways of changing them, by tensors, over the network, by CUDA IPC or from disk, go through a few
methods of SGLang's classes, which are looked up by name at each call. Each of them is wrapped here
by a count. SGLang's own record is no measure: an update without a ``weight_version`` is not in it,
and a version alone is, which changes no weights.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import wraps
from threading import Lock
from typing import Any, Protocol
from weakref import WeakSet

from hexkv.adapters.sglang.wrapping import Plain, wrap

log = logging.getLogger("hexkv.sglang")

_RUNNER = "sglang.srt.model_executor"
_LOADER = ("sglang.srt.model_loader.loader", "DefaultModelLoader")
_WRITES = "restore_weights_before_loading"
"""The loader's method that an update from disk calls right before it writes, since 0.5.23."""

_DISK = "update_weights_from_disk"
_UPDATES = (
    "begin_weight_update",  # from here on weights may be written from outside
    "end_weight_update",  # until here; quantised ones are packed
    "load_weights_from_distributed",
    _DISK,
    "update_weights_from_distributed",  # until 0.5.20
    "update_weights_from_ipc",
    "update_weights_from_tensor",
)
CHANGES = {
    _LOADER: (_WRITES,),
    (f"{_RUNNER}.model_runner_components.weight_updater", "WeightUpdater"): _UPDATES,
    (f"{_RUNNER}.model_runner", "ModelRunner"): _UPDATES,  # until 0.5.17
    ("sglang.srt.utils.weight_checker", "WeightChecker"): ("_reset_tensors",),
}
"""The methods that change weights, by module and class. A version has some of them."""

_SAVER = "sglang.srt.utils.torch_memory_saver_adapter"
_SCHEDULER = "sglang.srt.managers.scheduler"


class Ends(Protocol):
    """An object that ends when weights change."""

    def end(self) -> None:
        """Stop. Called before the weights are written, on the thread that writes them."""
        ...


@dataclass
class Changes:
    """The changes of weights in this process, each counted as it begins."""

    seen: int = 0
    unsettled: bool = False
    """True from the begin of an update to its end: weights may change without a call."""

    flushed: int = 0
    """The value of :attr:`seen` when SGLang's own cache was last emptied."""

    vouched: dict[str, int] = field(default_factory=dict)
    """By text of ``model.weights`` the value of :attr:`seen` when it was first given."""

    watched: set[str] = field(default_factory=set)
    """The methods that are counted."""

    ends: WeakSet[Ends] = field(default_factory=WeakSet)
    lock: Lock = field(default_factory=Lock)

    def count(self) -> None:
        """Count a change, before it is made, and end the users of the weights before."""
        with self.lock:
            self.seen += 1
        for each in list(self.ends):
            each.end()


CHANGED = Changes()
"""The changes in this process: a model's weights are its own."""


def watch(loading: Callable[[Plain], Plain] | None = None) -> None:
    """Count every change of weights from now on.

    Args:
        loading: a wrapper around the method that loads a model when SGLang starts. Classes that
            change weights are imported there, and wrapped after it.
    """
    for (module, name), methods in CHANGES.items():
        for method in methods:
            # An update that fails before it writes changes nothing.
            if method == _DISK and f"{_LOADER[1]}.{_WRITES}" in CHANGED.watched:
                continue
            if wrap(module, name, method, _settling(method, _counting(_always))):
                CHANGED.watched.add(f"{name}.{method}")
    # Without a copy in host memory, weights that gave their memory back come back as anything.
    wrap(_SAVER, "_TorchMemorySaverAdapterReal", "pause", _counting(_loses_weights))
    wrap(_SCHEDULER, "Scheduler", "flush_cache", _flushing)
    if loading is not None:
        wrap(_SCHEDULER, "Scheduler", "init_model_worker", loading)


def _counting(changes: Callable[..., bool]) -> Callable[[Plain], Plain]:
    def around(plain: Plain) -> Plain:
        @wraps(plain)
        def counted(*args: object, **named: object) -> object:
            if changes(*args, *named.values()):
                CHANGED.count()
            return plain(*args, **named)

        return counted

    return around


def _always(*_: object) -> bool:
    return True


def _settling(method: str, around: Callable[[Plain], Plain]) -> Callable[[Plain], Plain]:
    """*around*, which remembers as well where *method* begins an update, or ends one."""
    if method not in ("begin_weight_update", "end_weight_update"):
        return around

    def settling(plain: Plain) -> Plain:
        counted = around(plain)

        @wraps(plain)
        def settled(*args: object, **named: object) -> object:
            CHANGED.unsettled = True
            answer = counted(*args, **named)
            CHANGED.unsettled = method == "begin_weight_update"
            return answer

        return settled

    return settling


def _flushing(plain: Plain) -> Plain:
    @wraps(plain)
    def flush(*args: object, **named: object) -> object:
        seen = CHANGED.seen
        flushed = plain(*args, **named)
        if flushed:
            CHANGED.flushed = seen
        return flushed

    return flush


def _loses_weights(saver: object, tag: str) -> bool:
    from hexkv.adapters.sglang.identity.identity import server_arguments

    del saver
    arguments: Any = server_arguments()
    return tag == "weights" and not getattr(arguments, "enable_weights_cpu_backup", False)
