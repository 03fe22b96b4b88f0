"""``python -m benchmarks.quality.gate``: how soon the gate is closed, simulated; a minute.

The families are divergences of blended models of our own, as measured, by request: some plans
break a few requests badly and leave the others as they are. The record is made of 32 requests of a
family. Live requests are drawn from the same one, which is to stay on; or from one whose mean is
five times the bound, which is to be off within ten checks. Beside it stands what no gate can
exceed. Needs the training scripts: ``PYTHONPATH=adapters/hf``.
"""

from __future__ import annotations

import argparse
import json
import logging
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import inf, log1p, sqrt
from pathlib import Path
from random import Random
from typing import Any, Literal

import torch

from benchmarks.quality.blending_page import PAGE
from benchmarks.quality.page import RESULT, filled
from hexkv.adapters.hf.blending.gate import (
    CHECKS,
    BlendGate,
    Comparison,
    Evidence,
    divergences,
    tail_of,
)
from hexkv.adapters.hf.blending.record import BlendRecord

OUTPUT = RESULT.with_name("blending_gate.json")
TABLE = "python -m benchmarks.quality.gate"
"""What writes the table."""

TIMES = 5.0
"""The mean divergence, in bounds, at which blending has to go off."""

STAYS = 300
"""Checks over which blending within its bound has to stay on."""

LIVE = 1_000
"""Requests of which it is counted how many are computed in full, or answered approximately."""

ALARMS = 0.01
"""Share of lives in which blending within its bound may be switched off."""

_SAMPLE = 32
"""Requests that a record is made of."""

_RATIO = 0.05
_PLANS: dict[Literal["alias", "text"], tuple[tuple[int, float, str], ...]] = {
    "alias": (
        (0, 0.0, "first"),
        (1, _RATIO, "question"),
        (1, 0.15, "question"),
        (2, _RATIO, "value-deviation"),
        (2, 0.15, "question"),
    ),
    "text": ((0, 0.0, "first"), (1, 0.15, "question")),
}


@dataclass(frozen=True, slots=True)
class Request:
    """One blended request beside full computation."""

    kl: Sequence[float]
    """Nats, of each token."""

    changed: float
    """Share of the tokens."""

    @property
    def mean(self) -> float:
        return statistics.fmean(self.kl)

    def compared(self, record: BlendRecord, times: float) -> Comparison:
        """What the gate of *record* gets to see, if all divergences are multiplied by *times*."""
        limit = tail_of(record)
        beyond = sum(kl * times > limit for kl in self.kl) / len(self.kl)
        return Comparison(self.mean * times, self.changed, beyond)


def record_of(requests: Sequence[Request], *, bound: float = 0.0) -> BlendRecord:
    """What ``hexkv blend calibrate`` records of *requests*.

    Args:
        requests: the sample.
        bound: of the user; the least that calibration allows if that is more.
    """
    single = [kl for request in requests for kl in request.kl]
    kl = statistics.fmean(single)
    error = statistics.stdev(request.mean for request in requests) / sqrt(len(requests))
    return BlendRecord(
        model="simulated",
        revision="",
        identity="0" * 64,
        selector="question",
        check_layer=1,
        ratio=0.15,
        kl=kl,
        kl_quantile=statistics.quantiles(single, n=10)[-1],
        bound=max(bound, kl + 2 * error),
        agreement=1 - statistics.fmean(request.changed for request in requests),
        share=0.5,
        prompts=len(requests),
        tokens=len(single),
        sample="0" * 64,
        versions={},
    )


def checks_until_off(
    record: BlendRecord, requests: Iterable[Request], *, times: float = 1.0
) -> int | None:
    """The number of checks after which the gate is closed; ``None`` if it stays open.

    Args:
        record: of the blending.
        requests: live ones.
        times: multiplies all divergences.
    """
    evidence = Evidence(record)
    for number, request in enumerate(requests, start=1):
        if evidence.add(request.compared(record, times)):
            return number
    return None


def answered(
    record: BlendRecord, family: Sequence[Request], chance: Random, *, times: float = 1.0
) -> tuple[int, int]:
    """The numbers of full and of approximate answers to live requests, until the gate is closed."""
    gate, full, approximate = BlendGate(record, random=chance), 0, 0
    while gate.plan is not None and full + approximate < LIVE:
        if gate.due():
            gate.take(chance.choice(family).compared(record, times))
            full += 1
        else:
            approximate += 1
    return full, approximate


