"""Checks the kernels on a GPU, measures them beside the hardware, prints a table and JSON.

``python -m benchmarks.gpu --output benchmarks/results/gpu.json``. Exit code 0: every goal is
reached, or there is no GPU, which is said in a line; 1: a goal is missed; 2: a check failed,
and nothing was measured.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import platform
import subprocess
import sys
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parents[2]
CHECKS = ["kernels/tests/interpreted", "adapters/cuda/tests"]


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.gpu", description=__doc__)
    parser.add_argument("--output", type=Path, help="where the JSON goes")
    parser.add_argument("--device", default="cuda:0", help="as torch names it")
    parser.add_argument("--tiny", action="store_true", help="small sizes, to see whether it runs")
    parser.add_argument("--unchecked", action="store_true", help="leave the tests out")
    chosen = parser.parse_args()
    device = torch.device(chosen.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        print("there is no CUDA device on this machine: nothing is measured")
        return 0
    if not chosen.unchecked:
        tests = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *CHECKS]
        if subprocess.run(tests, cwd=ROOT, check=False).returncode:
            print("the kernels do not do what the reference does: nothing is measured")
            return 2

    from benchmarks.gpu.rates import Size, rates

    size = Size(2, 2, 16, 4, 8, 2, 1) if chosen.tiny else Size()
    try:
        found = list(rates(device, size))
    except AssertionError as error:
        print(f"a path gave other bytes than it should: {error}")
        return 2
    drawn = Table("path", "limit", "GB/s", "limit GB/s", "share", "goal", title=_name(device))
    for rate in found:
        speeds = (f"{rate.gb_per_second:.1f}", f"{rate.limit_gb_per_second:.1f}")
        drawn.add_row(rate.name, rate.limit, *speeds, f"{rate.share:.2f}", f"{rate.goal or ''}")
    Console().print(drawn)
    if chosen.output:
        told = {
            "format": 1,
            "date": dt.datetime.now(dt.UTC).date().isoformat(),
            "device": _name(device),
            "versions": _versions(),
            "size": asdict(size),
            "results": [asdict(rate) | {"share": round(rate.share, 3)} for rate in found],
        }
        chosen.output.write_text(json.dumps(told, indent=1) + "\n")
    return int(any(rate.share < rate.goal for rate in found))


def _name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor()


def _versions() -> dict[str, str]:
    packages = ("hexkv", "hexkv-cuda", "hexkv-kernels", "numpy", "torch", "triton")
    told = {"python": platform.python_version()} | {name: version(name) for name in packages}
    return told | {"cuda": str(torch.version.cuda)}


if __name__ == "__main__":
    sys.exit(main())
