"""Waiting for copies that a GPU does behind the caller's back."""

from __future__ import annotations

import time
from collections.abc import Iterable

import torch

from hexkv.ports import Deadline, Finished, Transfer

_POLL = 50e-6
"""Seconds between two looks at an event: well under the time one chunk takes."""


class _Queued:
    """Done once every event recorded behind the copies has passed."""

    def __init__(self, devices: set[torch.device]) -> None:
        self._events = [torch.cuda.current_stream(device).record_event() for device in devices]

    def wait(self, deadline: Deadline) -> bool:
        # An event can be waited for only without a limit; so look, and sleep in between.
        while not all(event.query() for event in self._events):
            if deadline.expired:
                return False
            time.sleep(_POLL)
        return True


def gpus(devices: Iterable[torch.device]) -> set[torch.device]:
    """Those of *devices* that copy behind the caller's back."""
    return {device for device in devices if device.type == "cuda"}


def transfer_on(devices: set[torch.device]) -> Transfer:
    """The transfer of the copies just queued on *devices*, of :func:`gpus`; finished without."""
    return _Queued(devices) if devices else Finished()
