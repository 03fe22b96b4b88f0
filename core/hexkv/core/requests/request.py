"""One request, as its pipeline gets it."""

from __future__ import annotations

from dataclasses import dataclass

from hexkv.core.keys.prompts import Prompt
from hexkv.core.requests.accounts import Laps
from hexkv.ports import DeviceKV


@dataclass(slots=True)  # a frozen one takes three times as long to make
class PromptRequest:
    """The chunks to move, and for whom."""

    prompt: Prompt
    device: DeviceKV
    """A window on the prompt's positions."""

    owner: str
    """The call's name: its leases and pins are listed under it until it ends."""

    laps: Laps
    lookup_id: str | None = None
    """The prefetch to use up, if there is one."""
