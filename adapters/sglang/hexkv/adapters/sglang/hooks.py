"""Wraps methods of SGLang's classes, only for events that no extension point reports.

SGLang calls :func:`install` in every process as it starts it (its plugin group
``sglang.srt.plugins``), before models and LoRA adapters are loaded. It is called once more when a
backend is opened, for modules that are imported by then.
"""

from __future__ import annotations

from contextlib import nullcontext
from functools import wraps
from typing import Any

from hexkv.adapters.sglang import forward_times
from hexkv.adapters.sglang.identity import lora, weights
from hexkv.adapters.sglang.wrapping import Plain, wrap

_CONTROLLER = ("sglang.srt.managers.cache_controller", "HiCacheController")


def install() -> None:
    """Wrap all of them that are imported by now. Imports none; a further call costs little."""
    weights.watch()
    lora.watch()
    forward_times.watch()
    for method in ("_stop_storage_threads", "reset"):  # the second does without until 0.5.17
        wrap(*_CONTROLLER, method, _stopping)


def _stopping(plain: Plain) -> Plain:
    """SGLang waits on the scheduler's thread for its others, even for those in a call to hexkv."""

    @wraps(plain)
    def stop(controller: Any, *args: object, **named: object) -> object:
        storage = getattr(controller, "storage_backend", None)
        with getattr(storage, "hexkv_stopped", nullcontext)():
            return plain(controller, *args, **named)

    return stop
