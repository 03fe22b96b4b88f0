"""``python -m benchmarks.fleet.node``: engines over a node beside engines with a pool of their own.

In turns, in one process, over the same windows: storing and retrieving 32 MiB chunks from memory,
with the CPU seconds of this process and of the node; one small chunk, and many; a lookup of a long
prompt.
Then two engines in processes of their own retrieve the same content, and what memory that takes
(PSS) is set beside the pool. Prints, and writes ``benchmarks/results/node.json``.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.calls.fixed import SMALL_CHUNKS, Null
from benchmarks.rig.devices import contiguous
from benchmarks.rig.engines import memory_engine, prompt
from benchmarks.rig.machine import describe
from benchmarks.rig.measure import must
from benchmarks.rig.nodes import Node, served
from benchmarks.rig.scale import FULL, QUICK, THIN, Scale
from hexkv.plugins.composition.compose import build
from hexkv.plugins.configuration.config import load
from hexkv.ports import KVLayout, Namespace, PrefixCache, frame_bytes

OUTPUT = Path(__file__).resolve().parents[1] / "results" / "node.json"


def over(node: Node, layout: KVLayout, chunk: int) -> PrefixCache:
    """An engine over a node."""
    wanted = {"node": str(node.socket), "chunk": {"size": chunk}}
    return build(load(environ={}, overrides=wanted), Namespace("benchmark", layout))


def turns(
    rounds: int,
    sides: Mapping[str, Callable[[], object]],
    before: Mapping[str, Callable[[], object]],
) -> dict[str, list[tuple[float, float]]]:
    """Seconds by the clock and of this process's CPU, for each side in each round."""
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
    names = list(sides)
    for number in range(rounds + 1):
        for name in names if number % 2 else reversed(names):
            before.get(name, lambda: None)()
            cpu, clock = time.process_time(), time.perf_counter()
            sides[name]()
            spent = time.perf_counter() - clock, time.process_time() - cpu
            if number:  # the first is for warming up
                taken[name].append(spent)
    return taken


def median(rows: list[tuple[float, float]], column: int) -> float:
    """The median of a column."""
    return statistics.median(row[column] for row in rows)


