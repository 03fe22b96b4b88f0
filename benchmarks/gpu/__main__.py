"""Everything that a machine with a GPU can show, in ten minutes: ``python3 -m benchmarks.gpu``.

Needs Python, a CUDA build of torch and Triton; see :mod:`benchmarks.gpu.bare` for the rest. Each
part is a process with a share of the time: one that fails or is cut short is reported, and the
others go on. The JSON is written anew after each. Without a GPU, parts run small and interpreted:
that shows that they run, and nothing is measured.

Exit code 0: no part failed; missed goals are reported and no failure. 1: a part failed or was
cut short.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.gpu.bare import ROOT, environment, missing
from benchmarks.gpu.parts import PARTS, TOTAL, Part, chosen

_PROBE = "import torch; print(torch.cuda.is_available(), torch.__version__, torch.version.cuda)"
_GRACE = 5.0
"""Seconds from asking a part to end until it is ended."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.gpu", description=__doc__)
    parser.add_argument("--output", type=Path, help="where the JSON goes")
    parser.add_argument("--device", help="as torch names it; cuda:0, or cpu where there is none")
    parser.add_argument("--part", nargs="*", default=[], choices=[part.name for part in PARTS])
    parser.add_argument("--total", type=float, default=TOTAL, help="seconds of all parts together")
    parser.add_argument("--wheels", type=Path, default=ROOT / ".wheels")
    parser.add_argument("--site", type=Path, default=ROOT / ".gpu_site", help="is filled")
    given = parser.parse_args()
    began = time.monotonic()
    around = environment(given.site, given.wheels)
    there, torch = _probe(around)
    device = given.device or ("cuda:0" if there else "cpu")
    gpu = there and device.startswith("cuda")
    if not gpu:
        print(f"there is no CUDA device on this machine (torch {torch}): nothing is measured")
        print("what needs none runs small, kernels interpreted")
    told: dict[str, Any] = {
        "format": 3,
        "date": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "measured": gpu,
        "torch": torch,
        "parts": [],
    }
    for part in chosen(given.part, gpu=gpu):
        left = given.total - (time.monotonic() - began)
        found = _run(part, device, around, given.site, left, gpu=gpu)
        told["parts"].append(found)
        _show(part, found, gpu=gpu)
        if given.output:
            _write(given.output, told)
    states = [part["state"] for part in told["parts"]]
    seconds = time.monotonic() - began
    print(f"{len(states)} parts in {seconds:.0f} s: ", end="")
    print(", ".join(f"{states.count(state)} {state}" for state in sorted(set(states))))
    if gpu:
        goals = [one.get("reached") for part in told["parts"] for one in part["results"]]
        print(f"goals: {goals.count(True)} reached, {goals.count(False)} missed")
    return int(any(state in ("failed", "cut short") for state in states))


def _probe(around: dict[str, str]) -> tuple[bool, str]:
    """True if torch sees a GPU, and the version of torch."""
    asked = subprocess.run(
        [sys.executable, "-c", _PROBE], env=around, capture_output=True, text=True, check=False
    )
    if asked.returncode:
        sys.exit(f"torch cannot be imported: {asked.stderr.strip().splitlines()[-1:]}")
    there, *version = asked.stdout.split()
    return there == "True", ", CUDA ".join(version)


def _run(
    part: Part, device: str, around: dict[str, str], site: Path, left: float, *, gpu: bool
) -> dict[str, Any]:
    found: dict[str, Any] = {"name": part.name, "title": part.title, "results": []}
    lacking = missing((*part.needs, *(("triton",) if part.triton else ())), site)
    if lacking:
        return {**found, "state": "skipped", "why": f"{', '.join(lacking)} is not here"}
    if left < 1:
        return {**found, "state": "skipped", "why": "the time of all parts is over"}
    # Without a GPU nothing is measured, and a busy machine may take as long as it takes.
    limit = min(float(part.seconds), left) if gpu else left
    mine = dict(around) if gpu or not part.triton else {**around, "TRITON_INTERPRET": "1"}
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        lines, output = Path(folder, "lines"), Path(folder, "output")
        command = [sys.executable, *part.command(device, str(lines), here=gpu)]
        with output.open("wb") as file:
            child = subprocess.Popen(
                command, cwd=ROOT, env=mine, stdout=file, stderr=file, start_new_session=True
            )
            ended = _wait(child, limit)
        said = output.read_text(errors="replace")
        if lines.exists():
            found["results"] = [json.loads(line) for line in lines.read_text().splitlines()]
    found["seconds"] = round(time.monotonic() - began, 1)
    if part.tests:
        found["results"].append({"name": "".join(said.strip().splitlines()[-1:]).strip("= ")})
    if part.script:
        found["results"].append({"name": f"{len(said.splitlines())} kernels"})
    found["state"] = "cut short" if not ended else "failed" if child.returncode else "passed"
    if found["state"] != "passed":
        found["why"] = said
    return found


def _wait(child: subprocess.Popen[bytes], seconds: float) -> bool:
    """True if *child* ended by itself within *seconds*. Its session has ended afterwards."""
    ended = False
    try:
        ended = _ended(child, seconds)
        if not ended:
            os.killpg(child.pid, signal.SIGTERM)  # noqa: TID251 - it is not reaped
            _ended(child, _GRACE)
    finally:  # after an interrupt, too
        os.killpg(child.pid, signal.SIGKILL)  # noqa: TID251 - it is not reaped
        child.wait()
    return ended


def _ended(child: subprocess.Popen[bytes], seconds: float) -> bool:
    """True if *child* ends within *seconds*. It is not reaped, and so keeps its number."""
    over = time.monotonic() + seconds
    while os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        if time.monotonic() > over:
            return False
        time.sleep(0.05)
    return True


def _show(part: Part, found: dict[str, Any], *, gpu: bool) -> None:
    print(f"\n{part.name}: {part.title}: {found['state']}", end="")
    print(f" in {found['seconds']} s" if "seconds" in found else "")
    if "why" in found:
        print("  " + found["why"].replace("\n", "\n  "))
    for result in found["results"]:
        if "gb_per_second" not in result:
            print(f"  {result['name']}" + (f": {result['value']}" if "value" in result else ""))
        elif gpu:
            goal = f"  goal {result['goal']}" if result["goal"] else ""
            goal += {True: " reached", False: " MISSED", None: ""}[result["reached"]]
            print(
                f"  {result['name']:58} {result['gb_per_second']:8.2f} GB/s, {result['share']:6.3f}"
                f" ({result['low']:.3f}-{result['high']:.3f}) of {result['limit']}{goal}"
            )
        else:
            print(f"  {result['name']}: right")
    sys.stdout.flush()


def _write(output: Path, told: dict[str, Any]) -> None:
    """All of it or the former content: a run may end at any time."""
    part = output.with_name(output.name + ".part")
    part.write_text(json.dumps(told, indent=1) + "\n")
    part.replace(output)


if __name__ == "__main__":
    sys.exit(main())
