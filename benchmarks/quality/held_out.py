"""``python -m benchmarks.quality.held_out FOLDER ..``: judges of another make than our own models.

Each was trained by ``python -m training JUDGE FOLDER``. Levels of serdes are chosen by one half of
them, which was named before any was measured (``training.judges``); the other half only judges.
Exit code 1 unless the default lossy level keeps its bar at the worst of all, with what 95 % add.
Needs the training scripts: ``PYTHONPATH=adapters/hf``.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from benchmarks.quality.__main__ import serdes
from benchmarks.quality.cases import asked_of
from benchmarks.quality.page import (
    CHOICE_TABLE,
    HELD_OUT,
    HELD_OUT_TABLE,
    PAGE,
    choice_table,
    filled,
    held_out_table,
)
from benchmarks.rig.machine import describe, versions
from hexkv.adapters.cachegen.cachegen import LEVELS, CacheGen, Level
from hexkv.adapters.cachegen.serde import LossySerde
from hexkv.adapters.hf.quality.measure import RAW, Summary, measure
from hexkv.kernels.coding.choosing import Choice
from hexkv.ports import Serde
from training.judges import CHOOSING, JUDGES

BAR = 2.5e-3
"""Nats at the worst judge: what the default lossy level should keep."""

DEFAULT = "cachegen"
FEWEST = 4
"""Judges, below which nothing is stated."""

KEPT, OPEN, BROKEN = "kept", "open", "broken"
"""A bar's verdicts: the interval of 95 % is below it, around it, or above it."""

_NORMAL = 1.96
_HALVES = (31, 14, 7)
"""Of levels, that a default may have in early and in late layers."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.quality.held_out", description=__doc__)
    parser.add_argument("models", type=Path, nargs="+", help="folders that training wrote")
    parser.add_argument("--cases", type=int, default=32, help="sequences for each judge")
    parser.add_argument("--output", type=Path, default=HELD_OUT)
    parser.add_argument("--page", type=Path, default=PAGE, help="where the tables go")
    asked = parser.parse_args(arguments)
    recipes = [json.loads((folder / "recipe.json").read_text()) for folder in asked.models]
    names = [recipe["judge"] for recipe in recipes]
    if len({*names}) < FEWEST:
        parser.error(f"{FEWEST} judges, or more")
    torch.set_num_threads(1)
    offered, candidates = serdes(), levels()
    found: dict[str, Mapping[str, Summary]] = {}
    for name, folder in zip(names, asked.models, strict=True):
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        model.train(False)
        more = candidates if name in CHOOSING else {}
        found[name] = measure(model, asked_of(JUDGES[name], asked.cases), offered | more)
    rows = summarised(found, offered)
    default = next(row for row in rows if row["serde"] == DEFAULT)
    run = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": describe(HELD_OUT.parent),
        "versions": versions(),
        "judges": recipes,
        "right": {name: summaries[RAW].right for name, summaries in found.items()},
        "cases": asked.cases,
        "bar": {
            "wanted": f"at most {BAR}, with what 95 % add",
            "is": default["worst"]["kl"],
            "interval_95": default["worst"]["kl_95"],
            "state": default["bar"],
        },
        "rows": rows,
        "levels": chosen_from(found, candidates),
    }
    asked.output.write_text(json.dumps(run, indent=2) + "\n")
    page = filled(asked.page.read_text(), HELD_OUT_TABLE, held_out_table(run))
    asked.page.write_text(filled(page, CHOICE_TABLE, choice_table(run)))
    print(held_out_table(run), choice_table(run), sep="\n")
    for row in rows:
        kl, more = row["worst"]["kl"], row["worst"]["kl_95"]
        print(f"{row['serde']}: {kl:.2e} +- {more:.1e}, at most {BAR}: {row['bar']}")
    return 0 if default["bar"] == KEPT else 1


def verdict(kl: float, kl_95: float, **_: object) -> str:
    """Of the bar, for a divergence and the half of its interval."""
    if kl + kl_95 <= BAR:
        return KEPT
    return BROKEN if kl - kl_95 > BAR else OPEN


def levels() -> dict[str, Serde]:
    """Every level that the default might be, by its halves."""
    made: dict[str, Serde] = {}
    for early in _HALVES:
        for late in _HALVES:
            if early >= late and Level(early, late) not in LEVELS.values():
                made[f"{early}/{late}"] = LossySerde(CacheGen(Level(early, late), Choice()))
    return made


def summarised(
    found: Mapping[str, Mapping[str, Summary]], offered: Mapping[str, object]
) -> list[dict[str, Any]]:
    """A row for each serde, the smallest payloads last: every judge, and the worst of each half."""
    rows = []
    for name in offered:
        judges = {judge: summaries[name] for judge, summaries in found.items()}
        rows.append(
            {
                "serde": name,
                "judges": {judge: asdict(summary) for judge, summary in judges.items()},
                "worst": worst(judges),
                "bar": verdict(**worst(judges)),
                "choosing": worst({j: s for j, s in judges.items() if j in CHOOSING}),
                "judging": worst({j: s for j, s in judges.items() if j not in CHOOSING}),
            }
        )
    return sorted(rows, key=lambda row: float(row["worst"]["ratio"]))


def chosen_from(
    found: Mapping[str, Mapping[str, Summary]], candidates: Mapping[str, object]
) -> list[dict[str, Any]]:
    """Levels by the choosing half alone, the smallest payloads last, and the one it chooses.

    That is the smallest whose divergence, with what 95 % add, is within the bar.
    """
    names = {f"{level.early}/{level.late}": serde_of(name) for name, level in LEVELS.items()}
    names |= {name: name for name in candidates}
    rows: list[dict[str, Any]] = []
    for title, name in names.items():
        half = {judge: row[name] for judge, row in found.items() if judge in CHOOSING}
        rows.append({"level": title, "worst": worst(half), "chosen": False})
    rows.sort(key=lambda row: float(row["worst"]["ratio"]))
    for row in reversed(rows):
        if verdict(**row["worst"]) == KEPT:
            row["chosen"] = True
            break
    return rows


def serde_of(level: str) -> str:
    """The serde's name of one of ``LEVELS``."""
    return DEFAULT if level == "default" else f"{DEFAULT}-{level}"


def worst(judges: Mapping[str, Summary]) -> dict[str, Any]:
    """The judge with the greatest divergence; its interval holds 95 of 100, over its cases."""
    name = max(judges, key=lambda judge: judges[judge].kl)
    return {
        "judge": name,
        "kl": judges[name].kl,
        "kl_95": _NORMAL * judges[name].kl_error,
        "agreement": min(summary.agreement for summary in judges.values()),
        "ratio": min(summary.ratio for summary in judges.values()),
    }


if __name__ == "__main__":
    sys.exit(main())
