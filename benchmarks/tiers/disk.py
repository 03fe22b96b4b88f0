"""Storing to disk and loading from it, against the bare copy and the bare file I/O.

All of it is buffered: files are new when they are written, and in the page cache when they
are read, on both sides alike; no side waits for the medium. One row more reads what the page
cache has forgotten.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import xxhash

from benchmarks.rig.devices import BareCopy, contiguous
from benchmarks.rig.engines import buffers, disk_tier, engine, prompt
from benchmarks.rig.machine import forget
from benchmarks.rig.measure import Comparison, Goal, Turn, must
from benchmarks.rig.scale import Scale
from benchmarks.tiers.direct import WORKERS, BareOverlap

SHARE = 0.85
"""Of the speed of copying and bare I/O that is wanted."""

COLD = 0.9
"""Likewise, where nothing is in the page cache."""


@dataclass(frozen=True, slots=True)
class BareFiles:
    """One file per chunk, through one buffer, which is still in the CPU's cache."""

    folder: Path
    buffer: memoryview
    copies: Sequence[BareCopy]

    def write(self, *, reserve: bool) -> None:
        """Copy each chunk into the buffer, and write it to a new file that is then renamed.

        With *reserve* the file's blocks are taken beforehand, which makes ext4 faster.
        """
        for i, copy in enumerate(self.copies):
            copy.gather()
            aside = self.folder / f"{i}.tmp"
            file = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
            try:
                if reserve:
                    os.posix_fallocate(file, 0, len(self.buffer))
                done = 0
                while done < len(self.buffer):
                    done += os.pwrite(file, self.buffer[done:], done)
            finally:
                os.close(file)
            os.replace(aside, self.folder / str(i))

    def read(self, *, verify: bool) -> None:
        """Read each file into the buffer, and copy it to the device.

        With *verify* the checksum that guards frames is computed in between.
        """
        for i, copy in enumerate(self.copies):
            file = os.open(self.folder / str(i), os.O_RDONLY)
            try:
                done = 0
                while done < len(self.buffer):
                    got = os.preadv(file, [self.buffer[done:]], done)
                    must(got > 0, "a file is too short")
                    done += got
            finally:
                os.close(file)
            if verify:
                xxhash.xxh3_128_digest(self.buffer)
            copy.scatter()

    def clear(self) -> None:
        """Remove all files, and with them what the system was still to write of them."""
        for path in self.folder.iterdir():
            path.unlink()


def disk(scale: Scale, folder: Path) -> Generator[Comparison, None, None]:
    """Store and retrieve through an engine of nothing but a disk tier."""
    chunk = scale.layout.chunk_bytes(scale.chunk)
    count = scale.disk_chunks
    tokens = prompt(count * scale.chunk)
    device = contiguous(scale.layout, len(tokens), scale.chunk)
    bare_folder = folder / "bare"
    bare_folder.mkdir()
    with (
        engine(scale.layout, scale.chunk, scale.pool_chunks, disk_tier(folder / "tier")) as cache,
        buffers(1, chunk) as (buffer,),
    ):
        bare = BareFiles(bare_folder, buffer, [device.bare(i, buffer) for i in range(count)])

        def clear() -> None:
            # Both sides: what one has written must not be written back on the other's time.
            cache.clear()
            bare.clear()

        def store() -> None:
            report = cache.store(tokens, device.window)
            must(report.stored_tokens == len(tokens), f"incomplete: {report}")

        def retrieve() -> None:
            report = cache.retrieve(tokens, device.window)
            must(report.loaded_tokens == len(tokens), f"incomplete: {report}")

        size = count * chunk
        for limit, reserve, bound in (
            ("gather, pwrite, rename", False, SHARE),
            ("gather, fallocate, pwrite, rename", True, None),
        ):
            yield Comparison(
                "disk: store",
                limit,
                size,
                Turn(store, before=clear),
                Turn(partial(bare.write, reserve=reserve), before=clear),
                Goal("speed", bound),
            )

        clear()
        store()
        bare.write(reserve=True)
        os.sync()
        original = device.fingerprint()
        for limit, verify, bound in (
            ("pread, scatter", False, SHARE),
            ("pread, XXH3, scatter", True, None),
        ):
            yield Comparison(
                "disk: retrieve",
                limit,
                size,
                Turn(retrieve),
                Turn(partial(bare.read, verify=verify)),
                Goal("speed", bound),
            )
        with (
            buffers(WORKERS, chunk) as ring,
            ThreadPoolExecutor(WORKERS) as pool,
        ):
            copies = [device.bare(i, ring[i % WORKERS]) for i in range(count)]
            cold = BareOverlap(bare_folder, ring, copies, pool, flags=0)
            for limit, read, wanted in (
                ("pread and scatter, overlapped", cold.read, COLD),
                ("pread, XXH3 and scatter, overlapped", replace(cold, verify=True).read, None),
            ):
                yield Comparison(
                    "disk: retrieve, cold",
                    limit,
                    size,
                    Turn(retrieve, before=partial(forget, folder)),
                    Turn(read, before=partial(forget, folder)),
                    Goal("speed", wanted),
                )
        device.wipe()
        retrieve()
        must(device.fingerprint() == original, "other KV came back than was stored")
