"""``python -m benchmarks.quality``: the table of ``docs/quality.md``; minutes, one core.

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

from benchmarks.quality.cases import PREFIX, questions, texts
from benchmarks.quality.page import PAGE, RESULT, SHIPPED_TABLE, filled, recipe_of, table
from benchmarks.rig.machine import describe, versions
from hexkv.adapters.hf.quality.measure import RAW, Summary, measure
from hexkv.adapters.hf.trained import trained
from hexkv.plugins.clock import SystemClock
from hexkv.plugins.discovery.discovery import discover
from hexkv.plugins.spec import OpenContext
from hexkv.ports import Serde
from training.corpus import standard_library

BARS = {
    "ratio": (3.3, "at least"),
    "perplexity_change": (0.005, "at most"),
    "recall_kl": (0.0025, "at most"),
}
"""What ``cachegen``, the level that is taken where none is asked for, should keep."""


def serdes() -> dict[str, Serde]:
    """Every serde that is installed, with its default settings, by name."""
    registry, context = discover(), OpenContext(SystemClock())
    return {name: registry.open("serde", name, {}, context) for name in registry.names("serde")}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.quality", description=__doc__)
    parser.add_argument("--texts", type=int, default=64, help="pieces of held-out text")
    parser.add_argument("--lists", type=int, default=64, help="lists of facts to recall")
    parser.add_argument("--output", type=Path, default=RESULT)
    parser.add_argument("--page", type=Path, default=PAGE, help="where the table goes")
    asked = parser.parse_args(arguments)
    torch.set_num_threads(1)
    corpus = standard_library()
    offered = serdes()
    on_text = measure(trained("text"), texts(corpus.held_out, asked.texts), offered)
    on_recall = measure(trained("recall"), questions(asked.lists), offered)
    order = sorted(on_text, key=lambda name: (name != RAW, on_text[name].ratio))
    run = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": describe(RESULT.parent),
        "versions": versions() | {name: version(name) for name in ("numba", "transformers")},
        "models": {name: recipe_of(name) for name in ("text", "recall")},
        "held_out": {"corpus_sha256": corpus.digest, "texts": asked.texts, "prefix": PREFIX},
        "lists": asked.lists,
        "bars": bars(on_text["cachegen"], on_recall["cachegen"]),
        "rows": [
            {"serde": name, "text": asdict(on_text[name]), "recall": asdict(on_recall[name])}
            for name in order
        ],
    }
    asked.output.write_text(json.dumps(run, indent=2) + "\n")
    asked.page.write_text(filled(asked.page.read_text(), SHIPPED_TABLE, table(run)))
    print(table(run))
    for name, bar in run["bars"].items():
        print(f"{name}: {bar['is']:.5f}, {bar['wanted']}: {bar['state']}")
    print(f"written: {asked.output}, {asked.page}")
    return 0


def bars(on_text: Summary, on_recall: Summary) -> Mapping[str, Mapping[str, Any]]:
    """What the default level should keep, and what it does."""
    found = {
        "ratio": on_text.ratio,
        "perplexity_change": on_text.perplexity_change,
        "recall_kl": on_recall.kl,
    }
    said = {}
    for name, (bound, kind) in BARS.items():
        reached = found[name] >= bound if kind == "at least" else found[name] <= bound
        said[name] = {
            "wanted": f"{kind} {bound}",
            "is": found[name],
            "state": "reached" if reached else "missed",
        }
    return said


if __name__ == "__main__":
    sys.exit(main())
