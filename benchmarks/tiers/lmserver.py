"""``python -m benchmarks.tiers.lmserver``: the LM server beside raw TCP over the same loopback.

Both sides have a process of their own at the other end, the same chunks in memory that was
used before, and one connection. The raw side does nothing else: one byte asks, one answers.
"""

from __future__ import annotations

import argparse
import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path

from rich.console import Console

from benchmarks.rig.engines import buffers
from benchmarks.rig.machine import describe, load
from benchmarks.rig.measure import Comparison, Goal, Turn, compare, must
from benchmarks.rig.report import table, to_json
from benchmarks.rig.scale import FULL
from benchmarks.tiers.through import through
from hexkv.adapters.lmcache.store import LMStore
from hexkv.adapters.lmserver.store import HexkvStore
from hexkv.adapters.net.address import Address
from hexkv.plugins.clock import SystemClock
from hexkv.plugins.configuration.schema import TierSettings
from hexkv.ports import KEY_BYTES, ChunkKey, ChunkStore, Deadline, Hit, Item, Stored

SHARE = 0.85
CHUNK = (32 << 20) + 4096
CHUNKS = 8
OUTPUT = Path(__file__).resolve().parents[1] / "results" / "lmserver.json"

_PUT, _GET = b"p", b"g"


def far_end() -> None:
    """The raw side's other process: takes a chunk or gives one, from *CHUNKS* buffers in turn."""
    with buffers(CHUNKS, CHUNK) as slots, socket.create_server(("127.0.0.1", 0)) as listener:
        print(listener.getsockname()[1], flush=True)
        peer, _ = listener.accept()
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        turn = 0
        while asked := peer.recv(1):
            if asked == _PUT:
                receive(peer, slots[turn])
                peer.sendall(b"!")
            else:
                peer.sendall(slots[turn])
            turn = (turn + 1) % CHUNKS


def receive(peer: socket.socket, into: memoryview) -> None:
    """Fill *into*, in as few calls as the kernel makes of it."""
    done = 0
    while done < len(into):
        got = peer.recv_into(into[done:], 0, socket.MSG_WAITALL)
        must(got > 0, "the connection broke")
        done += got


@contextmanager
def process(*command: str) -> Iterator[tuple[str, int]]:
    """The first line that a child prints, and its id."""
    child = subprocess.Popen([sys.executable, "-m", *command], stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        yield child.stdout.readline(), child.pid
    finally:
        child.terminate()
        child.communicate()


def cpu_clock(children: Sequence[int]) -> Callable[[], float]:
    """Seconds of CPU of this process and its children."""
    # The kernel's clock of another process (CPUCLOCK_SCHED): /proc counts in steps of 10 ms.
    clocks = [(~child << 3) | 2 for child in children]

    def used() -> float:
        return time.process_time() + sum(map(time.clock_gettime, clocks))

    return used


class Landing:
    """A sink over buffers that were used before."""

    def __init__(self, into: Sequence[memoryview]) -> None:
        self._into = into
        self._turn = 0

    def room(self, index: int, size: int) -> memoryview | None:
        del index
        self._turn = (self._turn + 1) % len(self._into)
        return self._into[self._turn][:size]

    def filled(self, index: int, upto: int) -> None:
        """No reader looks at it before it is there."""


def comparisons(
    stores: dict[str, ChunkStore], raw: socket.socket, mine: Sequence[memoryview]
) -> Generator[Comparison, None, None]:
    """Chunk by chunk, as an engine's worker calls."""
    clock = SystemClock()
    keys = [ChunkKey(bytes([i]) * KEY_BYTES) for i in range(CHUNKS)]
    sink = Landing(mine)

    def put() -> None:
        for chunk in mine:
            raw.sendall(_PUT)
            raw.sendall(chunk)
            must(raw.recv(1) == b"!", "the raw side did not answer")

    def get() -> None:
        for chunk in mine:
            raw.sendall(_GET)
            receive(raw, chunk)

    for name, store in stores.items():

        def write(store: ChunkStore = store) -> None:
            for key, chunk in zip(keys, mine, strict=True):
                outcomes = store.write([Item(key, chunk)], Deadline.after(clock, 60))
                must(list(outcomes) == [Stored(CHUNK)], f"not stored: {outcomes}")

        def read(store: ChunkStore = store) -> None:
            for key in keys:
                outcomes = store.read([key], sink, Deadline.after(clock, 60))
                must(list(outcomes) == [Hit(CHUNK)], f"not loaded: {outcomes}")

        goal = Goal("speed")
        size = CHUNKS * CHUNK
        yield Comparison(
            f"{name}, at the port: write", "sendall", size, Turn(write), Turn(put), goal
        )
        yield Comparison(
            f"{name}, at the port: read", "recv_into", size, Turn(read), Turn(get), goal
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print and write. The exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.tiers.lmserver", description=__doc__
    )
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--output", type=Path, default=OUTPUT)
    parser.add_argument("--far-end", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args(arguments)
    if asked.far_end:
        far_end()
        return 0
    budget = f"{3 * CHUNKS * 33}MiB"
    machine = describe(OUTPUT.parent)
    with ExitStack() as opened:
        serve = process("hexkv.plugins", "serve", "--budget", budget)
        line, server = opened.enter_context(serve)
        address = Address.of_url(line.split()[1], "hexkv")
        port, far = opened.enter_context(process("benchmarks.tiers.lmserver", "--far-end"))
        raw = opened.enter_context(socket.create_connection(("127.0.0.1", int(port))))
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        mine = opened.enter_context(buffers(CHUNKS, CHUNK))
        clock = SystemClock()
        stores: dict[str, ChunkStore] = {
            "hexkv": HexkvStore(address, clock),
            "hexkv with checksums": HexkvStore(address, clock, checked=True),
            "lm": LMStore(address),
        }
        for store in stores.values():
            opened.callback(store.close)
        cpu = cpu_clock([server, far])
        tier = TierSettings(store="hexkv", settings={"address": line.split()[1]})

        def put(_: int, frame: memoryview) -> None:
            raw.sendall(_PUT)
            raw.sendall(frame)
            must(raw.recv(1) == b"!", "the raw side did not answer")

        def get(_: int, frame: memoryview) -> None:
            raw.sendall(_GET)
            receive(raw, frame)

        rows = chain(through("hexkv", tier, FULL, put, get, SHARE), comparisons(stores, raw, mine))
        results = [compare(row, asked.rounds, turn=0.05, cpu=cpu) for row in rows]
    run = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "rounds": asked.rounds,
        "cpu": "this process and both at the other ends",
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
