"""``python -m benchmarks.quality.blending``: the tables of ``docs/blending.md``; minutes, one core.

Needs the training scripts: ``PYTHONPATH=adapters/hf``.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from benchmarks.quality.blended import Outcome, measure, settings
from benchmarks.quality.blending_page import (
    PAGE,
    REPORT,
    RESULT,
    TABLE,
    against_lmcache,
    report,
    tables,
)
from benchmarks.quality.page import filled, recipe_of
from benchmarks.quality.segments import ALIASES, Segmented, lists, pieces_of
from benchmarks.rig.machine import describe, versions
from hexkv.adapters.hf.trained import Name, trained
from training.corpus import standard_library

CHECK_LAYERS: Mapping[Name, Sequence[int]] = {"text": (0, 1, 2), "alias": (0, 1, 2, 3)}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.quality.blending", description=__doc__)
    parser.add_argument("--texts", type=int, default=24, help="neighbourhoods in held-out text")
    parser.add_argument("--lists", type=int, default=48, help="lists of facts and aliases")
    parser.add_argument("--output", type=Path, default=RESULT)
    parser.add_argument("--page", type=Path, default=PAGE, help="where the tables go")
    parser.add_argument("--report", type=Path, default=REPORT, help="where the drawings go")
    asked = parser.parse_args(arguments)
    torch.set_num_threads(1)
    corpus = standard_library()
    cases: dict[Name, list[Segmented]] = {
        "text": pieces_of(corpus.held_out, asked.texts),
        "alias": lists(asked.lists),
    }
    models = {}
    for name, prompts in cases.items():
        found = measure(trained(name), prompts, list(settings(CHECK_LAYERS[name])))
        rows = [_row(outcome) for outcome in found]
        models[name] = {
            "recipe": recipe_of(name),
            "prompts": len(prompts),
            "rows": rows,
            "against_lmcache": against_lmcache(rows),
        }
    run = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": describe(RESULT.parent),
        "versions": versions() | {"transformers": version("transformers")},
        "held_out": {"corpus_sha256": corpus.digest},
        "aliases": ALIASES,
        "models": models,
    }
    asked.output.write_text(json.dumps(run, indent=2) + "\n")
    asked.page.write_text(filled(asked.page.read_text(), TABLE, tables(run)))
    asked.report.parent.mkdir(parents=True, exist_ok=True)
    asked.report.write_text(report(run))
    print(tables(run))
    print(f"written: {asked.output}, {asked.page}, {asked.report}")
    return 0


def _row(outcome: Outcome) -> Mapping[str, Any]:
    fields = asdict(outcome)
    setting: dict[str, Any] = fields.pop("setting")
    return setting | fields


if __name__ == "__main__":
    sys.exit(main())
