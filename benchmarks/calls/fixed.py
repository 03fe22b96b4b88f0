"""``python -m benchmarks.calls.fixed``: what a call costs besides the bytes that it moves.

The fixed costs are those of an engine with memory alone and a device that moves nothing: of a
call of one chunk, and of each further chunk. Small calls are those of a prompt of 300 tokens, whose
KV is one tensor as in :mod:`benchmarks.calls.lmcache_calls`, which lists the sides' differences.
Chunks of 32 KiB, 288 KiB (one layer of latent attention) and 4 MiB stand beside the bare copy.

All figures are CPU time of the process: they hold on a machine that others use, too.
``--against FOLDER`` has another checkout's code take turns with this one's.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import cycle
from pathlib import Path
from statistics import median
from typing import TypedDict

import torch

from benchmarks.calls.lmcache_calls import peers_turn
from benchmarks.rig.devices import contiguous, in_one, one_by_one
from benchmarks.rig.engines import TURNS, TokenArray, buffers, in_turn, memory_engine, prompt
from benchmarks.rig.machine import describe, load, versions
from benchmarks.rig.measure import Spread, cost, must
from benchmarks.rig.scale import THIN
from hexkv.core.engine.engine import CacheEngine
from hexkv.kernels import ContiguousKV
from hexkv.ports import DType, Finished, KVLayout, Span, Transfer

HERE = Path(__file__).resolve().parents[1]
CALLS = ("retrieve", "lookup", "second store", "new store")
SMALL_CHUNKS = (16, 256)
SMALL_PROMPT = 300

GOALS = {
    "retrieve: per further chunk, us": 5.0,
    "new store: per further chunk, us": 15.0,
    "32 KiB: store": 0.95,
    "32 KiB: retrieve": 0.95,
    "288 KiB: store": 0.95,
    "288 KiB: retrieve": 0.95,
    "4 MiB: store": 0.95,
    "4 MiB: retrieve": 0.95,
}
"""At most for a time, at least for a share of the bare copy's speed. A small call is to take no
longer than in the published package of LMCache, in the same run, where that is installed."""

SMALL = KVLayout.attention(DType.BFLOAT16, layers=4, heads=2, key_width=64)
"""2 KiB a token: 32 KiB in a chunk of 16."""

SIZES = {
    "32 KiB": (SMALL, 16, 256),
    "288 KiB": (
        KVLayout.latent(DType.BFLOAT16, layers=1, latent_width=512, rope_width=64),
        256,
        64,
    ),
    "4 MiB": (KVLayout.attention(DType.BFLOAT16, layers=16, heads=4, key_width=64), 256, 16),
}
"""Layout, tokens of a chunk, chunks of a call."""


class Null:
    """A window whose copies are done before they begin."""

    def __init__(self, layout: KVLayout, tokens: int) -> None:
        self.layout = layout
        self.tokens = tokens

    def gather(self, spans: Sequence[Span], layers: range | None = None) -> Transfer:
        """Nothing."""
        del spans, layers
        return Finished()

    scatter = gather


def rows() -> Iterator[tuple[str, float]]:
    """Every figure once: microseconds, or the share of the bare copy's speed.

    With the garbage collector as users have it, which walks over torch's objects, too.
    """
    gc.collect()
    yield from _fixed()
    for chunk in SMALL_CHUNKS:
        yield from _small(chunk)
    for name, (layout, chunk, count) in SIZES.items():
        yield from _beside_the_copy(name, layout, chunk, count)


def _fixed() -> Iterator[tuple[str, float]]:
    chunk, most = 16, 512
    with memory_engine(THIN, chunk, most) as cache:
        found: dict[str, dict[int, float]] = {name: {} for name in CALLS}
        for count in (1, 8, 64, most):
            tokens = prompt(count * chunk)
            window = Null(THIN, len(tokens))
            new, *others = _calls(cache, tokens, window)
            found["new store"][count] = cost(new, before=cache.clear)
            for name, call in zip(CALLS, others, strict=False):
                found[name][count] = cost(call)
        for name, by_count in found.items():
            yield f"{name}: of 1 chunk, us", by_count[1] * 1e6
            slope = (by_count[most] - by_count[8]) / (most - 8)
            yield f"{name}: per further chunk, us", slope * 1e6


def _calls(
    cache: CacheEngine, tokens: TokenArray, window: Null
) -> tuple[Callable[[], object], ...]:
    """A new store; a retrieve, a lookup and a second store of the same."""
    asked = len(tokens)

    def new() -> None:
        must(cache.store(tokens, window).stored_tokens == asked, "not all was stored")

    def retrieve() -> None:
        must(cache.retrieve(tokens, window).loaded_tokens == asked, "not all was loaded")

    def lookup() -> None:
        must(cache.lookup(tokens).hit_tokens == asked, "not all was found")

    def again() -> None:
        must(cache.store(tokens, window).present_tokens == asked, "something was stored again")

    return new, retrieve, lookup, again


def _small(chunk: int) -> Iterator[tuple[str, float]]:
    asked = SMALL_PROMPT
    named = asked // chunk * chunk
    tokens, others = prompt(asked).tolist(), prompt(2 * asked)[asked:].tolist()
    stored, strange = in_turn(asked, 2), in_turn(asked, 2 + TURNS)
    device = in_one(SMALL, asked, chunk)
    count, size = asked // chunk, SMALL.chunk_bytes(chunk)
    with memory_engine(SMALL, chunk, (TURNS + 4) * count) as cache, buffers(count, size) as copies:
        bare = [device.bare(i, copies[i]) for i in range(count)]

        gather, scatter = one_by_one(bare)

        def new() -> None:
            must(cache.store(tokens, device.window).stored_tokens == named, "it was there")

        def hit() -> None:
            must(cache.lookup(tokens).hit_tokens == named, "not all was found")

        def miss() -> None:
            must(cache.lookup(others).hit_tokens == 0, "something was found")

        def another_new() -> None:
            must(cache.store(next(stored), device.window).stored_tokens == named, "it was there")

        def another_hit() -> None:
            must(cache.lookup(next(stored)).hit_tokens == named, "not all was found")

        def another_miss() -> None:
            must(cache.lookup(next(strange)).hit_tokens == 0, "something was found")

        def load_new() -> None:
            window = ContiguousKV(SMALL, device.tensors)
            must(cache.retrieve(tokens, window).loaded_tokens == named, "not all was loaded")

        def load_miss() -> None:
            must(cache.retrieve(others, device.window).loaded_tokens == 0, "something was loaded")

        name = f"{asked} tokens in chunks of {chunk}"
        yield f"{name}: the bare copy of a store, us", cost(gather) * 1e6
        yield f"{name}: the bare copy of a hit, us", cost(scatter) * 1e6
        yield f"{name}: new store, us", cost(new, before=cache.clear) * 1e6
        yield f"{name}: lookup of a hit, us", cost(hit) * 1e6
        yield f"{name}: lookup of a miss, us", cost(miss) * 1e6
        yield f"{name}: hit in a new window, us", cost(load_new) * 1e6
        yield f"{name}: retrieve of a miss, us", cost(load_miss) * 1e6
        name = f"{name}, another prompt each time"
        yield f"{name}: new store, us", cost(another_new, before=cache.clear) * 1e6
        cache.clear()
        for _ in range(TURNS):
            another_new()
        yield f"{name}: lookup of a hit, us", cost(another_hit) * 1e6
        yield f"{name}: lookup of a miss, us", cost(another_miss) * 1e6


def _beside_the_copy(
    name: str, layout: KVLayout, chunk: int, count: int
) -> Iterator[tuple[str, float]]:
    tokens = prompt(count * chunk)
    device = contiguous(layout, len(tokens), chunk)
    size = layout.chunk_bytes(chunk)
    with memory_engine(layout, chunk, count) as cache, buffers(count, size) as copies:
        bare = [device.bare(i, copies[i]) for i in range(count)]

        gather, scatter = one_by_one(bare)

        def store() -> None:
            must(cache.store(tokens, device.window).stored_tokens == len(tokens), "it was there")

        def retrieve() -> None:
            loaded = cache.retrieve(tokens, device.window).loaded_tokens
            must(loaded == len(tokens), "not all was loaded")

        # Three, for the beginning of the last prompt but one is there still.
        turns = cycle([tokens, prompt(len(tokens), 1), prompt(len(tokens), 2)])

        def replace() -> None:
            stored = cache.store(next(turns), device.window).stored_tokens
            must(stored == len(tokens), "it was there")

        for _ in range(3):  # until memory was used, and pages are backed that others use next
            gather()
            scatter()
            store()
            retrieve()
            cache.clear()
        yield f"{name}: store", cost(gather) / cost(store, before=cache.clear)
        yield f"{name}: retrieve", cost(scatter) / cost(retrieve)
        cache.clear()
        replace()
        yield f"{name}: store in place of others", cost(gather) / cost(replace)


def _turn(checkout: Path) -> dict[str, float]:
    """The figures of a checkout's code, from a process of its own."""
    roots = [checkout / root for root in ("ports", "core", "plugins", "contracts", "kernels")]
    roots += [*checkout.glob("plugins/*"), *checkout.glob("adapters/*")]
    path = os.pathsep.join(map(str, roots))
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.calls.fixed", "--turn"],
        cwd=HERE.parent,
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    )
    found: dict[str, float] = json.loads(done.stdout)
    return found


