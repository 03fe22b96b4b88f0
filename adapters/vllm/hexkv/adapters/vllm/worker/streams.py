"""The GPU's streams, beside that of vLLM's model."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack

import torch


class _Stream:
    """Copies beside the model's stream, after the work that was queued there at the time."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._before = torch.cuda.current_stream(device).record_event()
        self._entered = ExitStack()

    def __enter__(self) -> None:
        stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        stream.wait_event(self._before)
        self._entered.enter_context(torch.cuda.stream(stream))

    def __exit__(self, *_: object) -> None:
        self._entered.close()


def beside(device: torch.device) -> Callable[[], AbstractContextManager[object]]:
    """Makes contexts for copies beside the model's stream, where *device* has streams."""
    return (lambda: _Stream(device)) if device.type == "cuda" else ExitStack


def settle(device: torch.device) -> None:
    """Wait for all that is queued on any stream of *device*."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