def best_of_any(family: Sequence[Request], runs: int, chance: Random) -> float:
    """Share of runs off within :data:`CHECKS` checks that no gate exceeds, at :data:`TIMES` bounds.

    The worse requests are made rarer until the mean is the bound, in a way that is hard to tell
    apart (the reverse information projection). That blending is within its bound, so in 99 of 100
    runs a gate leaves it on; the likelihood ratio of the two is the most powerful test of that kind
    (Neyman and Pearson).
    """
    mean = mean_of(family)
    ratios = [TIMES * request.mean / mean for request in family]
    low, high = 0.0, 1.0
    for _ in range(60):  # the share that gains most: the derivative of the mean logarithm is 0
        share = (low + high) / 2
        rises = sum((ratio - 1) / (1 + share * (ratio - 1)) for ratio in ratios) > 0
        low, high = (share, high) if rises else (low, share)
    gains = [log1p(low * (ratio - 1)) for ratio in ratios]
    within = [1 / (1 + low * (ratio - 1)) for ratio in ratios]
    none = max(0.0, len(ratios) - sum(within))  # of requests that nothing is wrong with
    drawn = [*gains, log1p(-low) if low < 1 else -inf]
    weights = [*within, none]
    calm = sorted(sum(chance.choices(drawn, weights, k=CHECKS)) for _ in range(runs))
    broken = [sum(chance.choices(gains, k=CHECKS)) for _ in range(runs)]
    return statistics.fmean(value >= calm[int(runs * (1 - ALARMS))] for value in broken)


def stays_on(family: Sequence[Request], runs: int, chance: Random) -> float:
    """Share of runs in which live requests of *family* leave a record of it on."""
    mean, on = mean_of(family), 0
    for _ in range(runs):
        record = record_of(chance.choices(family, k=_SAMPLE), bound=mean)
        on += checks_until_off(record, chance.choices(family, k=STAYS)) is None
    return on / runs


def goes_off(family: Sequence[Request], runs: int, chance: Random) -> list[float]:
    """The number of checks after which each run is off, in order; infinite if it is not.

    All divergences of the live requests are larger, so that their mean is five times the bound.
    """
    mean, found = mean_of(family), []
    for _ in range(runs):
        record = record_of(chance.choices(family, k=_SAMPLE))
        live = chance.choices(family, k=STAYS)
        checks = checks_until_off(record, live, times=TIMES * record.bound / mean)
        found.append(inf if checks is None else float(checks))
    return sorted(found)


def mean_of(family: Sequence[Request]) -> float:
    """Of all requests, in nats."""
    return statistics.fmean(request.mean for request in family)


