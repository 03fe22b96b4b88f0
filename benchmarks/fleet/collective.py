"""``python -m benchmarks.fleet.collective``: ranks that hold the same KV, without a node in common.

A process for each rank, and a directory that they share as machines do (``fs``). Either the first
rank reads a prompt from it and passes it on (gloo, over the loopback interface), or each rank reads
it for itself; both verify it and copy it to tensors. A turn ends when the last rank has all of it.
CPU seconds are those of all ranks. The files are in the page cache: what a store far away costs
for each read comes on top, once or for every rank.
"""

from __future__ import annotations

import argparse
import json
import sys
from array import array
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from functools import partial
from itertools import count, product
from pathlib import Path
from subprocess import PIPE, Popen
from tempfile import TemporaryDirectory

import torch
from rich.console import Console

from benchmarks.fleet.peers import CASES, CHUNK, layout_of, tensors_of, window
from benchmarks.rig.engines import prompt
from benchmarks.rig.machine import describe, load
from benchmarks.rig.measure import Comparison, Goal, Turn, compare, must
from benchmarks.rig.report import table, to_json
from benchmarks.tiers.lmserver import cpu_clock
from hexkv.adapters.vllm.messages import Load, Scope
from hexkv.adapters.vllm.worker.collective import GlooCollective, MeetingPlace
from hexkv.adapters.vllm.worker.together import LoadsTogether
from hexkv.plugins.clock import SystemClock
from hexkv.plugins.composition.compose import build
from hexkv.plugins.configuration.config import load as configured
from hexkv.plugins.discovery.discovery import discover
from hexkv.plugins.spec import OpenContext
from hexkv.ports import Namespace, PrefixCache, frame_bytes

OUTPUT = Path(__file__).resolve().parents[1] / "results" / "collective.json"
RANKS = (2, 4)
SERDES = ("raw",)
"""How chunks are kept. Whoever reads for itself decodes them, too."""

PATIENCE = 60.0


def engine_of(label: str, tier: Mapping[str, object], serde: str) -> PrefixCache:
    """An engine that has nothing but *tier*, and time."""
    layout, chunks = layout_of(CASES[label][0]), CASES[label][1]
    wanted = {
        "pool": {"bytes": (chunks + 4) * frame_bytes(layout.chunk_bytes(CHUNK))},
        "tiers": [{**tier, "serde": serde}],
        "deadlines": {"lookup": PATIENCE, "retrieve": PATIENCE, "store": PATIENCE},
    }
    return build(configured(None, {}, wanted), Namespace("bench", layout))


class Rank:
    """One of them: it reads for itself, or takes part."""

    def __init__(
        self, label: str, tier: Mapping[str, object], serde: str, collective: GlooCollective
    ) -> None:
        self._tokens = prompt(CASES[label][1] * CHUNK)
        self._engine = engine_of(label, tier, serde)
        self._window = window(label, tensors_of(label))
        self._load = Load(
            "r", Scope(), array("I", self._tokens).tobytes(), 0, len(self._tokens), ()
        )
        clock = SystemClock()
        checksum = discover().open("checksum", "xxh3-128", {}, OpenContext(clock))
        longest = layout_of(CASES[label][0]).chunk_bytes(CHUNK)
        self._together = LoadsTogether(collective, checksum, longest, PATIENCE, clock)

    def keep(self) -> None:
        """Store what all are to load."""
        report = self._engine.store(self._tokens, self._window)
        must(report.stored_tokens == len(self._tokens), f"not stored: {report}")

    def each(self) -> None:
        """Read for itself."""
        got = self._engine.retrieve(self._tokens, self._window)
        must(got.hit_tokens == len(self._tokens), f"not read: {got}")

    def together(self, order: int) -> None:
        """Read for all, or get the chunks read."""
        read = partial(self._engine.retrieve, self._tokens)
        got = self._together.load(order, self._load, self._window, read)
        must(got.hit_tokens == len(self._tokens), f"not loaded: {got}")

    def close(self) -> None:
        """Leave."""
        self._together.close()
        self._engine.close()


def other_rank(label: str, tier: str, serde: str, place: Sequence[str]) -> None:
    """Run the commands, until they end."""
    rank, ranks, address, interface = place
    collective = GlooCollective(int(rank), int(ranks), address, interface)
    mine = Rank(label, json.loads(tier), serde, collective)
    print("ready", flush=True)
    for line in sys.stdin:
        way, order = line.split()
        mine.each() if way == "each" else mine.together(int(order))
        print("done", flush=True)
    mine.close()


