"""``python -m benchmarks.quality.held_out MODEL ..``: recall models by which nothing was tuned.

Each was trained by ``python -m training recall MODEL --seed ..``, with weights, lists and a
vocabulary of its own, and is asked what the model that comes along is asked. What counts is the
worst of them. Needs the training scripts: ``PYTHONPATH=adapters/hf``.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from math import sqrt
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaForCausalLM

from benchmarks.machine import describe, versions
from benchmarks.quality.__main__ import BARS, serdes
from benchmarks.quality.cases import questions
from benchmarks.quality.measure import RAW, Summary, measure
from benchmarks.quality.page import HELD_OUT, HELD_OUT_TABLE, PAGE, filled, held_out_table
from training.recall import Vocabulary

FEWEST = 3
"""Seeds, below which nothing can be said about others."""

_NORMAL = 1.96
_STUDENT = {2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262}
"""The 97.5th percentile of Student's t, by degrees of freedom."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.quality.held_out", description=__doc__)
    parser.add_argument("models", type=Path, nargs="+", help="folders that training wrote")
    parser.add_argument("--lists", type=int, default=64, help="lists of facts to recall")
    parser.add_argument("--output", type=Path, default=HELD_OUT)
    parser.add_argument("--page", type=Path, default=PAGE, help="where the table goes")
    asked = parser.parse_args(arguments)
    recipes = [json.loads((folder / "recipe.json").read_text()) for folder in asked.models]
    if len({recipe["seed"] for recipe in recipes}) < FEWEST:
        parser.error(f"models of {FEWEST} seeds, or more")
    torch.set_num_threads(1)
    offered = serdes()
    found = []
    for folder, recipe in zip(asked.models, recipes, strict=True):
        model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
        model.train(False)
        lists = questions(asked.lists, Vocabulary(**recipe["vocabulary"]), recipe["seed"] + 2)
        found.append(measure(model, lists, offered))
    rows = summarised(found)
    default = next(row for row in rows if row["serde"] == "cachegen")
    bar, _ = BARS["recall_kl"]
    run = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": describe(HELD_OUT.parent),
        "versions": versions(),
        "models": recipes,
        "lists": asked.lists,
        "bar": {
            "wanted": f"at most {bar}",
            "is": default["worst"]["kl"],
            "state": "reached" if default["worst"]["kl"] <= bar else "missed",
        },
        "rows": rows,
    }
    asked.output.write_text(json.dumps(run, indent=2) + "\n")
    asked.page.write_text(filled(asked.page.read_text(), HELD_OUT_TABLE, held_out_table(run)))
    print(held_out_table(run))
    print(f"cachegen, worst seed: {run['bar']}")
    return 0


def summarised(found: Sequence[Mapping[str, Summary]]) -> list[dict[str, Any]]:
    """A row for each serde, the smallest payloads last: every model, the worst, and the mean.

    Intervals hold 95 of 100: of the worst over its lists, of the mean over the models.
    """
    rows = []
    for name in found[0]:
        if name == RAW:
            continue
        seeds = [summaries[name] for summaries in found]
        worst = max(seeds, key=lambda summary: summary.kl)
        spread = statistics.stdev(summary.kl for summary in seeds)
        student = _STUDENT.get(len(seeds) - 1, _NORMAL)
        rows.append(
            {
                "serde": name,
                "seeds": [asdict(summary) for summary in seeds],
                "worst": {
                    "kl": worst.kl,
                    "kl_95": _NORMAL * worst.kl_error,
                    "agreement": min(summary.agreement for summary in seeds),
                    "ratio": min(summary.ratio for summary in seeds),
                },
                "mean": {
                    "kl": statistics.fmean(summary.kl for summary in seeds),
                    "kl_95": student * spread / sqrt(len(seeds)),
                },
            }
        )
    return sorted(rows, key=lambda row: float(row["worst"]["ratio"]))


if __name__ == "__main__":
    sys.exit(main())
