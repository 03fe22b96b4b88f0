"""``python -m benchmarks.tiers.s3``: both data paths of the S3 adapter, beside a bare connection.

Beside them the same bucket by ``hexkv-obstore``.

The server is the tests' small one, in a process of its own on loopback, without verifying
signatures: no server that can be had is as fast as the client. Speed is by the clock; cost is
the CPU seconds of this process with all its threads, the kernel's work for it included; there,
the column of GB/s means GB per CPU second.
"""

from __future__ import annotations

import argparse
import json
import socket
import ssl
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from rich.console import Console

from benchmarks.rig.engines import Buffers, buffers
from benchmarks.rig.machine import describe, versions
from benchmarks.rig.measure import Comparison, Goal, Result, Spread, Turn, compare, must
from benchmarks.rig.report import FORMAT, table, to_json
from benchmarks.rig.scale import FULL, QUICK, Scale
from benchmarks.tiers.late import Closing, late_reads
from hexkv.adapters.obstore.plugin import ObstoreSettings
from hexkv.adapters.obstore.plugin import hexkv_adapters as obstore_adapters
from hexkv.adapters.obstore.store import ObjectStorage
from hexkv.adapters.s3.plugin import S3Settings, hexkv_adapters
from hexkv.adapters.s3.store import S3Store
from hexkv.plugins.clock import SystemClock
from hexkv.plugins.configuration.secret import Secret
from hexkv.plugins.spec import OpenContext
from hexkv.ports import KEY_BYTES, ChunkKey, Deadline, Hit, Item, Stored

HERE = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(HERE.parent / "tests" / "lib"))  # where the server is

from servers.s3_double import BUCKET  # noqa: E402
from servers.s3_servers import Certificate, Double  # noqa: E402

CHUNKS = 2
LOOKED_UP = 512
LOOKUPS = 9
AFFORDABLE = 1.5
"""How many times the CPU of the cheapest path awscrt may take to be the only one."""


@dataclass(frozen=True, slots=True)
class Bare:
    """One connection, blocking and without any limit of time, signature or check."""

    sock: socket.socket

    @classmethod
    def to(cls, server: Double) -> Bare:
        """A connection to *server*, encrypted if it wants that."""
        sock = socket.create_connection(("127.0.0.1", server.port))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if server.certificate is not None:
            trust = ssl.create_default_context(cafile=str(server.certificate.authorities))
            sock = trust.wrap_socket(sock, server_hostname="localhost")
        return cls(sock)

    def put(self, names: Sequence[str], frames: Sequence[memoryview]) -> None:
        """Write every object."""
        for name, frame in zip(names, frames, strict=True):
            head = f"PUT /{BUCKET}/{name} HTTP/1.1\r\ncontent-length: {len(frame)}\r\n\r\n"
            self.sock.sendall(head.encode())
            self.sock.sendall(frame)
            must(self.sock.recv(4096).startswith(b"HTTP/1.1 200"), "an object was not taken")

    def get(self, names: Sequence[str], frames: Sequence[memoryview]) -> None:
        """Read every object into the memory for it."""
        for name, frame in zip(names, frames, strict=True):
            self.sock.sendall(f"GET /{BUCKET}/{name} HTTP/1.1\r\n\r\n".encode())
            text = self.sock.recv(4096)
            while (end := text.find(b"\r\n\r\n")) < 0:
                text += self.sock.recv(4096)
            first = text[end + 4 :]
            frame[: len(first)] = first
            done = len(first)
            while done < len(frame):
                got = self.sock.recv_into(frame[done:], 0, self._all)
                must(got > 0, "cut short")
                done += got

    @property
    def _all(self) -> int:
        return 0 if isinstance(self.sock, ssl.SSLSocket) else socket.MSG_WAITALL


def store_at(server: Double, client: str, **others: str) -> S3Store:
    """A store as a configuration opens it, that believes nothing it heard before."""
    (spec,) = hexkv_adapters()
    options = {"client": client, "present_ttl": 0.0, "absent_ttl": 0.0} | server.settings | others
    if client == "awscrt":
        # Its own default, and cheapest: larger parts come in fresh memory each time.
        options |= {"part_size": 8 << 20, "multipart_threshold": 8 << 20}
    options |= {name: Secret(str(options[name])) for name in ("access_key", "secret_key")}
    settings = S3Settings(f"s3://{BUCKET}/{client}", **options)
    store = spec.open(settings, OpenContext(SystemClock()))
    must(isinstance(store, S3Store), "another store")
    return store  # type: ignore[return-value]  # what must() has checked


def obstore_at(server: Double, **others: str) -> ObjectStorage:
    """The same bucket by the other adapter."""
    (spec,) = obstore_adapters()
    options = server.settings | others
    secrets = {name: Secret(str(options[name])) for name in ("access_key", "secret_key")}
    settings = ObstoreSettings(f"s3://{BUCKET}/obstore", **options | secrets)
    store = spec.open(settings, OpenContext(SystemClock()))
    must(isinstance(store, ObjectStorage), "another store")
    return store  # type: ignore[return-value]  # what must() has checked