def moving(scale: Scale, folder: Path) -> Iterator[dict[str, Any]]:
    """Storing and retrieving, by clock and CPU."""
    chunks = scale.memory_chunks // 4 or 1
    frame = frame_bytes(scale.layout.chunk_bytes(scale.chunk))
    tokens = prompt(chunks * scale.chunk)
    device = contiguous(scale.layout, len(tokens), scale.chunk)
    size = chunks * scale.layout.chunk_bytes(scale.chunk)
    with (
        served(folder / "moving", (chunks * 3 // 2 + 4) * frame) as node,
        memory_engine(scale.layout, scale.chunk, chunks) as own,
        over(node, scale.layout, scale.chunk) as shared,
    ):
        engines: dict[str, PrefixCache] = {"own": own, "node": shared}

        def store(engine: PrefixCache) -> None:
            must(engine.store(tokens, device.window).stored_tokens == len(tokens), "store")

        def retrieve(engine: PrefixCache) -> None:
            must(engine.retrieve(tokens, device.window).hit_tokens == len(tokens), "retrieve")

        for what, call in (("store", store), ("retrieve", retrieve)):
            before, slept = node.cpu(), node.switches()
            taken = turns(
                scale.rounds,
                {name: partial(call, engine) for name, engine in engines.items()},
                {name: engine.clear for name, engine in engines.items()} if what == "store" else {},
            )
            spent = (node.cpu() - before) / (scale.rounds + 1)
            slept = node.switches() - slept
            ratios = [o[0] / n[0] for o, n in zip(taken["own"], taken["node"], strict=True)]
            yield {
                "what": what,
                "speed_of_own": round(statistics.median(ratios), 3),
                "own_GBps": round(size / median(taken["own"], 0) / 1e9, 2),
                "node_GBps": round(size / median(taken["node"], 0) / 1e9, 2),
                "own_cpu_s_per_GB": round(median(taken["own"], 1) / size * 1e9, 3),
                "node_cpu_s_per_GB": round(median(taken["node"], 1) / size * 1e9, 3),
                "nodes_own_cpu_s_per_GB": round(spent / size * 1e9, 3),
                "switches_of_the_node": round(slept / (scale.rounds + 1), 1),
            }


def small(scale: Scale, folder: Path) -> Iterator[dict[str, Any]]:
    """A lookup of a long prompt, and a retrieve of one small chunk: milliseconds."""
    tokens = prompt(scale.prompt)
    window = contiguous(THIN, len(tokens), scale.chunk).window
    one = contiguous(THIN, scale.chunk, scale.chunk).window
    blocks = len(tokens) // scale.chunk
    pool = (blocks * 3 // 2 + 4) * frame_bytes(THIN.chunk_bytes(scale.chunk))
    with (
        served(folder / "small", pool) as node,
        memory_engine(THIN, scale.chunk, blocks) as own,
        over(node, THIN, scale.chunk) as shared,
    ):
        engines: dict[str, PrefixCache] = {"own": own, "node": shared}
        for engine in engines.values():
            must(engine.store(tokens, window).stored_tokens == len(tokens), "store")

        def look(engine: PrefixCache) -> None:
            must(engine.lookup(tokens).hit_tokens == len(tokens), "lookup")

        def load_one(engine: PrefixCache) -> None:
            got = engine.retrieve(tokens[: scale.chunk], one)
            must(got.hit_tokens == scale.chunk, "retrieve")

        for what, call in ((f"lookup of {len(tokens)}", look), ("one chunk", load_one)):
            sides = {name: partial(call, engine) for name, engine in engines.items()}
            taken = turns(scale.rounds * 20, sides, {})
            extra = [n[0] - o[0] for o, n in zip(taken["own"], taken["node"], strict=True)]
            yield {
                "what": what,
                "extra_ms": round(statistics.median(extra) * 1e3, 3),
                "own_ms": round(median(taken["own"], 0) * 1e3, 3),
                "node_ms": round(median(taken["node"], 0) * 1e3, 3),
                "extra_cpu_ms": round(
                    (median(taken["node"], 1) - median(taken["own"], 1)) * 1e3, 3
                ),
            }


def many(scale: Scale, folder: Path) -> Iterator[dict[str, Any]]:
    """What a small chunk costs among many, without its copy: CPU of both processes."""
    chunk, count = SMALL_CHUNKS[0], scale.pages // 16
    tokens = prompt(chunk * count)
    window = Null(THIN, len(tokens))
    pool = (count * 3 // 2 + 4) * frame_bytes(THIN.chunk_bytes(chunk))
    with (
        served(folder / "many", pool) as node,
        memory_engine(THIN, chunk, count) as own,
        over(node, THIN, chunk) as shared,
    ):

        def store(engine: PrefixCache) -> None:
            must(engine.store(tokens, window).stored_tokens == len(tokens), "store")

        def retrieve(engine: PrefixCache) -> None:
            must(engine.retrieve(tokens, window).hit_tokens == len(tokens), "retrieve")

        for what, call in (("store", store), ("retrieve", retrieve)):
            spent = {}
            for name, engine in (("own", own), ("node", shared)):
                before = engine.clear if what == "store" else lambda: None
                used = 0.0
                for _ in range(scale.rounds * 2):
                    before()
                    start = time.process_time() + node.cpu()
                    call(engine)
                    used += time.process_time() + node.cpu() - start
                spent[name] = used / (scale.rounds * 2 * count)
            yield {
                "what": f"{what} of {count} chunks of {chunk}, for each",
                **{f"{name}_cpu_us": round(each * 1e6, 1) for name, each in spent.items()},
            }


def far_end(socket: str, scale: Scale) -> None:
    """An engine in a process of its own: retrieves, then waits to be looked at."""
    chunks = scale.memory_chunks // 4 or 1
    tokens = prompt(chunks * scale.chunk)
    device = contiguous(scale.layout, len(tokens), scale.chunk)
    before = _shmem(os.getpid())
    wanted = {"node": socket, "chunk": {"size": scale.chunk}}
    with build(load(environ={}, overrides=wanted), Namespace("benchmark", scale.layout)) as engine:
        report = engine.store(tokens, device.window)
        got = engine.retrieve(tokens, device.window)
        must(got.hit_tokens == len(tokens), "retrieve")
        print(json.dumps([before, report.stored_tokens]), flush=True)
        sys.stdin.readline()


def sharing(scale: Scale, folder: Path) -> Iterator[dict[str, Any]]:
    """The memory that a node and two engines take for the same content."""
    chunks = scale.memory_chunks // 4 or 1
    pool = (chunks * 3 // 2 + 4) * frame_bytes(scale.layout.chunk_bytes(scale.chunk))
    with served(folder / "sharing", pool) as node, ExitStack() as ended:
        pids = [node.process.pid]
        stored = []
        for _ in range(2):
            command = [sys.executable, "-m", "benchmarks.fleet.node", "--far-end", str(node.socket)]
            command += ["--quick"] if scale is QUICK else []
            engine = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            ended.callback(engine.communicate, b"\n")
            assert engine.stdout is not None
            stored.append(json.loads(engine.stdout.readline())[1])
            pids.append(engine.pid)
        must(stored[1] == 0, "the second engine stored what the first one had stored")
        taken = [_shmem(pid) for pid in pids]
        yield {
            "what": "PSS of shared memory, node and two engines",
            "pool_MiB": pool >> 20,
            "each_MiB": [size >> 20 for size in taken],
            "pools": round(sum(taken) / pool, 3),
        }


def _shmem(pid: int) -> int:
    """Bytes of a process's proportional share of shared memory."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss_Shmem:"):
            return int(line.split()[1]) * 1024
    return 0


def main() -> None:
    """Measure all, or be the far end."""
    # Copies with several threads compete with the engine that is served; one is comparable.
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fleet.node", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a little of everything")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    parser.add_argument("--far-end", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    scale = QUICK if chosen.quick else FULL
    if chosen.far_end:
        far_end(chosen.far_end, scale)
        return
    rows = []
    with tempfile.TemporaryDirectory(prefix="hexkv") as folder:
        for part in (small, many, moving, sharing):
            for row in part(scale, Path(folder)):
                print(json.dumps(row), flush=True)
                rows.append(row)
    if not chosen.quick:
        chosen.output.write_text(
            json.dumps({"machine": describe(OUTPUT.parent), "rows": rows}, indent=2) + "\n"
        )


if __name__ == "__main__":
    main()