def simulated(
    families: Mapping[str, Sequence[Request]], runs: int, seed: int = 40
) -> list[dict[str, Any]]:
    """A row for each family."""
    chance, rows = Random(seed), []
    for name, family in families.items():
        mean, off = mean_of(family), goes_off(family, runs, chance)
        broken, calm = [], []
        for _ in range(max(1, runs // 4)):
            record = record_of(chance.choices(family, k=_SAMPLE))
            broken.append(answered(record, family, chance, times=TIMES * record.bound / mean)[1])
            record = record_of(chance.choices(family, k=_SAMPLE), bound=mean)
            calm.append(answered(record, family, chance)[0])
        rows.append(
            {
                "family": name,
                "kl": mean,
                "small": statistics.fmean(request.mean < mean / 10 for request in family),
                "largest": max(request.mean for request in family) / mean,
                "off": statistics.fmean(checks <= CHECKS for checks in off),
                "best": best_of_any(family, 10 * runs, chance),
                "before": statistics.fmean(count == 0 for count in broken),
                "approximate": statistics.fmean(broken),
                "full": statistics.fmean(calm) / LIVE,
                "off_95": late if (late := off[len(off) * 95 // 100]) < inf else None,
                "on": stays_on(family, max(1, runs // 4), chance),
            }
        )
    return rows


def measured(requests: int) -> dict[str, list[Request]]:
    """The families: *requests* of each plan on the models that come along."""
    from benchmarks.quality.segments import Segmented, lists, pieces_of
    from hexkv.adapters.hf.blending.blender import Blender
    from hexkv.adapters.hf.blending.plan import BlendPlan
    from hexkv.adapters.hf.trained import trained
    from training.corpus import standard_library

    def compared(blender: Blender, case: Segmented, plans: Iterable[BlendPlan]) -> list[Request]:
        tokens, keep = case.tokens, len(case.after)
        segments = [blender.compute(segment) for segment in case.segments]
        starts = list(accumulate(map(len, case.segments)))
        with torch.no_grad():
            full = blender.model(input_ids=tokens[None], logits_to_keep=keep).logits[0]
        found = []
        for plan in plans:
            room = blender.room(len(tokens))
            room.fill(segments[0])
            runs = [
                blender.place(room, start, planes)
                for start, planes in zip(starts, segments[1:], strict=False)
            ]
            made = blender.blend(
                tokens, room, prefix=starts[0], reused=runs, plan=plan, keep=keep
            ).logits
            kl = divergences(full, made)[-64:].tolist()
            changed = (full.argmax(-1) != made.argmax(-1))[-64:].double().mean()
            found.append(Request([float(f"{value:.1e}") for value in kl], float(changed)))
        return found

    families: dict[str, list[Request]] = {}
    asked = {"alias": lists, "text": lambda n: pieces_of(standard_library().held_out, n)}
    for name, plans in _PLANS.items():
        with Blender(trained(name)) as blender:
            for case in asked[name](requests):
                made = compared(blender, case, [BlendPlan(*plan) for plan in plans])
                for plan, request in zip(plans, made, strict=True):
                    layer, ratio, selector = plan
                    title = f"{name}, layer {layer}, {ratio:.0%} by {selector}"
                    families.setdefault(title, []).append(request)
    return families


def families_of(run: Mapping[str, Any]) -> dict[str, list[Request]]:
    """The families that a run has written."""
    return {
        name: [Request(kl, changed) for kl, changed in requests]
        for name, requests in run["families"].items()
    }


def table(run: Mapping[str, Any]) -> str:
    """One line for each family."""
    head = ["family", "KL", "requests below a tenth of it", "largest request, in means"]
    head += [f"off within {CHECKS} checks at {TIMES:g} bounds", "of any gate, at most"]
    head += ["checks until 95 % are off", "off before an approximate answer"]
    head += [f"on after {STAYS} within the bound", f"of {LIVE:,} computed in full"]
    rows = [head, ["---", *["--:"] * (len(head) - 1)]]
    rows += [
        [
            row["family"],
            f"{row['kl']:.1e}",
            f"{row['small']:.0%}",
            f"{row['largest']:.1f}",
            f"{row['off']:.1%}",
            f"{row['best']:.1%}",
            f"more than {STAYS}" if row["off_95"] is None else f"{row['off_95']:.0f}",
            f"{row['before']:.1%}",
            f"{row['on']:.1%}",
            f"{row['full']:.1%}",
        ]
        for row in run["rows"]
    ]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.quality.gate", description=__doc__)
    parser.add_argument("--requests", type=int, default=40, help="of each family")
    parser.add_argument("--runs", type=int, default=2_000)
    parser.add_argument("--again", action="store_true", help="with the families of the last run")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    parser.add_argument("--page", type=Path, default=PAGE)
    asked = parser.parse_args(arguments)
    torch.set_num_threads(1)
    logging.getLogger("hexkv.hf").setLevel(logging.CRITICAL)  # each closed gate is logged
    last = json.loads(asked.output.read_text()) if asked.again else {}
    families = families_of(last) if asked.again else measured(asked.requests)
    run = {
        "runs": asked.runs,
        "rows": simulated(families, asked.runs),
        "families": {
            name: [[request.kl, request.changed] for request in requests]
            for name, requests in families.items()
        },
    }
    asked.output.write_text(json.dumps(run, separators=(",", ":")) + "\n")
    asked.page.write_text(filled(asked.page.read_text(), TABLE, table(run)))
    print(table(run))
    return 0


if __name__ == "__main__":
    sys.exit(main())
