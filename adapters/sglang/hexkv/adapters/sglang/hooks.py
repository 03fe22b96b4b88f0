"""Wraps methods of SGLang's classes, only for events that no extension point reports.

SGLang calls :func:`install` in every process as it starts it (its plugin group
``sglang.srt.plugins``), before models and LoRA adapters are loaded. It is called once more when a
backend is opened, for modules that are imported by then.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from contextlib import nullcontext
from functools import wraps
from multiprocessing import parent_process
from typing import Any

from hexkv.adapters.sglang import forward_times
from hexkv.adapters.sglang.identity import lora, weights
from hexkv.adapters.sglang.wrapping import Plain, wrap
from hexkv.plugins.support.causes import cause_report

_KILL = "kill_process_tree"
_KILLING = ("sglang.srt.utils.common", "sglang.srt.utils", "sglang.srt.entrypoints.engine")
"""Modules that have the function, those that define it first; others import it from these."""

_CONTROLLER = ("sglang.srt.managers.cache_controller", "HiCacheController")


def install() -> None:
    """Wrap all of them that are imported by now. Imports none; a further call costs little."""
    if parent_process() is None:
        _end_with_cause()
    weights.watch()
    lora.watch()
    forward_times.watch()
    for method in ("_stop_storage_threads", "reset"):  # the second does without until 0.5.17
        wrap(*_CONTROLLER, method, _stopping)


def _end_with_cause() -> None:
    """Have the process that the user started write why hexkv cannot start, as the last of all.

    It kills all others and itself once one of them has failed.
    """
    modules = [sys.modules[name] for name in _KILLING if name in sys.modules]
    plain: Callable[..., object] | None = getattr(next(iter(modules), None), _KILL, None)
    if plain is None or hasattr(plain, "hexkv"):
        return
    report = cause_report("SGLang")

    @wraps(plain)
    def kill(parent_pid: int | None, include_parent: bool = True, **named: Any) -> object:
        handler = getattr(signal.getsignal(signal.SIGQUIT), "__name__", "")
        if include_parent and parent_pid == os.getpid() and handler.startswith("launch"):
            plain(parent_pid, False)  # the others: what they write comes before the cause
            if report():
                os.kill(os.getpid(), signal.SIGKILL)  # as *plain* does, which logs a line before
        return plain(parent_pid, include_parent, **named)

    kill.hexkv = True  # type: ignore[attr-defined]  # a mark: wrapped once
    for module in modules:
        setattr(module, _KILL, kill)


def _stopping(plain: Plain) -> Plain:
    """SGLang waits on the scheduler's thread for its others, even for those in a call to hexkv."""

    @wraps(plain)
    def stop(controller: Any, *args: object, **named: object) -> object:
        storage = getattr(controller, "storage_backend", None)
        with getattr(storage, "hexkv_stopped", nullcontext)():
            return plain(controller, *args, **named)

    return stop
