"""``python -m benchmarks.tiers.mooncake``: the Mooncake adapter beside the library's bare calls.

A master and a storage node of its own listen on loopback, in a network of their own where
that is allowed. Both sides move the same chunks between the same registered memory and the
same node; a plain TCP connection over loopback is the machine's limit.
"""

from __future__ import annotations

import argparse
import json
import socket
import sys
import tempfile
from collections.abc import Generator, Sequence
from contextlib import ExitStack, closing
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from threading import Thread

from rich.console import Console

from benchmarks.rig.engines import Buffers
from benchmarks.rig.machine import describe, versions
from benchmarks.rig.measure import Comparison, Goal, Turn, compare, must
from benchmarks.rig.report import FORMAT, table, to_json
from benchmarks.rig.scale import FULL, QUICK, Scale
from hexkv.adapters.mooncake._native import Client, library
from hexkv.adapters.mooncake.plugin import MooncakeSettings, hexkv_adapters
from hexkv.adapters.mooncake.store import MooncakeStore
from hexkv.plugins.clock import SystemClock
from hexkv.plugins.memory.mapping import MmapMemory
from hexkv.plugins.spec import OpenContext
from hexkv.ports import KEY_BYTES, PAGE, ChunkKey, Deadline, Hit, Item, MemoryRegion, Stored

HERE = Path(__file__).resolve().parents[1]
CHUNKS = 4


class Pipe:
    """Two ends of one TCP connection over loopback, the far one drained or fed by a thread."""

    def __init__(self, size: int) -> None:
        self._size = size
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.near = socket.create_connection(listener.getsockname())
            self.far, _ = listener.accept()
        self._room = memoryview(bytearray(size))

    def send(self, frames: Sequence[memoryview]) -> None:
        """Bring every frame to the other end."""
        far = Thread(target=self._drain, args=(self.far, len(frames)))
        far.start()
        for frame in frames:
            self.near.sendall(frame)
        far.join()

    def receive(self, frames: Sequence[memoryview]) -> None:
        """Fill every frame from the other end."""

        def send() -> None:
            for _ in frames:
                self.far.sendall(self._room)

        far = Thread(target=send)
        far.start()
        for frame in frames:
            must(self.near.recv_into(frame, 0, socket.MSG_WAITALL) == self._size, "cut short")
        far.join()

    def close(self) -> None:
        """Hang up."""
        self.near.close()
        self.far.close()

    def _drain(self, end: socket.socket, times: int) -> None:
        for _ in range(times):
            got = end.recv_into(self._room, 0, socket.MSG_WAITALL)
            must(got == self._size, "cut short")


def bare_client(address: str, region: MemoryRegion) -> Client:
    """The library's own client, the region registered."""
    client = library().MooncakeDistributedStore()
    code = client.setup("127.0.0.1", "P2PHANDSHAKE", 0, 16 << 20, "tcp", "", address)
    must(code == 0, f"setup gave {code}")
    must(client.register_buffer(region.address, len(region.buffer)) == 0, "not registered")
    return client


def store_at(address: str, region: MemoryRegion) -> MooncakeStore:
    """A store as a configuration opens it."""
    spec = next(spec for spec in hexkv_adapters() if spec.kind == "store")
    settings = MooncakeSettings(address, prefix="bench:")
    store = spec.open(settings, OpenContext(SystemClock()))
    must(isinstance(store, MooncakeStore), "another store")
    store.register(region)  # type: ignore[attr-defined]  # what must() has checked
    return store  # type: ignore[return-value]  # the same


