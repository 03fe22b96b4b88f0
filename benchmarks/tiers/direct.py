"""Storing to disk and loading from it past the page cache, against the bare overlap of both.

The limit copies with one thread while four others read or write with O_DIRECT, through a
ring of buffers: the limit of a disk and a memory together without any bookkeeping.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import xxhash

from benchmarks.rig.devices import BareCopy, contiguous
from benchmarks.rig.engines import buffers, direct_tier, engine, prompt
from benchmarks.rig.measure import Comparison, Goal, Turn, must
from benchmarks.rig.scale import Scale

SHARE = 0.95
"""Of the speed of copying and direct I/O, overlapped, that is wanted."""

WORKERS = 4
"""What the disk tier has by default."""


@dataclass(frozen=True, slots=True)
class BareOverlap:
    """One file per chunk; chunk *i* passes through buffer ``i % len(ring)``."""

    folder: Path
    ring: Sequence[memoryview]
    copies: Sequence[BareCopy]
    pool: ThreadPoolExecutor
    flags: int = os.O_DIRECT
    """How files are opened, too."""

    verify: bool = False
    """Whether the checksum that guards frames is computed, too: by who copies a chunk into its
    buffer, and by who has read it."""

    def write(self) -> None:
        """Copy each chunk into a free buffer, and have it written during the next copy."""
        writing: deque[Future[None]] = deque()
        for i, copy in enumerate(self.copies):
            if len(writing) == len(self.ring):
                writing.popleft().result()
            copy.gather()
            if self.verify:
                xxhash.xxh3_128_digest(self.ring[i % len(self.ring)])
            writing.append(self.pool.submit(self._write, i))
        for write in writing:
            write.result()

    def read(self) -> None:
        """Have chunks read ahead, and copy each to the device when it is there."""
        reading: deque[Future[None]] = deque()
        for i, copy in enumerate(self.copies):
            while len(reading) < len(self.ring) and i + len(reading) < len(self.copies):
                reading.append(self.pool.submit(self._read, i + len(reading)))
            reading.popleft().result()
            copy.scatter()

    def clear(self) -> None:
        """Remove all files."""
        for path in self.folder.iterdir():
            path.unlink()

    def _write(self, i: int) -> None:
        aside, buffer = self.folder / f"{i}.tmp", self.ring[i % len(self.ring)]
        file = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | self.flags)
        try:
            os.posix_fallocate(file, 0, len(buffer))
            done = 0
            while done < len(buffer):
                done += os.pwrite(file, buffer[done:], done)
        finally:
            os.close(file)
        os.replace(aside, self.folder / str(i))

    def _read(self, i: int) -> None:
        buffer = self.ring[i % len(self.ring)]
        file = os.open(self.folder / str(i), os.O_RDONLY | self.flags)
        try:
            done = 0
            while done < len(buffer):
                got = os.preadv(file, [buffer[done:]], done)
                must(got > 0, "a file is too short")
                done += got
        finally:
            os.close(file)
        if self.verify:
            xxhash.xxh3_128_digest(buffer)


def direct(scale: Scale, folder: Path) -> Generator[Comparison, None, None]:
    """Store and retrieve through an engine of nothing but a disk tier with O_DIRECT."""
    chunk, count = scale.layout.chunk_bytes(scale.chunk), scale.disk_chunks
    tokens = prompt(count * scale.chunk)
    device = contiguous(scale.layout, len(tokens), scale.chunk)
    bare_folder = folder / "bare direct"
    bare_folder.mkdir()
    tier = direct_tier(folder / "direct tier")
    with (
        engine(scale.layout, scale.chunk, scale.pool_chunks, tier) as cache,
        buffers(WORKERS, chunk) as ring,
        ThreadPoolExecutor(WORKERS) as pool,
    ):
        copies = [device.bare(i, ring[i % WORKERS]) for i in range(count)]
        bare = BareOverlap(bare_folder, ring, copies, pool)

        def clear() -> None:
            cache.clear()
            bare.clear()

        def store() -> None:
            report = cache.store(tokens, device.window)
            must(report.stored_tokens == len(tokens), f"incomplete: {report}")

        def retrieve() -> None:
            report = cache.retrieve(tokens, device.window)
            must(report.loaded_tokens == len(tokens), f"incomplete: {report}")

        size, goal = count * chunk, Goal("speed", SHARE)
        summing = replace(bare, verify=True)
        for limit, write, wanted in (
            ("gather and direct pwrite, overlapped", bare.write, goal),
            ("gather, XXH3 and direct pwrite, overlapped", summing.write, Goal("speed")),
        ):
            fresh, bare_write = Turn(store, before=clear), Turn(write, before=clear)
            yield Comparison("disk, direct: store", limit, size, fresh, bare_write, wanted)

        clear()
        store()
        bare.write()
        original = device.fingerprint()
        for limit, read, wanted in (
            ("direct pread and scatter, overlapped", bare.read, goal),
            ("direct pread, XXH3 and scatter, overlapped", summing.read, Goal("speed")),
        ):
            yield Comparison(
                "disk, direct: retrieve", limit, size, Turn(retrieve), Turn(read), wanted
            )
        device.wipe()
        retrieve()
        must(device.fingerprint() == original, "other KV came back than was stored")
