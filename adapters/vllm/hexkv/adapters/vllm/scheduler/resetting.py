"""The effect of a reset of vLLM's own caches on hexkv's: none, unless it is configured.

vLLM resets before it sleeps and pauses, and not because any stored KV is wrong.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence

from hexkv.adapters.vllm.messages import RankClient

log = logging.getLogger("vllm.hexkv")

_SECONDS = 30.0
"""Seconds to wait for ranks, in which nothing is served."""


def reset(
    ranks: Sequence[RankClient],
    tiers: Sequence[str],
    now: Callable[[], float] = time.monotonic,
    generation: int = 0,
) -> bool:
    """Delete the model's chunks on *tiers*. True if every rank has answered.

    One log line has the number of deleted chunks, and the tiers where some may be left.

    Args:
        ranks: ways to them. They are asked even if there are no tiers.
        tiers: names of them.
        now: seconds.
        generation: the number of the reset, where ranks are to know it.
    """
    numbers = [rank.ask("clear", tiers=list(tiers), generation=generation) for rank in ranks]
    until = now() + _SECONDS
    chunks, left = 0, Counter[str]()
    answered = True
    for place, (rank, number) in enumerate(zip(ranks, numbers, strict=True)):
        answer = rank.take(number, max(0.0, until - now())) if number else None
        error = "no answer" if answer is None else answer.get("error")
        if error:
            answered = False
            left[f"rank {place}: {error}"] += 1
            continue
        found = answer or {}
        chunks += _number(found.get("chunks"))
        where = found.get("left")
        if isinstance(where, dict):
            left.update(f"{tier}: {why}" for tier, why in where.items())
    if left:
        log.error("vLLM reset its caches; hexkv may have kept some on %s", "; ".join(left))
    elif tiers:
        log.info("vLLM reset its caches; hexkv deleted %d chunks on %s", chunks, ", ".join(tiers))
    else:
        log.info("vLLM reset its caches; hexkv keeps its tiers' chunks (reset_clears)")
    return answered


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0
