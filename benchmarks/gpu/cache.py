"""A whole cache on a GPU: retrieve and store beside one pinned copy, and hits by tier.

Everything that a host's call takes is in it: keys, leases, copies, and the wait for them.
"""

from __future__ import annotations

import mmap
import os
import random
import time
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event, Thread
from typing import Any, TypeAlias

import torch

from benchmarks.gpu.timing import Rate, Size, Value, bare_copy, pages_of, rate, window_on
from benchmarks.rig.nodes import served
from hexkv.api import Cache, open_cache
from hexkv.ports import DeviceKV, HexKVError

_LIMIT = "one copy from or to pinned memory"

_LONG = 8
"""Times as many tokens of a long prompt, and threads."""

_SHORT = 16
"""Tokens of short chunks."""

_SECONDS = 60.0

_TICK = 50e-6
"""Seconds that a ticking thread sleeps: with the kernel's slack some 0.1 ms."""

_STORES = 10

_READERS = 4
"""Threads that read files, as many as a disk tier has."""

Run: TypeAlias = Callable[..., Iterable[Any]]
"""As ``map``."""


class Prompts:
    """New prompts of one length, and windows on pages for as many at a time."""

    def __init__(self, device: torch.device, size: Size, chunks: int, at_once: int = 1) -> None:
        self.tokens = size.chunk * chunks
        self.bytes = size.layout.chunk_bytes(self.tokens)
        blocks = self.tokens // size.block
        pages = self._pages = pages_of(size.layout, at_once * blocks, size.block, device)
        order = torch.randperm(at_once * blocks)
        slots = (order[:, None] * size.block + torch.arange(size.block)).flatten()
        self.windows: Sequence[DeviceKV] = [
            window_on(device, size.layout, pages, slots[at : at + self.tokens])
            for at in range(0, len(slots), self.tokens)
        ]
        self._dice = random.Random(0)

    def new(self) -> list[int]:
        """Draw one, in a hundredth of the time that storing its KV takes."""
        return array("H", self._dice.randbytes(2 * self.tokens)).tolist()

    def check(self, cache: Cache, kept: Sequence[list[int]]) -> None:
        """Load what was stored of all windows over zeros.

        Raises:
            AssertionError: other bytes came back, so nothing is measured.
        """
        stored = [[page.clone() for page in planes] for planes in self._pages]
        for planes in self._pages:
            for page in planes:
                page.zero_()
        for prompt, window in zip(kept, self.windows, strict=True):
            assert cache.retrieve(prompt, window).hit_tokens == self.tokens
        for planes, before in zip(self._pages, stored, strict=True):
            assert all(map(torch.equal, planes, before)), "other bytes than were stored"


def _cache(size: Size, stored: int, tiers: Sequence[object], **more: object) -> Cache:
    """A cache with pinned memory for *stored* bytes, and half as much again."""
    pool = stored * 3 // 2 + (64 << 20)
    config = {
        "chunk": {"size": size.chunk},
        "pool": {"bytes": pool, "provider": "pinned"},
        "tiers": list(tiers),
        "deadlines": dict.fromkeys(("lookup", "retrieve", "store"), _SECONDS),
        "compute_rate": 1e-3,  # what is slow is measured, too
    }
    return open_cache(config | more, model="benchmark", layout=size.layout)


