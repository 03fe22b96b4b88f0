"""``python -m benchmarks.checkouts BEFORE``: every path of a whole engine beside an older commit's.

Both checkouts have an engine of the same settings open, each in a process of its own environment,
and take turns at one operation at a time: older, newer, newer, older. A ratio is that of two
neighbours; a moment in which the machine is slow slows both. The calls to an engine here have
had the same names since before its core was divided into rooms.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
TURN = 0.02
"""Seconds of a turn at least: shorter operations are repeated."""

SIZES = {"32 MiB": (32, 256, 12), "256 KiB": (4, 16, 512), "4 KiB": (0, 256, 512)}
"""Layers, tokens of a chunk, chunks; none stand for KV of which nothing but the names matters."""

MOVING = ("store", "store by layers", "retrieve", "retrieve by layers", "retrieve one chunk")
NAMING = ("lookup", "lookup of a miss", "retrieve of a miss", "store again")
TIERS = {
    "memory": (*MOVING, *NAMING),
    "memory, paged": (*MOVING, *NAMING),
    "disk": (*MOVING, "lookup"),
    "disk, direct": (*MOVING, "lookup"),
    "redis, TCP": (*MOVING, "lookup"),
    "redis, Unix socket": (*MOVING, "lookup"),
    "LM server": (*MOVING, "lookup"),
}
NAMES = (*NAMING, "keys", "lookup and pin", "lookup of int64", "lookup of a list")


def cases() -> Iterator[tuple[str, str, str]]:
    """Tier, size of a chunk, operation."""
    for size in ("32 MiB", "256 KiB"):
        yield from ((tier, size, op) for tier, ops in TIERS.items() for op in ops)
    yield from (("memory", "4 KiB", op) for op in NAMES)


def serve() -> None:
    """One side: obeys lines of JSON until they end. Runs the hexkv of its own environment."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what servers print is no answer
    with ExitStack() as opened:
        run: Callable[[str], object] = str
        for line in sys.stdin:
            asked = json.loads(line)
            if "tier" in asked:
                opened.close()
                run = _open(opened, asked["tier"], asked["size"])
                answer = None
            else:
                answer = _timed(run, asked["op"], asked["times"])
            print(json.dumps(answer), file=answers)


def _timed(run: Callable[[str], object], op: str, times: int) -> tuple[float, float]:
    wall = cpu = 0.0
    for _ in range(times):
        if op.startswith("store") and op != "store again":
            run("clear")
        used, start = process_time(), perf_counter()
        run(op)
        wall += perf_counter() - start
        cpu += process_time() - used
    return wall / times, cpu / times


def _open(opened: ExitStack, tier: str, size: str) -> Callable[[str], object]:
    import numpy as np
    import torch

    from benchmarks.rig.devices import contiguous, paged
    from benchmarks.rig.engines import engine, prompt
    from benchmarks.rig.scale import THIN
    from hexkv.ports import DType, KVLayout

    torch.set_num_threads(1)
    layers, chunk, count = SIZES[size]
    layout = THIN
    if layers:
        layout = KVLayout.attention(DType.BFLOAT16, layers=layers, heads=8, key_width=128)
    folder = Path(opened.enter_context(tempfile.TemporaryDirectory(dir=ROOT / "build")))
    settings, empty = _tier(opened, tier, folder)
    blocks = count * 3 // 2 + 4 if tier.startswith("memory") else count * 4
    cache: Any = opened.enter_context(engine(layout, chunk, blocks, settings))
    tokens = prompt(chunk * count)
    form = paged if tier.endswith("paged") else contiguous
    window: Any = form(layout, len(tokens), chunk).window
    small: Any = form(layout, chunk, chunk).window
    numbers = itertools.count(1)
    other, wide, listed = tokens[::-1].copy(), tokens.astype(np.int64), tokens.tolist()
    name = cache.names if hasattr(cache, "names") else cache.chunk_keys

    def clear() -> int:
        """The next store is of a prompt that nothing knows."""
        cache.clear()
        empty()
        tokens[0] = next(numbers)
        return 0

    def store_by_layers() -> int:
        with cache.store_layers(tokens, window) as storing:
            for layer in range(layout.layers):
                storing.layer_done(layer)
            return int(storing.result().stored_tokens)

    def retrieve_by_layers() -> int:
        with cache.retrieve_layers(tokens, window) as loading:
            for _ in loading:
                pass
            return int(loading.result().loaded_tokens)

    def new() -> Any:
        """A prompt that no call had before: names of the one before are remembered."""
        other[0] = next(numbers)
        return other

    def pin() -> int:
        found = int(cache.lookup(tokens, pin="benchmark").hit_tokens)
        return found if cache.unpin("benchmark") else -1

    ops: dict[str, tuple[Callable[[], object], object]] = {
        "clear": (clear, 0),
        "store": (lambda: cache.store(tokens, window).stored_tokens, len(tokens)),
        "store by layers": (store_by_layers, len(tokens)),
        "store again": (lambda: cache.store(tokens, window).dropped_tokens, 0),
        "retrieve": (lambda: cache.retrieve(tokens, window).loaded_tokens, len(tokens)),
        "retrieve by layers": (retrieve_by_layers, len(tokens)),
        "retrieve one chunk": (lambda: cache.retrieve(tokens[:chunk], small).loaded_tokens, chunk),
        "retrieve of a miss": (lambda: cache.retrieve(new(), window).hit_tokens, 0),
        "keys": (lambda: len(name(new())), count),
        "lookup": (lambda: cache.lookup(tokens).hit_tokens, len(tokens)),
        "lookup and pin": (pin, len(tokens)),
        "lookup of int64": (lambda: cache.lookup(wide).hit_tokens, len(tokens)),
        "lookup of a list": (lambda: cache.lookup(listed).hit_tokens, len(tokens)),
        "lookup of a miss": (lambda: cache.lookup(new()).hit_tokens, 0),
    }

    def run(op: str) -> None:
        call, wanted = ops[op]
        if (got := call()) != wanted:
            raise SystemExit(f"{tier}: {op} gave {got}, not {wanted}")

    run("store")
    return run