def comparisons(scale: Scale, address: str) -> Generator[Comparison, None, None]:
    """Writing and reading chunks, each beside the bare calls and beside plain TCP."""
    size = scale.layout.chunk_bytes(scale.chunk) + PAGE
    clock = SystemClock()
    keys = [ChunkKey(i.to_bytes(KEY_BYTES, "big")) for i in range(CHUNKS)]
    names = [f"bare:{key.hex()}" for key in keys]
    with ExitStack() as opened:
        region = MmapMemory(prefault=True).allocate(CHUNKS * size)
        frames = [region.buffer[i * size : (i + 1) * size] for i in range(CHUNKS)]
        for i, frame in enumerate(frames):
            frame[:] = bytes([i]) * size
        places, sizes = [region.address + i * size for i in range(CHUNKS)], [size] * CHUNKS
        store = opened.enter_context(closing(store_at(address, region)))
        bare = opened.enter_context(closing(bare_client(address, region)))
        pipe = opened.enter_context(closing(Pipe(size)))
        config = library().ReplicateConfig()
        items = [Item(key, frame) for key, frame in zip(keys, frames, strict=True)]
        sink = Buffers(frames)

        def write() -> None:
            outcomes = store.write(items, Deadline.after(clock, 60))
            must(list(outcomes) == [Stored(size)] * CHUNKS, f"not stored: {outcomes}")

        def put() -> None:
            codes = bare.batch_put_from(names, places, sizes, config)
            must(codes == [0] * CHUNKS, f"not put: {codes}")

        def read() -> None:
            outcomes = store.read(keys, sink, Deadline.after(clock, 60))
            must(list(outcomes) == [Hit(size)] * CHUNKS, f"not read: {outcomes}")

        def get() -> None:
            codes = bare.batch_get_into(names, places, sizes)
            must(codes == sizes, f"not got: {codes}")

        def empty() -> None:
            store.delete(keys, Deadline.after(clock, 60))
            bare.batch_remove(names, True)

        def full() -> None:
            empty()
            write()
            put()

        total = CHUNKS * size
        yield Comparison(
            *("mooncake: store", "batch_put_from", total),
            *(Turn(write, empty), Turn(put, empty), Goal("speed", 0.9)),
        )
        yield Comparison(
            *("mooncake: store", "plain TCP", total),
            *(Turn(write, empty), Turn(lambda: pipe.send(frames), empty), Goal("speed")),
        )
        full()
        yield Comparison(
            *("mooncake: retrieve", "batch_get_into", total),
            *(Turn(read), Turn(get), Goal("speed", 0.9)),
        )
        for i, frame in enumerate(frames):
            must(frame[0] == i and frame[-1] == i, "other bytes came back than were stored")
        yield Comparison(
            *("mooncake: retrieve", "plain TCP", total),
            *(Turn(read), Turn(lambda: pipe.receive(frames)), Goal("speed")),
        )
        layers = scale.layout.layers
        part = (size - PAGE) // layers
        starts = [PAGE + part * layer for layer in range(layers)]

        def read_layers() -> None:
            for i, key in enumerate(keys):
                for start in starts:
                    into = frames[i][start : start + part]
                    outcome = store.read_range(key, start, into, Deadline.after(clock, 60))
                    must(outcome == Hit(part), f"not read: {outcome}")

        def get_ranges() -> None:
            for name, place in zip(names, places, strict=True):
                for start in starts:
                    codes = bare.get_into_ranges(
                        [place], [[name]], [[[start]]], [[[start]]], [[[part]]]
                    )
                    must(codes == [[[part]]], f"not got: {codes}")

        yield Comparison(
            *("mooncake: retrieve by layers", "get_into_ranges", CHUNKS * layers * part),
            *(Turn(read_layers), Turn(get_ranges), Goal("speed")),
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and write the JSON. The exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.tiers.mooncake", description=__doc__
    )
    parser.add_argument("--quick", action="store_true", help="tiny sizes: only to see it work")
    parser.add_argument("--output", type=Path, default=HERE / "results" / "mooncake.json")
    asked = parser.parse_args(arguments)
    scale = QUICK if asked.quick else FULL
    sys.path.insert(0, str(HERE.parent / "tests" / "lib"))
    from servers.mooncake_servers import Master, Node, secluded

    machine = describe(HERE)
    with (
        secluded(),
        tempfile.TemporaryDirectory() as folder,
        Master(Path(folder), "--default_kv_lease_ttl=60000") as master,
        Node(Path(folder), master, 1 << 30),
        closing(comparisons(scale, master.address)) as all_,
    ):
        results = [compare(one, scale.rounds, turn=scale.turn) for one in all_]
    Console().print(table(results))
    run = {
        "format": FORMAT,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "quick": asked.quick,
        "rounds": scale.rounds,
        "machine": machine,
        "versions": versions()
        | {n: version(n) for n in ("hexkv-mooncake", "mooncake-transfer-engine-non-cuda")},
        "results": [to_json(result) for result in results],
    }
    asked.output.write_text(json.dumps(run, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
