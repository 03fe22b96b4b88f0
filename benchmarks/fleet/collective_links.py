"""``python -m benchmarks.fleet.collective_links``: ranks with the same KV, on own machines.

A network namespace for each rank and one for a server of chunks (``hexkv serve``), on one bridge;
what leaves each of them goes at ``--rate``. Either the first rank reads a prompt and passes it on
(gloo), or each rank reads it for itself, and the server's link is what they share. In turns; a turn
ends when the last rank has all of it. *bare* is the time of that many bytes at the rate, once.
Takes root, and tests/lib: ``PYTHONPATH=tests/lib python -m benchmarks.fleet.collective_links``.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from benchmarks.fleet.collective import PATIENCE, Ranks
from benchmarks.fleet.peers import CASES, CHUNK, layout_of
from benchmarks.rig.machine import describe, load
from machines.net_namespaces import Machine, machines

OUTPUT = Path(__file__).resolve().parents[1] / "results" / "collective_links.json"
LABEL = "4 MiB"
PORT = 7070
SECRET = "a secret of this benchmark"


def inside(said: str) -> None:
    """Be the first rank, on its machine: the seconds of each turn, as a line."""
    asked = json.loads(said)
    settings = {"address": f"hexkv://{asked['server']}:{PORT}", "secret": SECRET}
    rows: dict[str, list[float]] = {"together": [], "each": []}
    with ExitStack() as ends:
        ranks = Ranks(LABEL, "raw", {"store": "hexkv", "settings": settings}, asked["ranks"], ends)
        ways = {"together": ranks.together, "each": ranks.each}
        for number in range(-1, asked["rounds"]):
            for way in ways if number % 2 else reversed(ways):
                began = time.perf_counter()
                ways[way]()
                if number >= 0:  # the first one connects
                    rows[way].append(time.perf_counter() - began)
    sys.stdout.write(json.dumps(rows) + "\n")


def serve(machine: Machine, folder: Path, ends: ExitStack) -> None:
    """``hexkv serve`` on *machine*."""
    secret = folder / "secret"
    secret.write_text(SECRET)
    secret.chmod(0o600)
    words = ["serve", "--host", machine.address, "--port", str(PORT), "--budget", "256MiB"]
    command = [*machine.prefix, sys.executable, "-m", "hexkv.plugins", *words]
    server = subprocess.Popen(
        [*command, "--secret-file", str(secret)], stdout=subprocess.PIPE, text=True
    )
    ends.enter_context(server)
    ends.callback(server.kill)
    if server.stdout is None or "hexkv://" not in server.stdout.readline():
        raise RuntimeError("the server did not start")


def row(ranks: int, rate: int, rounds: int) -> dict[str, object]:
    """Ranks at one rate."""
    with ExitStack() as ends:
        folder = Path(ends.enter_context(TemporaryDirectory()))
        server, *places = ends.enter_context(machines(ranks + 1))
        serve(server, folder, ends)
        for place in (server, *places):
            place.slow(rate)
        of = [(place.prefix, place.interface) for place in places]
        said = {"server": server.address, "ranks": of, "rounds": rounds}
        command = [*places[0].prefix, sys.executable, "-m", __spec__.name]
        done = subprocess.run(
            [*command, "--inside", json.dumps(said)],
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            timeout=10 * PATIENCE,
        )
    found = json.loads(done.stdout.splitlines()[-1])
    layers, chunks = CASES[LABEL]
    size = layout_of(layers).chunk_bytes(CHUNK) * chunks
    return {
        "ranks": ranks,
        "bits_per_second": rate,
        "bytes": size,
        "bare_seconds": round(8 * size / rate, 3),
        **{f"{way}_seconds": [round(one, 3) for one in some] for way, some in found.items()},
        "together / each": round(
            statistics.median(found["together"]) / statistics.median(found["each"]), 3
        ),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and write JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rate", type=int, nargs="*", default=[400_000_000], help="bits a second")
    parser.add_argument("--ranks", type=int, nargs="*", default=[2, 4])
    parser.add_argument("--output", type=Path, default=OUTPUT)
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    asked = parser.parse_args(arguments)
    torch.set_num_threads(1)
    if asked.inside:
        inside(asked.inside)
        return 0
    result = {
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": describe(Path()),
        "rows": [row(ranks, rate, asked.rounds) for rate in asked.rate for ranks in asked.ranks],
        "load": load(),
    }
    text = json.dumps(result, indent=1)
    asked.output.write_text(text + "\n")
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