def comparisons(scale: Scale, server: Double) -> Generator[Comparison, None, None]:
    """Each path beside the bare connection, then awscrt beside ours."""
    size = scale.layout.chunk_bytes(scale.chunk) + 4096
    clock = SystemClock()
    keys = [ChunkKey(i.to_bytes(KEY_BYTES, "big")) for i in range(CHUNKS)]
    scheme = "http" if server.certificate is None else "https"
    with ExitStack() as opened:
        frames = opened.enter_context(buffers(CHUNKS, size))
        for i, frame in enumerate(frames):
            frame[:] = bytes([i]) * size
        items = [Item(key, frame) for key, frame in zip(keys, frames, strict=True)]
        sink = Buffers(frames)
        bare = Bare.to(server)
        opened.callback(bare.sock.close)
        names = [f"bare/{i}" for i in range(CHUNKS)]

        def writing(store: Closing) -> Callable[[], None]:
            def write() -> None:
                outcomes = store.write(items, Deadline.after(clock, 60))
                must(list(outcomes) == [Stored(size)] * CHUNKS, f"not stored: {outcomes}")

            return write

        def reading(store: Closing) -> Callable[[], None]:
            def read() -> None:
                outcomes = store.read(keys, sink, Deadline.after(clock, 60))
                must(list(outcomes) == [Hit(size)] * CHUNKS, f"not read: {outcomes}")

            return read

        stores: dict[str, Closing] = {
            "http": store_at(server, "http"),
            "awscrt": store_at(server, "awscrt"),
            "obstore": obstore_at(server),
        }
        for store in stores.values():
            opened.enter_context(closing(store))
        limits = {
            "store": lambda: bare.put(names, frames),
            "retrieve": lambda: bare.get(names, frames),
        }
        paths = {
            client: {"store": writing(store), "retrieve": reading(store)}
            for client, store in stores.items()
        }
        for kind in ("speed", "cost"):
            for what in ("store", "retrieve"):
                for client in stores:
                    yield Comparison(
                        f"s3: {what} over {scheme} by {client}",
                        "one bare connection",
                        CHUNKS * size,
                        Turn(paths[client][what]),
                        Turn(limits[what]),
                        Goal(kind),
                    )
                for other in ("awscrt", "obstore") if kind == "cost" else ():
                    yield Comparison(
                        f"s3: {what} over {scheme}, {other} beside ours",
                        "client: http",
                        CHUNKS * size,
                        Turn(paths[other][what]),
                        Turn(paths["http"][what]),
                        Goal("cost", AFFORDABLE),
                    )
        for i, frame in enumerate(frames):
            must(frame[0] == i and frame[-1] == i, "other bytes came back than were stored")


def lookup(server: Double) -> dict[str, object]:
    """Milliseconds, by the clock and of CPU, that it takes to ask for many chunks."""
    keys = [ChunkKey(bytes([255]) + i.to_bytes(KEY_BYTES - 1, "big")) for i in range(LOOKED_UP)]
    clock = SystemClock()
    taken, cpu = [], []
    with closing(store_at(server, "http")) as store:
        for _ in range(LOOKUPS):
            start, used = time.perf_counter(), time.process_time()
            found = store.contains(keys, Deadline.after(clock, 60))
            taken.append((time.perf_counter() - start) * 1e3)
            cpu.append((time.process_time() - used) * 1e3)
            must(not any(found), "found")
    return {
        "chunks": LOOKED_UP,
        "milliseconds": asdict(Spread.of(taken)),
        "cpu_milliseconds": asdict(Spread.of(cpu)),
    }


def deadlines(server: Double) -> list[dict[str, object]]:
    """What a call gives, and when, whose deadline a server misses."""

    def at(address: str) -> dict[str, str]:
        return {**server.settings, "endpoint": f"http://{address}"}

    def ours(client: str) -> Callable[[str], Closing]:
        return lambda address: store_at(server, client, **at(address))

    stores = {
        "http": ours("http"),
        "awscrt": ours("awscrt"),
        "obstore": lambda address: obstore_at(server, **at(address)),
    }
    return list(late_reads(stores, server))


def measured(scale: Scale, server: Double) -> Iterator[Result]:
    """Every comparison: of speed by the clock, of cost by the CPU."""
    with closing(comparisons(scale, server)) as all_:
        for comparison in all_:
            clock = time.perf_counter if comparison.goal.kind == "speed" else time.process_time
            yield compare(comparison, scale.rounds, turn=scale.turn, clock=clock)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and write the JSON. The exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tiers.s3", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="tiny sizes: only to see it work")
    parser.add_argument("--rounds", type=int, help="turns that each side takes, two at least")
    parser.add_argument("--output", type=Path, default=HERE / "results" / "s3.json")
    asked = parser.parse_args(arguments)
    scale = QUICK if asked.quick else FULL
    if asked.rounds is not None:
        scale = replace(scale, rounds=asked.rounds)
    console = Console()
    machine = describe(HERE)
    results: list[Result] = []
    with Double(trusting=True) as server:
        results += measured(scale, server)
        looked_up = lookup(server)
        late = deadlines(server)
    with tempfile.TemporaryDirectory() as folder:
        certificate = Certificate(Path(folder))
        with Double(trusting=True, certificate=certificate) as server:
            results += measured(scale, server)
    console.print(table(results))
    console.print(looked_up)
    console.print(late)
    run = {
        "format": FORMAT,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "quick": asked.quick,
        "rounds": scale.rounds,
        "machine": machine,
        "versions": versions()
        | {name: version(name) for name in ("hexkv-s3", "hexkv-obstore", "awscrt", "obstore")},
        "results": [to_json(result) for result in results],
        "lookup": looked_up,
        "deadlines": late,
    }
    asked.output.write_text(json.dumps(run, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