def engine(device: torch.device, size: Size) -> Iterator[Rate | Value]:
    """Retrieve and store of a short and a long prompt, by several threads, and of short chunks."""
    short = replace(size, chunk=min(size.chunk, _SHORT), chunks=size.chunks * size.chunk // _SHORT)
    for name, of, chunks, threads, goals in (
        ("", size, size.chunks, 1, (0.9, 0.9)),
        ("", size, size.chunks * _LONG, 1, (0.95, 0.93)),
        (f" by {_LONG} threads", size, size.chunks, _LONG, (0.93, 0.0)),
        (f" in chunks of {short.chunk}", short, max(1, short.chunks), 1, (0.8, 0.8)),
    ):
        prompts = Prompts(device, of, chunks, threads)
        what = f"{prompts.tokens:,} tokens{name}"
        bare, copy, region = bare_copy(device, prompts.bytes)
        moved = threads * prompts.bytes
        with _cache(of, 2 * moved, [{"store": "memory"}]) as cache, ExitStack() as opened:
            run: Run = map
            if threads > 1:
                run = opened.enter_context(ThreadPoolExecutor(threads)).map
            kept = [prompts.new() for _ in prompts.windows]

            def store(cache: Cache = cache, prompts: Prompts = prompts, run: Run = run) -> None:
                new = [prompts.new() for _ in prompts.windows]
                for report in run(cache.store, new, prompts.windows):
                    assert report.stored_tokens == prompts.tokens, report

            def retrieve(
                cache: Cache = cache,
                prompts: Prompts = prompts,
                run: Run = run,
                kept: list[list[int]] = kept,
            ) -> None:
                for found in run(cache.retrieve, kept, prompts.windows):
                    assert found.hit_tokens == prompts.tokens, found

            limit = _LIMIT, copy
            repeats = max(1, size.repeats // 4)
            for way, path, goal in (
                ("store", store, goals[1]),
                ("retrieve", retrieve, goals[0]),
            ):
                if way == "retrieve":
                    for prompt, window in zip(kept, prompts.windows, strict=True):
                        cache.store(prompt, window)
                    prompts.check(cache, kept)
                yield rate(
                    device,
                    repeats,
                    f"{way} {what}",
                    path,
                    limit,
                    size=moved,
                    limit_size=bare,
                    goal=goal,
                )
            if not name and chunks == size.chunks:
                yield _gaps(cache, prompts)
        del region


def _gaps(cache: Cache, prompts: Prompts) -> Value:
    """The gaps of a thread that ticks beside stores which nothing waits for, as a step's does."""
    gaps: list[float] = []
    over = Event()
    # Drawn before: it keeps the interpreter's lock for milliseconds, and is no part of a store.
    drawn = [prompts.new() for _ in range(_STORES)]

    def tick() -> None:
        last = time.perf_counter()
        while not over.is_set():
            time.sleep(_TICK)
            now = time.perf_counter()
            gaps.append(1000 * (now - last))
            last = now

    thread = Thread(target=tick)
    thread.start()
    for prompt in drawn:
        cache.store(prompt, prompts.windows[0], wait=False)
    over.set()
    thread.join()
    gaps.sort()
    found = {"median": gaps[len(gaps) // 2], "99 %": gaps[len(gaps) * 99 // 100], "most": gaps[-1]}
    return Value(f"ms from tick to tick beside stores of {prompts.tokens:,} tokens", found)


def tiers(device: torch.device, size: Size) -> Iterator[Rate | Value]:
    """Hits from disk and from disk past the host beside bare reads, and from a node's memory."""
    prompts = Prompts(device, size, size.chunks)
    kept, [window] = prompts.new(), prompts.windows
    pool = 3 * prompts.bytes + (64 << 20)
    for name in ("disk", "gds", "node"):
        with ExitStack() as opened:
            folder = Path(opened.enter_context(TemporaryDirectory(dir=Path.home())))

            def held(made: Cache, name: str = name, opened: ExitStack = opened) -> Cache:
                """*made*, until the end, with the prompt on its tier."""
                cache = opened.enter_context(made)
                cache.store(kept, window)
                assert cache.flush(_SECONDS), f"{name}: writes are not done"
                prompts.check(cache, [kept])
                return cache

            limit: tuple[str, Callable[[], object]]
            try:
                if name == "node":
                    node = opened.enter_context(served(folder / "node", pool))
                    config = {"node": str(node.socket), "chunk": {"size": size.chunk}}
                    begun = time.perf_counter()
                    made = open_cache(config, model="benchmark", layout=size.layout)
                    seconds = round(time.perf_counter() - begun, 3)
                    yield Value(
                        f"seconds to open a cache over a node of {pool / 1e9:.1f} GB", seconds
                    )
                    cache = held(made)
                    mine = held(_cache(size, 2 * prompts.bytes, [{"store": "memory"}]))
                    same = partial(_hit, mine, prompts, kept)
                    limit, goal = ("the same in one process", same), 0.95
                else:
                    store = {"store": name, "settings": {"root": str(folder / "chunks")}}
                    cache = held(_cache(size, prompts.bytes, [store | {"promote": False}]))
                    reads = opened.enter_context(_direct_reads(folder / "chunks"))
                    limit, goal = ("direct reads by as many threads", reads), 0.9
            except (HexKVError, OSError) as error:
                yield Value(f"{name} tier", f"is not here: {error}")
                continue
            yield rate(
                device,
                max(1, size.repeats // 4),
                f"retrieve {prompts.tokens:,} tokens, {name} tier",
                partial(_hit, cache, prompts, kept),
                limit,
                size=prompts.bytes,
                goal=goal,
            )


def _hit(cache: Cache, prompts: Prompts, kept: list[int]) -> None:
    found = cache.retrieve(kept, prompts.windows[0])
    assert found.hit_tokens == prompts.tokens, found


@contextmanager
def _direct_reads(folder: Path) -> Iterator[Callable[[], object]]:
    """A call that reads all files of *folder* past the page cache, into memory used before."""
    with ExitStack() as opened:
        run = opened.enter_context(ThreadPoolExecutor(_READERS)).map
        files = []
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            file = os.open(path, os.O_RDONLY | os.O_DIRECT)
            opened.callback(os.close, file)
            pages = -(-os.fstat(file).st_size // mmap.PAGESIZE)
            if pages:
                files.append((file, [mmap.mmap(-1, pages * mmap.PAGESIZE)], 0))
        yield lambda: sum(run(os.preadv, *zip(*files, strict=True)))
