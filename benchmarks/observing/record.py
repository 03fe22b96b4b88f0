"""``python -m benchmarks.observing.record``: what it costs to have calls recorded.

Retrieves from memory, and lookups, of an engine that records its calls beside one that does not, in
turns, by CPU seconds of the whole process: the thread that names and writes is included. Then bytes
on the disk for each call. Prints, and writes ``benchmarks/results/record.json``.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.observing.observe import CHUNK, LAYOUT, Row, cpu_of, engine
from benchmarks.rig.machine import describe, load
from benchmarks.rig.measure import must
from hexkv.contracts.doubles.heap_kv import HeapKV
from hexkv.ports import PrefixCache

OUTPUT = Path(__file__).resolve().parents[1] / "results" / "record.json"
CALLS = 200
"""In each turn."""


def beside(
    name: str,
    folder: Path,
    tokens: int,
    what: Callable[[PrefixCache, memoryview], object],
    rounds: int,
) -> Row:
    """CPU of *what* with a record and without, in turns."""
    prompt = memoryview(os.urandom(4 * tokens)).cast("I")
    record = folder / name.replace(" ", "-")
    with engine({"address": "", "record": str(record)}) as told, engine({}) as plain:

        def turn(cache: PrefixCache) -> float:
            def calls() -> None:
                for _ in range(CALLS):
                    what(cache, prompt)

            # The writer looks every half a second: what it does belongs to the turn.
            return cpu_of(calls, settle=0.7)

        for cache in (told, plain):
            cache.store(prompt, HeapKV(LAYOUT, tokens))
            turn(cache)
        pairs = [(turn(told), turn(plain)) for _ in range(rounds)]
    size = sum(path.stat().st_size for path in record.iterdir())
    ratios = sorted(a / b for a, b in pairs)
    more = [(a - b) / CALLS * 1e6 for a, b in pairs]
    return {
        "name": f"{name} of {tokens:,} tokens",
        "chunks": tokens // CHUNK,
        "ratio": round(statistics.median(ratios), 3),
        "ratios": [round(ratios[0], 3), round(ratios[-1], 3)],
        "us_more": round(statistics.median(more), 1),
        "us_more_from_to": [round(min(more), 1), round(max(more), 1)],
        "us_without": round(statistics.median(b for _, b in pairs) / CALLS * 1e6, 1),
        "bytes_a_call": round(size / (CALLS * (rounds + 1))),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.observing.record", description=__doc__
    )
    parser.add_argument("--quick", action="store_true", help="few rounds: only to see it work")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    asked = parser.parse_args(arguments)
    machine = describe(Path(tempfile.gettempdir()))
    rounds = 2 if asked.quick else 9

    def retrieve(cache: PrefixCache, prompt: memoryview) -> None:
        must(cache.retrieve(prompt, HeapKV(LAYOUT, len(prompt))).hit_tokens == len(prompt), "hit")

    def look(cache: PrefixCache, prompt: memoryview) -> None:
        must(cache.lookup(prompt, pin="a request").hit_tokens == len(prompt), "it is there")

    rows: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as folder:
        for name, tokens, what in (
            ("retrieve", 4096, retrieve),
            ("retrieve", 32_768, retrieve),
            ("lookup", 4096, look),
        ):
            place = Path(folder) / str(len(rows))
            place.mkdir()
            rows.append(beside(name, place, tokens, what, rounds))
            print(json.dumps(rows[-1]), flush=True)
    written = {"machine": machine | {"load_after": load()}, "results": rows}
    asked.output.write_text(json.dumps(written, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