class RowJson(TypedDict):
    """One figure: the median over all rounds, its quartiles, and whether it is good enough."""

    name: str
    median: float
    lower: float
    upper: float
    goal: float | None
    reached: bool | None
    before: float | None
    """The other checkout's median."""


def _row(
    name: str, values: list[float], before: list[float], peers: list[dict[str, float]]
) -> RowJson:
    spread, goal = Spread.of(values), GOALS.get(name)
    if peers and name in peers[0]:
        goal = median(peer[name] for peer in peers)
    reached = None
    if goal is not None:
        reached = spread.median <= goal if name.endswith("us") else spread.median >= goal
    was = median(before) if before else None
    return RowJson(
        name=name,
        median=spread.median,
        lower=spread.lower,
        upper=spread.upper,
        goal=goal,
        reached=reached,
        before=was,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, write JSON. The exit code: 1 if a goal was missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.calls.fixed", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--against", type=Path, help="another checkout, which takes turns")
    parser.add_argument("--output", type=Path, help="where to write the JSON")
    parser.add_argument("--turn", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args(arguments)
    torch.set_num_threads(1)
    if asked.turn:
        print(json.dumps(dict(rows())))
        return 0
    now, machine = datetime.now(UTC), describe(HERE)
    mine, others, peers = [], [], []
    for _ in range(max(2, asked.rounds)):
        if asked.against is not None:
            others.append(_turn(asked.against.resolve()))
        mine.append(_turn(HERE.parent))
        if (peer := peers_turn(SMALL_PROMPT, SMALL_CHUNKS)) is not None:
            peers.append(peer)
    results = [
        _row(name, [m[name] for m in mine], [o[name] for o in others], peers) for name in mine[0]
    ]
    for row in results:
        verdict = {None: "", True: "reached", False: "missed"}[row["reached"]]
        goal = "" if row["goal"] is None else f"goal {row['goal']:.4g}"
        was = "" if row["before"] is None else f"before {row['before']:.2f}"
        spread = f"{row['median']:9.2f} [{row['lower']:.2f}-{row['upper']:.2f}]"
        print(f"{row['name']:52} {spread:30} {was:15} {goal:10} {verdict}".rstrip())
    if asked.output is not None:
        run = {
            "date": now.isoformat(timespec="seconds"),
            "machine": machine | {"load_after": load()},
            "versions": versions(),
            "results": results,
        }
        asked.output.write_text(json.dumps(run, indent=1) + "\n")
    return 3 if any(row["reached"] is False for row in results) else 0


if __name__ == "__main__":
    sys.exit(main())
