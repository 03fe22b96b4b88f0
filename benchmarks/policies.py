"""``python -m benchmarks.policies TRACE``: every policy on a recorded trace and on made-up ones.

Writes ``results/policies.json``. Hit rates do not depend on the machine; seconds, which are of the
processor, do, and on its load.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from hexkv.core.policies import POLICIES
from hexkv.plan.replay import optimal, replay, unlimited
from hexkv.plan.trace import TracedPrompt, read_mooncake
from hexkv.plan.workloads import WORKLOADS, footprint, synthetic

SIZES = (1_000, 3_000, 10_000, 30_000, 50_000)
SHARES = (0.02, 0.08, 0.25, 0.6)
REQUESTS = 5_000
SEED = 1


def judge(requests: Sequence[TracedPrompt], blocks: int) -> dict[str, object]:
    """Token hit rates at one size, and the processor time that each replay took."""
    rates, seconds = {}, {}
    for name, policy in POLICIES.items():
        start = time.process_time()
        rates[name] = round(replay(requests, policy, blocks).hit_rate, 5)
        seconds[name] = round(time.process_time() - start, 2)
    best = round(optimal(requests, blocks).hit_rate, 5)
    return {"blocks": blocks, "optimal": best, "hit_rates": rates, "seconds": seconds}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.policies", description=__doc__)
    parser.add_argument("trace", type=Path, help="in Mooncake's format")
    default = Path(__file__).resolve().parent / "results" / "policies.json"
    parser.add_argument("--out", type=Path, default=default)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="in blocks")
    parser.add_argument("--requests", type=int, default=REQUESTS, help="of each made-up trace")
    chosen = parser.parse_args(arguments)
    with chosen.trace.open("rb") as lines:
        recorded = list(read_mooncake(lines))
    loads = [os.getloadavg()[0]]
    traces: dict[str, object] = {}
    named = [(chosen.trace.name, recorded, chosen.sizes)]
    for name in WORKLOADS:
        made = synthetic(name, chosen.requests, SEED)
        named.append((name, made, [int(footprint(made) * share) for share in SHARES]))
    for name, requests, sizes in named:
        results = []
        for blocks in sizes:
            results.append(judge(requests, blocks))
            loads.append(os.getloadavg()[0])
            print(name, json.dumps(results[-1]), file=sys.stderr)
        traces[name] = {
            "requests": len(requests),
            "unlimited": round(unlimited(requests).hit_rate, 5),
            "sizes": results,
        }
    report = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": {"python": platform.python_version(), "hexkv": version("hexkv")},
        "load": [round(min(loads), 1), round(max(loads), 1)],
        "seed": SEED,
        "traces": traces,
    }
    chosen.out.write_text(json.dumps(report, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
