"""One part of ``make gpu``, in a process of its own: ``python -m benchmarks.gpu.measure PART``.

Writes a line of JSON for each result as soon as it is there.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.timing import TINY, Rate, Size, Value

_PLACES = {
    "device": "about:facts",
    "copies": "copies:bulk",
    "layers": "copies:layers",
    "pieces": "copies:pieces",
    "coding": "coding:coding",
    "loading": "loading:loading",
    "engines": "engines:engines",
    "cache": "cache:engine",
    "tiers": "cache:tiers",
    "hf": "hf:generated",
    "ttft": "ttft:ttft",
}
"""Where each part is: imported alone, so that what one lacks stops no other."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.gpu.measure", description=__doc__)
    parser.add_argument("part", choices=_PLACES)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--lines", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=60.0, help="begin no measure after these")
    parser.add_argument("--tiny", action="store_true", help="small sizes, to see whether it runs")
    given = parser.parse_args()
    began = time.monotonic()
    module, name = _PLACES[given.part].split(":")
    part: Callable[[torch.device, Size], Iterator[Rate | Value]] = getattr(
        importlib.import_module(f"benchmarks.gpu.{module}"), name
    )
    with given.lines.open("a") as lines:
        for result in part(torch.device(given.device), TINY if given.tiny else Size()):
            lines.write(json.dumps(_told(asdict(result), judged=not given.tiny)) + "\n")
            lines.flush()
            if not given.tiny and time.monotonic() - began > 0.9 * given.seconds:
                print("the share of time is nearly over: what comes next is left out")
                return 3
    return 0


def _told(result: dict[str, Any], *, judged: bool) -> dict[str, Any]:
    if "share" in result:
        goal = result["goal"]
        result["reached"] = result["share"] >= goal if goal and judged else None
    return {name: round(at, 4) if isinstance(at, float) else at for name, at in result.items()}


if __name__ == "__main__":
    sys.exit(main())