class Ranks:
    """All of them; the first one is this process.

    Args:
        label: of what they load.
        serde: how it is kept.
        tier: where.
        machines: of each rank the words before its command, and its network interface.
        ends: closes them.
    """

    def __init__(
        self,
        label: str,
        serde: str,
        tier: Mapping[str, object],
        machines: Sequence[tuple[Sequence[str], str]],
        ends: ExitStack,
    ) -> None:
        ranks, (_, here) = len(machines), machines[0]
        place = MeetingPlace(here)
        self._others: list[Popen[str]] = []
        for rank, (prefix, interface) in enumerate(machines[1:], 1):
            said = [label, json.dumps(tier), serde, str(rank), str(ranks), place.address, interface]
            command = [
                *prefix,
                sys.executable,
                "-m",
                "benchmarks.fleet.collective",
                "--other-rank",
                *said,
            ]
            other = Popen(command, stdin=PIPE, stdout=PIPE, text=True)
            ends.enter_context(other)
            ends.callback(other.kill)
            self._others.append(other)
        collective = GlooCollective(0, ranks, place.address, here, place)
        self._mine = Rank(label, tier, serde, collective)
        ends.callback(self._mine.close)
        self._orders = count(1)
        self._hear("ready")
        self._mine.keep()

    @property
    def pids(self) -> list[int]:
        """Of all other processes."""
        return [other.pid for other in self._others]

    def each(self) -> None:
        """One turn of reading for oneself."""
        self._turn("each", self._mine.each)

    def together(self) -> None:
        """One turn of loading together."""
        order = next(self._orders)
        self._turn(f"together {order}", partial(self._mine.together, order), order)

    def _turn(self, way: str, mine: Callable[[], None], order: int = 0) -> None:
        for other in self._others:
            if other.stdin is not None:
                other.stdin.write(f"{way.split()[0]} {order}\n")
                other.stdin.flush()
        mine()
        self._hear("done")

    def _hear(self, word: str) -> None:
        for other in self._others:
            heard = "" if other.stdout is None else other.stdout.readline()
            must(heard.strip() == word, f"a rank said {heard!r}")


def rows(label: str, ranks: int, serde: str, ends: ExitStack) -> tuple[list[Comparison], list[int]]:
    """Loading together beside each for itself, by the clock and in CPU seconds."""
    root = ends.enter_context(TemporaryDirectory(dir=OUTPUT.parent))
    tier = {"store": "fs", "settings": {"root": root}}
    all_of_them = Ranks(label, serde, tier, [((), "lo")] * ranks, ends)
    layers, chunks = CASES[label]
    size = layout_of(layers).chunk_bytes(CHUNK) * chunks * ranks
    goals = Goal("cost"), Goal("cpu")
    name = f"{ranks} ranks load {chunks} {serde} chunks of {label} together"
    found = [
        Comparison(
            name,
            "each rank reads for itself",
            size,
            Turn(all_of_them.together),
            Turn(all_of_them.each),
            goal,
        )
        for goal in goals
    ]
    return found, all_of_them.pids


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it, or be another rank."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.fleet.collective", description=__doc__
    )
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--turn", type=float, default=0.2, help="seconds of a turn at least")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    parser.add_argument("--other-rank", nargs=7, help=argparse.SUPPRESS)
    asked = parser.parse_args(arguments)
    torch.set_num_threads(1)
    if asked.other_rank:
        label, tier, serde, *place = asked.other_rank
        other_rank(label, tier, serde, place)
        return 0
    machine = describe(asked.output.parent)
    results = []
    for ranks, serde in product(RANKS, SERDES):
        with ExitStack() as ends:
            some, others = rows("4 MiB", ranks, serde, ends)
            cpu = cpu_clock(others)
            results += [compare(row, asked.rounds, turn=asked.turn, cpu=cpu) for row in some]
    run = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "rounds": asked.rounds,
        "cpu": "all ranks",
        "machine": machine | {"load_after": load()},
        "results": [to_json(result) for result in results],
    }
    asked.output.write_text(json.dumps(run, indent=1) + "\n")
    console = Console()
    console.print(table(results))
    console.print(f"written: {asked.output}", highlight=False, soft_wrap=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
