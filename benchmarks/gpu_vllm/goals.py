"""What the times of a run are beside their goals."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.gpu_vllm.turns import Rows, Seconds
from benchmarks.rig.rounds import against

MISS = 1.03
"""Of the time of vLLM alone, which a hit may take as well: computing is never the sooner way."""

COPIES = 1.5
SPARE = 0.01
"""Seconds that a hit may take beside vLLM's own prefix cache and the copies."""

SAVED = 45.0
"""GB/s of KV that is copied to be saved."""

_PLACES = {("hexkv", "memory"), ("node", "node")}
"""Those of which a hit is to be as good as the bare copy."""


def judged(length: int, found: Mapping[str, Rows]) -> Iterator[dict[str, Any]]:
    """Each ratio of each side: its median, its quartiles, and the goal where there is one."""
    for name, rows in found.items():
        ours = name != "offloading"
        about = {"tokens": length, "side": name}
        if len(rows.miss) > 1:
            ratio = against(rows.miss, rows.alone)
            yield _most(about, "miss / vLLM alone", ratio, MISS if ours else None)
        for place, hits in rows.hits.items():
            if len(hits) < 2:
                continue
            here = about | {"place": place}
            # What is loaded in any case is no promise of a default.
            kept = MISS if ours and name != "disk" else None
            yield _most(here, "hit / computed by vLLM", against(hits, rows.alone), kept)
            limit = {
                turn: seconds + COPIES * rows.copy[turn] + SPARE
                for turn, seconds in rows.own.items()
                if turn in rows.copy
            }
            near = 1.0 if (name, place) in _PLACES else None
            what = "hit / (prefix cache + 1.5 copies + 10 ms)"
            yield _most(here, what, against(hits, limit), near)
        size, seconds = rows.saved
        if seconds > 0:
            speed = round(size / seconds / 1e9, 2)
            goal = SAVED if name == "hexkv" else None
            reached = None if goal is None else speed >= goal
            yield about | {"what": "GB/s saved", "median": speed, "goal": goal, "reached": reached}


def _most(
    about: Mapping[str, object], what: str, ratio: Mapping[str, float], goal: float | None
) -> dict[str, Any]:
    reached = None if goal is None else ratio["median"] <= goal
    return {**about, "what": what, **ratio, "goal": goal, "reached": reached}


def spread(seconds: Seconds) -> dict[str, float]:
    """Milliseconds: the least, the median and the most."""
    if not seconds:
        return {}
    each = [1e3 * value for value in seconds.values()]
    values = {"min": min(each), "median": statistics.median(each), "max": max(each)}
    return {name: round(value, 2) for name, value in values.items()}
