"""Waiting for asynchronous copies of a GPU."""

from __future__ import annotations

import time
from collections.abc import Iterable

import torch

from hexkv.ports import Deadline, Finished, Transfer

_POLL = 50e-6
"""Seconds between two checks of an event: well under the time one chunk takes."""


class _Queued:
    """Done once every event recorded behind the copies has passed."""

    def __init__(self, devices: set[torch.device]) -> None:
        self._events = [torch.cuda.current_stream(device).record_event() for device in devices]

    def wait(self, deadline: Deadline) -> bool:
        # An event can only be waited for without a limit; so check, and sleep in between.
        while not all(event.query() for event in self._events):
            if deadline.expired:
                return False
            time.sleep(_POLL)
        return True


def gpus(devices: Iterable[torch.device]) -> set[torch.device]:
    """Return those of *devices* that copy asynchronously."""
    return {device for device in devices if device.type == "cuda"}


def transfer_on(devices: set[torch.device]) -> Transfer:
    """Return the transfer of the copies just queued on *devices*; a finished one if none."""
    return _Queued(devices) if devices else Finished()
