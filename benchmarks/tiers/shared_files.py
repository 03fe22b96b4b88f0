"""``python -m benchmarks.tiers.shared_files``: the store ``fs`` beside the file system's own calls.

A local directory stands for the shared one: what a network adds is the same for both sides.
``--store nixl`` measures NIXL's plug-in POSIX so, beside direct I/O.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, cast

from rich.console import Console

from benchmarks.rig.engines import Buffers, buffers
from benchmarks.rig.machine import describe, versions
from benchmarks.rig.measure import Comparison, Goal, Turn, compare, must
from benchmarks.rig.report import FORMAT, table, to_json
from benchmarks.rig.scale import FULL, QUICK, Scale
from hexkv.adapters.local.fs import SharedFileStore
from hexkv.plugins.clock import SystemClock
from hexkv.plugins.discovery.discovery import discover
from hexkv.plugins.spec import OpenContext
from hexkv.ports import KEY_BYTES, ChunkKey, ChunkStore, Deadline, Hit, Item, Stored

HERE = Path(__file__).resolve().parents[1]
CHUNKS = 4


class Side(NamedTuple):
    """The measurements, and how the files beside it are opened."""

    open: Callable[[Path], Any]
    flags: int
    limit: str


def _nixl(root: Path) -> ChunkStore:
    context = OpenContext(SystemClock(), budget=1 << 40)
    return cast("ChunkStore", discover().open("store", "nixl", {"root": str(root)}, context))


SIDES = {
    "fs": Side(lambda root: SharedFileStore(root, SystemClock(), ttl=None), 0, ""),
    "nixl": Side(_nixl, os.O_DIRECT, "direct "),
}


def comparisons(name: str, scale: Scale, root: Path) -> Generator[Comparison, None, None]:
    """Writing new chunks and reading them, beside ``pwrite`` and ``preadv`` of whole files."""
    side = SIDES[name]
    size = scale.layout.chunk_bytes(scale.chunk) + 4096
    clock = SystemClock()
    keys = [ChunkKey(i.to_bytes(KEY_BYTES, "big")) for i in range(CHUNKS)]
    paths = [root / f"bare-{i}" for i in range(CHUNKS)]
    with ExitStack() as opened:
        frames = opened.enter_context(buffers(CHUNKS, size))
        for i, frame in enumerate(frames):
            frame[:] = bytes([i]) * size
        store = opened.enter_context(closing(side.open(root / "store")))
        items = [Item(key, frame) for key, frame in zip(keys, frames, strict=True)]
        sink = Buffers(frames)

        def write() -> None:
            outcomes = store.write(items, Deadline.after(clock, 60))
            must(list(outcomes) == [Stored(size)] * CHUNKS, f"not stored: {outcomes}")

        def bare_write() -> None:
            for path, frame in zip(paths, frames, strict=True):
                file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | side.flags, 0o600)
                must(os.pwrite(file, frame, 0) == size, "a partial write")
                os.close(file)

        def read() -> None:
            outcomes = store.read(keys, sink, Deadline.after(clock, 60))
            must(list(outcomes) == [Hit(size)] * CHUNKS, f"not read: {outcomes}")

        def bare_read() -> None:
            for path, frame in zip(paths, frames, strict=True):
                file = os.open(path, os.O_RDONLY | side.flags)
                must(os.preadv(file, [frame], 0) == size, "a partial read")
                os.close(file)

        def empty() -> None:
            store.delete(keys, Deadline.after(clock, 60))
            for path in paths:
                path.unlink(missing_ok=True)

        total = CHUNKS * size
        yield Comparison(
            *(f"{name}: store", f"{side.limit}pwrite of new files", total),
            *(Turn(write, empty), Turn(bare_write, empty), Goal("speed", 0.9)),
        )
        empty()
        write()
        bare_write()
        yield Comparison(
            *(f"{name}: retrieve", f"{side.limit}preadv of files", total),
            *(Turn(read), Turn(bare_read), Goal("speed", 0.9)),
        )
        for i, frame in enumerate(frames):
            must(frame[0] == i and frame[-1] == i, "other bytes came back than were stored")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and write the JSON. The exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.tiers.shared_files", description=__doc__
    )
    parser.add_argument("--quick", action="store_true", help="tiny sizes: only to see it work")
    parser.add_argument("--store", choices=SIDES, default="fs", help="which is measured")
    parser.add_argument("--output", type=Path, help="JSON; by default in benchmarks/results")
    asked = parser.parse_args(arguments)
    file = "shared_files.json" if asked.store == "fs" else f"{asked.store}_files.json"
    output = asked.output or HERE / "results" / file
    scale = QUICK if asked.quick else FULL
    with (
        tempfile.TemporaryDirectory(dir=HERE) as folder,
        closing(comparisons(asked.store, scale, Path(folder))) as all_,
    ):
        results = [compare(one, scale.rounds, turn=scale.turn) for one in all_]
    Console().print(table(results))
    run = {
        "format": FORMAT,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "quick": asked.quick,
        "rounds": scale.rounds,
        "machine": describe(HERE),
        "versions": versions(),
        "results": [to_json(result) for result in results],
    }
    output.write_text(json.dumps(run, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
