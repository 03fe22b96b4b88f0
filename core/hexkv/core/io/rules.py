"""The priorities of a lane, its limits, and the reason of a refusal."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

from hexkv.core.io.breaker import BreakerRules
from hexkv.ports import Reason


class Priority(IntEnum):
    """The order of tasks that wait for a worker."""

    PEEK = 0
    PREFETCH = 1
    GET = 2
    DELETE = 3
    PUT = 4


WORDS = {priority: priority.name.lower() for priority in Priority}
"""The names of a lane's steps."""


@dataclass(frozen=True, slots=True)
class LaneRules:
    """Limits of one lane."""

    workers: int = 4
    queue_bytes: int = 1 << 30
    """The most bytes of waiting and running tasks. Further tasks wait, or are refused."""

    breaker: BreakerRules = field(default_factory=BreakerRules)


class Refused(Exception):
    """The lane does not take the task."""

    def __init__(self, reason: Reason) -> None:
        self.reason = reason
        super().__init__(reason)
