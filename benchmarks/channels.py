"""``python -m benchmarks.channels``: channels between peers beside the bare way of the same bytes.

The other end has a process of its own, on both sides, and one connection. The bare side of TCP is
a loop of ``sendall`` and ``recv_into`` that asks with one byte. CPU seconds are those of both ends.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

from benchmarks.lmserver import cpu_clock, process, receive
from benchmarks.machine import describe, load
from benchmarks.measure import Comparison, Goal, Turn, compare, must
from benchmarks.report import table, to_json
from benchmarks.rig import buffers
from hexkv.contracts.channel.apart import PeerApart, Recipe, opened
from hexkv.contracts.channel.blocks import BlockLease, Blocks
from hexkv.contracts.doubles import chunk_key
from hexkv.plugins.clock import SystemClock
from hexkv.ports import PAGE, Deadline, Destination, Hit, Part, Peer, TransferChannel

OUTPUT = Path(__file__).resolve().parent / "results" / "channels.json"
SECRET = "of all peers in here"
SIZES = {"4 MiB": ((4 << 20) + PAGE, 16), "256 KiB": ((256 << 10) + PAGE, 64)}
"""Frames as a large model's chunks are, and as a small one's; and how many a call reads."""

SPEED, CPU = 0.9, 1.15


def far_end(count: int, size: int) -> None:
    """The bare side's other process: gives all of its buffers for each byte that comes."""
    with buffers(count, size) as slots, socket.create_server(("127.0.0.1", 0)) as listener:
        for slot in slots:
            slot[:] = os.urandom(size)
        print(listener.getsockname()[1], flush=True)
        peer, _ = listener.accept()
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while peer.recv(1):
            for slot in slots:
                peer.sendall(slot)


class Landing:
    """A sink over leases that were used before."""

    def __init__(self, leases: Sequence[BlockLease]) -> None:
        self.leases = leases

    def room(self, index: int, size: int) -> Destination | None:
        """Always the same block for a part."""
        must(size == len(self.leases[index].frame), "a frame of another size")
        return Destination(self.leases[index], self.leases[index].frame)

    def filled(self, index: int, upto: int) -> None:
        """Nobody looks at it before it is there."""


@contextmanager
def leased(blocks: Blocks, count: int) -> Iterator[list[BlockLease]]:
    """Leases on so many blocks."""
    leases = [lease for _ in range(count) if (lease := blocks.lease("mine")) is not None]
    must(len(leases) == count, "too few blocks")
    try:
        yield leases
    finally:
        for lease in leases:
            lease.release()


def reading(
    channel: TransferChannel, peer: Peer, sink: Landing, names: Sequence[str], size: int, each: int
) -> Turn:
    """Read all of *names*, *each* in one call."""
    clock = SystemClock()
    parts = [Part(chunk_key(name)) for name in names]

    def read() -> None:
        for start in range(0, len(parts), each):
            some = parts[start : start + each]
            outcomes = channel.read(peer, some, sink, Deadline.after(clock, 60))
            must(list(outcomes) == [Hit(size)] * len(some), f"not read: {outcomes}")

    return Turn(read)


def over_tcp(label: str, ends: ExitStack) -> tuple[list[Comparison], list[int]]:
    """The channel over TCP beside raw sockets, and the processes at the other ends."""
    size, count = SIZES[label]
    names = [f"c{i}" for i in range(count)]
    recipe = Recipe("tcp", {"secret": SECRET}, memory="mmap")
    apart = ends.enter_context(PeerApart(recipe, size, *names))
    channel, blocks = ends.enter_context(opened(recipe, size, count))
    mine = ends.enter_context(leased(blocks, count))
    line, far = ends.enter_context(process(__spec__.name, "--far-end", str(count), str(size)))
    raw = ends.enter_context(socket.create_connection(("127.0.0.1", int(line))))
    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def bare() -> None:
        raw.sendall(b"g")
        for lease in mine:
            receive(raw, lease.frame)

    def row(each: int, goal: Goal) -> Comparison:
        name = f"tcp, {count} frames of {label}, {each} to a call"
        turn = reading(channel, apart.peer, Landing(mine), names, size, each)
        return Comparison(name, "recv_into and sendall", size * count, turn, Turn(bare), goal)

    goals = (Goal("speed", SPEED), Goal("cpu", CPU))
    return [row(each, goal) for each in (count, 1) for goal in goals], [apart.pid, far]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it, or be the other end of the bare side. The exit code: 3 if a goal was missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.channels", description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--turn", type=float, default=0.2, help="seconds of a turn at least")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    parser.add_argument("--far-end", nargs=2, type=int, help=argparse.SUPPRESS)
    asked = parser.parse_args(arguments)
    if asked.far_end:
        far_end(*asked.far_end)
        return 0
    machine = describe(asked.output.parent)
    results = []
    for label in SIZES:
        with ExitStack() as ends:
            rows, others = over_tcp(label, ends)
            cpu = cpu_clock(others)
            results += [compare(row, asked.rounds, turn=asked.turn, cpu=cpu) for row in rows]
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
    return 3 if any(result.reached is False for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