def _tier(opened: ExitStack, tier: str, folder: Path) -> tuple[Any, Callable[[], object]]:
    """The tier's settings, and what empties its server where the older engine does not."""
    from hexkv.plugins.configuration.schema import TierSettings
    from servers.lm_servers import Served
    from servers.redis_servers import RedisServer

    empty: Callable[[], object] = int
    own: dict[str, Any] = {}
    if tier.startswith("disk"):
        direct = "on" if tier.endswith("direct") else "off"
        store, own = "disk", {"root": f"{folder}/tier", "direct": direct}
    elif tier.startswith("redis"):
        socket = f"{folder}/socket"
        server = opened.enter_context(RedisServer(str(folder), "--unixsocket", socket))
        empty = opened.enter_context(server.admin()).flushall
        store, own = "redis", {"url": server.url if tier.endswith("TCP") else f"unix://{socket}"}
    elif tier == "LM server":
        limits = ("--budget", "1GiB", "--transit", "256MiB", "--largest", "80MiB")
        served = Served(*limits, "--patience", "30")
        opened.callback(served.process.kill)
        store, own = "hexkv", {"address": f"hexkv://{served.address}"}
    else:
        store = "memory"
    return TierSettings(store=store, settings=own), empty


class Side:
    """A checkout's process."""

    def __init__(self, checkout: Path) -> None:
        (ROOT / "build").mkdir(exist_ok=True)
        paths = os.pathsep.join(map(str, (ROOT, ROOT / "tests" / "lib")))
        self._process = subprocess.Popen(
            [checkout / ".venv" / "bin" / "python", "-P", __file__, "--serve"],
            cwd=checkout,
            env=os.environ | {"PYTHONPATH": paths},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, **asked: object) -> Any:
        """What it answers."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        print(json.dumps(asked), file=process.stdin, flush=True)
        if not (line := process.stdout.readline()):
            raise SystemExit(f"{process.args!r} ended at {asked}")
        return json.loads(line)

    def close(self) -> None:
        """End it."""
        self._process.communicate(timeout=60)


def compared(sides: Sequence[Side], op: str, rounds: int) -> dict[str, list[tuple[float, float]]]:
    """Seconds and CPU seconds of an operation, by side, one of each a round."""
    first = max(side.ask(op=op, times=1)[0] for side in sides)
    times = max(1, int(TURN / first))
    taken: dict[str, list[tuple[float, float]]] = {"before": [], "after": []}
    for number in range(rounds):
        pairs = list(zip(taken, sides, strict=True))
        for name, side in pairs if number % 2 == 0 else reversed(pairs):
            taken[name].append(tuple(side.ask(op=op, times=times)))
    return taken


def main() -> int:
    """Measure, print, and add the results to a file of lines of JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.checkouts", description=__doc__)
    parser.add_argument("before", type=Path, help="a checkout with an environment in .venv")
    parser.add_argument("--rounds", type=int, default=10, help="two at least")
    parser.add_argument("--size", nargs="*", default=list(SIZES), choices=SIZES)
    parser.add_argument("--tier", nargs="*", default=list(TIERS), choices=TIERS)
    parser.add_argument("--op", nargs="*", default=[*MOVING, *NAMES], metavar="OPERATION")
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "checkouts.jsonl")
    asked = parser.parse_args()
    sides = [Side(asked.before.resolve()), Side(ROOT)]
    place = None
    try:
        for tier, size, op in cases():
            if tier not in asked.tier or size not in asked.size or op not in asked.op:
                continue
            if place != (place := (tier, size)):
                for side in sides:
                    side.ask(tier=tier, size=size)
            taken = compared(sides, op, asked.rounds)
            with asked.output.open("a") as file:
                print(json.dumps({"tier": tier, "size": size, "op": op} | taken), file=file)
    finally:
        for side in sides:
            side.close()
    show(asked.output)
    return 0


def show(path: Path) -> None:
    """A table of all that *path* has: of each path the median ratio, with its quartiles."""
    from rich.console import Console
    from rich.table import Table

    from benchmarks.rig.measure import Spread

    rows: dict[tuple[str, str, str], list[list[Any]]] = {}
    for line in path.read_text().splitlines():
        one = json.loads(line)
        found = rows.setdefault((one["tier"], one["size"], one["op"]), [[], []])
        found[0] += one["before"]
        found[1] += one["after"]
    table = Table("path", "turns", "before, ms", "after, ms", "speed", "of CPU")
    for (tier, size, op), (before, after) in rows.items():
        speed, cpu = (
            Spread.of([b[at] / a[at] for b, a in zip(before, after, strict=True)]) for at in (0, 1)
        )
        table.add_row(
            f"{tier}, {size}: {op}",
            str(len(before)),
            *(f"{Spread.of([x[0] for x in side]).median * 1e3:.3f}" for side in (before, after)),
            f"{speed.median:.2f} ({speed.lower:.2f} to {speed.upper:.2f})",
            f"{cpu.median:.2f}",
        )
    Console(width=110).print(table)


if __name__ == "__main__":
    if sys.argv[1:] == ["--serve"]:
        serve()
    else:
        sys.exit(main())
