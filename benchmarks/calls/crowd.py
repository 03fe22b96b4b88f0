"""Requests at once, each with a window of its own, against the same requests one after another."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from benchmarks.rig.devices import Device, contiguous
from benchmarks.rig.engines import TokenArray, buffers, disk_tier, engine, memory_engine, prompt
from benchmarks.rig.measure import Comparison, Goal, Turn, must
from benchmarks.rig.scale import Scale
from hexkv.core.engine.engine import CacheEngine
from hexkv.kernels import ContiguousKV
from hexkv.plugins.configuration.schema import TierSettings
from hexkv.ports import KVLayout

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "lib"))

from servers.redis_servers import RedisServer

PROMPTS = 16
CHUNKS = 4
"""Of each prompt."""

POOLS = (8, 31, 93)
"""Blocks of the pool that loads share: fewer than two prompts take, and more than all of them."""

AT_ONCE = (4, 16)

SHARE = 0.85
"""Of the speed of one thread that all of them together are to reach."""


@dataclass(slots=True)
class Requests:
    """Retrieves of prompts that are stored, and how long each took."""

    cache: CacheEngine
    chunk: int
    devices: Sequence[Device]
    prompts: Sequence[TokenArray]
    seconds: list[float] = field(default_factory=list)

    def load(self, i: int) -> None:
        """Load prompt *i* whole, through a window made for it."""
        tokens, device = self.prompts[i], self.devices[i]
        begun = time.perf_counter()
        window = ContiguousKV(device.window.layout, device.tensors)
        report = self.cache.retrieve(tokens, window)
        self.seconds.append(time.perf_counter() - begun)
        must(report.loaded_tokens == len(tokens), f"chunks were lost: {report}")

    def one_by_one(self) -> None:
        """Load all of them in one thread."""
        for i in range(len(self.prompts)):
            self.load(i)

    def at_once(self, threads: ThreadPoolExecutor) -> None:
        """Load all of them, as many at once as there are threads."""
        _all(threads, self.load)

    def forget(self) -> None:
        """Begin to note seconds anew."""
        self.seconds.clear()

    def noted(self) -> dict[str, float]:
        """The middle and the slowest hundredth of the requests since :meth:`forget`."""
        cuts = statistics.quantiles(self.seconds, n=100, method="inclusive")
        return {"p50_seconds": cuts[49], "p99_seconds": cuts[98]}


def crowd(scale: Scale, folder: Path) -> Generator[Comparison, None, None]:
    """Loads from disk and from Redis through pools of several sizes, and loads from memory."""
    layout = scale.small
    length = CHUNKS * scale.chunk
    devices = [contiguous(layout, length, scale.chunk) for _ in range(PROMPTS)]
    prompts = [prompt(length, i) for i in range(PROMPTS)]
    for blocks in POOLS:
        tier = disk_tier(folder / f"crowd-{blocks}")
        with engine(layout, scale.chunk, blocks, tier) as cache:
            name = f"disk, pool of {blocks} blocks"
            yield from _rows(name, Requests(cache, scale.chunk, devices, prompts))
    with RedisServer(folder) as server:
        tier = TierSettings(store="redis", settings={"url": server.url, "prefix": "crowd:"})
        for blocks in POOLS:
            with engine(layout, scale.chunk, blocks, tier) as cache:
                name = f"Redis, pool of {blocks} blocks"
                yield from _rows(name, Requests(cache, scale.chunk, devices, prompts))
                cache.clear()  # for the next pool, whose engine names chunks alike
    with memory_engine(layout, scale.chunk, PROMPTS * CHUNKS) as cache:
        yield from _rows("memory", Requests(cache, scale.chunk, devices, prompts))
    yield from _copies(layout, scale.chunk, devices)


def _copies(
    layout: KVLayout, chunk: int, devices: Sequence[Device]
) -> Generator[Comparison, None, None]:
    """What threads that do nothing but copy make of this machine."""
    size = layout.chunk_bytes(chunk)
    with buffers(PROMPTS * CHUNKS, size) as memory:
        copies = [
            [device.bare(i, memory[number * CHUNKS + i]) for i in range(CHUNKS)]
            for number, device in enumerate(devices)
        ]

        def load(number: int) -> None:
            for copy in copies[number]:
                copy.scatter()

        def one_by_one() -> None:
            for number in range(PROMPTS):
                load(number)

        for count in AT_ONCE:
            with ThreadPoolExecutor(count) as threads:
                yield Comparison(
                    f"bare copies: {count} threads at once",
                    "the same one by one",
                    PROMPTS * CHUNKS * size,
                    Turn(partial(_all, threads, load)),
                    Turn(one_by_one),
                    Goal("speed"),
                )


def _all(threads: ThreadPoolExecutor, load: Callable[[int], None]) -> None:
    list(threads.map(load, range(PROMPTS)))


def _rows(where: str, requests: Requests) -> Generator[Comparison, None, None]:
    originals = [device.fingerprint() for device in requests.devices]
    for tokens, device in zip(requests.prompts, requests.devices, strict=True):
        report = requests.cache.store(tokens, device.window)
        must(report.stored_tokens == len(tokens), f"incomplete: {report}")
    layout = requests.devices[0].window.layout
    size = len(requests.prompts) * CHUNKS * layout.chunk_bytes(requests.chunk)
    for count in AT_ONCE:
        with ThreadPoolExecutor(count) as threads:
            yield Comparison(
                f"{where}: {count} requests at once",
                "the same one by one",
                size,
                Turn(partial(requests.at_once, threads), before=requests.forget),
                Turn(requests.one_by_one),
                Goal("speed", SHARE),
                requests.noted,
            )
    for device in requests.devices:
        device.wipe()
    requests.one_by_one()
    found = [device.fingerprint() for device in requests.devices]
    must(found == originals, "other KV came back than was stored")
