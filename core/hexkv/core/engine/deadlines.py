"""How long calls wait."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Deadlines:
    """How long calls wait at most, in seconds."""

    lookup: float = 1.0
    retrieve: float = 10.0
    store: float = 30.0
    close: float = 30.0
    pin: float = 600.0
    """After which a pin that nobody ended is taken for one of a vanished owner."""
