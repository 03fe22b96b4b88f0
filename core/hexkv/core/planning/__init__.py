"""The hits of a tier of a given size and policy: traces replayed, records summed up."""

from hexkv.core.planning.recorded import (
    COMPUTED,
    WHOLE,
    Served,
    Span,
    Spending,
    over_time,
    requests_of,
    served,
    spending,
    totals,
)
from hexkv.core.planning.replay import Replay, optimal, replay, unlimited
from hexkv.core.planning.stacked import Below, Stacked, replay_stacked
from hexkv.core.planning.trace import BadTrace, Request, read_mooncake

__all__ = [
    "COMPUTED",
    "WHOLE",
    "BadTrace",
    "Below",
    "Replay",
    "Request",
    "Served",
    "Span",
    "Spending",
    "Stacked",
    "optimal",
    "over_time",
    "read_mooncake",
    "replay",
    "replay_stacked",
    "requests_of",
    "served",
    "spending",
    "totals",
    "unlimited",
]
