"""``python -m benchmarks``: every path beside its physical limit, as a table and as JSON."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import torch
from rich.console import Console

from benchmarks.calls.again import again
from benchmarks.calls.crowd import crowd
from benchmarks.calls.keys import keys
from benchmarks.calls.layers import layers
from benchmarks.calls.lookup import lookup
from benchmarks.calls.memory import memory
from benchmarks.calls.pages import pages
from benchmarks.calls.segments import segments
from benchmarks.rig.machine import NoRoom, check_room, describe, load, versions
from benchmarks.rig.measure import Comparison, Result, WrongResult, compare
from benchmarks.rig.report import FORMAT, RunJson, table, to_json
from benchmarks.rig.scale import FULL, QUICK, Scale
from benchmarks.tiers.direct import direct
from benchmarks.tiers.disk import disk
from hexkv.ports import PoolExhausted

HERE = Path(__file__).resolve().parent

Suite = Callable[[Scale, Path], Generator[Comparison, None, None]]

SUITES: dict[str, Suite] = {
    "keys": lambda scale, _: keys(scale),
    "lookup": lambda scale, _: lookup(scale),
    "again": lambda scale, _: again(scale),
    "segments": lambda scale, _: segments(scale),
    "memory": lambda scale, _: memory(scale),
    "pages": lambda scale, _: pages(scale),
    "disk": disk,
    "direct": direct,
    "layers": layers,
    "crowd": crowd,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what *arguments* ask for. The exit code: 3 if a goal was missed, 1 if a path failed."""
    asked = _parse(arguments)
    console = Console()
    scale = QUICK if asked.quick else FULL
    if asked.rounds is not None:
        scale = replace(scale, rounds=asked.rounds)
    now = datetime.now(UTC)
    output = asked.output or HERE / "results" / f"{now:%Y-%m-%dT%H%M%SZ}.json"
    # Copies with several threads compete with the engine that is served; one is comparable.
    torch.set_num_threads(1)
    # So that the files are removed, too, when the run is ended.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    asked.dir.mkdir(parents=True, exist_ok=True)
    try:
        with tempfile.TemporaryDirectory(prefix="benchmarks-", dir=asked.dir) as scratch:
            folder = Path(scratch)
            machine = describe(folder)
            console.print(_heading(machine), highlight=False)
            results = _run(asked.only or list(SUITES), scale, folder, console)
    except (NoRoom, PoolExhausted, WrongResult) as error:
        print(f"benchmarks: {error}", file=sys.stderr)
        return 1
    run: RunJson = {
        "format": FORMAT,
        "date": now.isoformat(timespec="seconds"),
        "quick": asked.quick,
        "rounds": scale.rounds,
        "torch_threads": torch.get_num_threads(),
        "machine": machine | {"load_after": load()},
        "versions": versions(),
        "results": [to_json(result) for result in results],
    }
    output.write_text(json.dumps(run, indent=1) + "\n")
    console.print(table(results))
    console.print(f"written: {output}", highlight=False, soft_wrap=True)
    short = [result for result in results if result.reached is False]
    for result in short:
        comparison, goal = result.comparison, result.comparison.goal
        console.print(
            f"short of its goal: {comparison.name}, beside {comparison.limit_name}:"
            f" {goal.kind} {result.ratio.median:.2f}, wanted {goal.bound:g}",
            highlight=False,
            soft_wrap=True,
        )
    # Results of tiny sizes mean nothing for the goals.
    return 3 if short and not asked.quick else 0


def _run(names: Sequence[str], scale: Scale, folder: Path, console: Console) -> list[Result]:
    if {"disk", "direct", "layers"} & set(names):
        # The files of both sides, and as much again for other writers.
        check_room(folder, 4 * scale.disk_chunks * scale.layout.chunk_bytes(scale.chunk))
    results = []
    with console.status("measuring") as status:
        for name in names:
            with closing(SUITES[name](scale, folder)) as suite:
                for comparison in suite:
                    status.update(f"measuring {comparison.name}")
                    results.append(compare(comparison, scale.rounds, turn=scale.turn))
    return results


def _heading(machine: dict[str, object]) -> str:
    return (
        f"{machine['processor']}, {machine['cores']} cores, load {machine['load_before']}; "
        f"{machine['file_system']}; torch copies with one thread"
    )


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="tiny sizes: only to see it work")
    parser.add_argument("--rounds", type=_rounds, help="turns that each side takes")
    parser.add_argument("--only", nargs="+", choices=list(SUITES), help="some of the benchmarks")
    parser.add_argument(
        "--dir",
        type=Path,
        default=HERE.parent / "build",
        help="where files are written, for a while",
    )
    parser.add_argument("--output", type=Path, help="the JSON, in place of one in results/")
    return parser.parse_args(arguments)


def _rounds(text: str) -> int:
    rounds = int(text)
    if rounds < 2:
        raise argparse.ArgumentTypeError("a spread needs at least two rounds")
    return rounds


if __name__ == "__main__":
    sys.exit(main())
