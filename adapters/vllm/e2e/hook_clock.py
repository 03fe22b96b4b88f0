"""How long a vLLM connector's hooks take, whoever wrote it."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm import LLM


class HookClock:
    """Adds up the time that an engine of one process spends in its connector's hooks."""

    def __init__(self, llm: LLM) -> None:
        self.seconds = 0.0
        self.count = 0
        self._inside = False
        for connector in _connectors(llm):
            for name in _hooks():
                self.count += 1
                setattr(connector, name, self._timed(getattr(connector, name)))

    def _timed(self, hook: Callable[..., object]) -> Callable[..., object]:
        @wraps(hook)
        def timed(*args: object, **named: object) -> object:
            if self._inside:  # a hook that calls another one
                return hook(*args, **named)
            self._inside, began = True, time.perf_counter()
            try:
                return hook(*args, **named)
            finally:
                self._inside = False
                self.seconds += time.perf_counter() - began

        return timed


def _connectors(llm: LLM) -> list[object]:
    """That of the scheduler and that of the worker, where both live in this process."""
    from vllm.distributed.kv_transfer import get_kv_transfer_group, has_kv_transfer_group

    core = getattr(llm.llm_engine.engine_core, "engine_core", None)
    if core is None or not has_kv_transfer_group():
        return []
    return [core.scheduler.connector, get_kv_transfer_group()]


def _hooks() -> list[str]:
    """What vLLM calls in the course of a step."""
    from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1

    return [
        name
        for name, hook in vars(KVConnectorBase_V1).items()
        if not name.startswith("_") and type(hook).__name__ == "function"
    ]
