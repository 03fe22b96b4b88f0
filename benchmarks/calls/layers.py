"""Loading and storing layer by layer, beside the same in bulk and beside a host that computes."""

from __future__ import annotations

import time
from collections.abc import Generator
from functools import partial
from pathlib import Path

from benchmarks.rig.devices import Device, contiguous
from benchmarks.rig.engines import TokenArray, direct_tier, disk_tier, engine, memory_engine, prompt
from benchmarks.rig.measure import Comparison, Goal, Turn, must
from benchmarks.rig.scale import Scale
from hexkv.core.engine.engine import CacheEngine

LONGER = 1.5
"""How long the host computes, as a multiple of the time that loading takes."""

SHOWN = 0.2
"""The share of a load's time that may be left for the host to wait."""


class Loading:
    """A prompt's load in bulk, layer by layer, and beside a host that computes each layer."""

    def __init__(self, cache: CacheEngine, tokens: TokenArray, device: Device) -> None:
        self._cache = cache
        self._tokens = tokens
        self._window = device.window
        self._layers = device.window.layout.layers
        self._compute = 0.0
        self.computed = 0.0
        """Seconds that the host computed during the last load."""

    def bulk(self) -> None:
        """Load all layers at once."""
        report = self._cache.retrieve(self._tokens, self._window)
        must(report.loaded_tokens == len(self._tokens), f"incomplete: {report}")

    def by_layers(self) -> None:
        """Load layer after layer, and do nothing in between."""
        self._load(0.0)

    def calibrate(self) -> None:
        """Have the host compute for as long as it should, by what a bulk load takes now."""
        start = time.perf_counter()
        self.bulk()
        self._compute = LONGER * (time.perf_counter() - start) / self._layers

    def beside(self) -> None:
        """Load while the host computes. It sleeps: its processor is another, as a GPU is."""
        self.computed = 0.0
        self._load(self._compute)

    def _load(self, seconds: float) -> None:
        with self._cache.retrieve_layers(self._tokens, self._window) as layers:
            for _ in layers:
                if seconds:
                    start = time.perf_counter()
                    time.sleep(seconds)
                    self.computed += time.perf_counter() - start
            report = layers.result()
        must(report.loaded_tokens == len(self._tokens), f"incomplete: {report}")


def layers(scale: Scale, folder: Path) -> Generator[Comparison, None, None]:
    """From memory, and from disk through the page cache and past it."""
    count = scale.disk_chunks // 2
    tokens = prompt(count * scale.chunk)
    device = contiguous(scale.layout, len(tokens), scale.chunk)
    size = count * scale.layout.chunk_bytes(scale.chunk)
    shape = scale.layout, scale.chunk
    opened = {
        "memory": partial(memory_engine, *shape, count),
        "disk": partial(engine, *shape, scale.pool_chunks, disk_tier(folder / "layers")),
        "disk, direct": partial(engine, *shape, scale.pool_chunks, direct_tier(folder / "direct")),
    }
    for name, opening in opened.items():
        with opening() as cache:
            cache.store(tokens, device.window)
            yield from _loads(name, Loading(cache, tokens, device), size)
            if name == "memory":
                yield _store(cache, tokens, device, size)


def _loads(name: str, loading: Loading, size: int) -> Generator[Comparison, None, None]:
    goal = Goal("cost", 1.05) if name == "memory" else Goal("cpu", 1.2)
    yield Comparison(
        f"{name}: retrieve by layers",
        "retrieve in bulk",
        size,
        Turn(loading.by_layers),
        Turn(loading.bulk),
        goal,
    )
    yield Comparison(
        f"{name}: retrieve by layers, what a host waits that computes {LONGER:g} times as long",
        "retrieve in bulk",
        size,
        Turn(loading.beside, before=loading.calibrate, aside=lambda: loading.computed),
        Turn(loading.bulk),
        Goal("cost", SHOWN),
    )


def _store(cache: CacheEngine, tokens: TokenArray, device: Device, size: int) -> Comparison:
    def bulk() -> None:
        report = cache.store(tokens, device.window)
        must(report.stored_tokens == len(tokens), f"incomplete: {report}")

    def by_layers() -> None:
        with cache.store_layers(tokens, device.window) as storing:
            for layer in range(device.window.layout.layers):
                storing.layer_done(layer)
            report = storing.result()
        must(report.stored_tokens == len(tokens), f"incomplete: {report}")

    return Comparison(
        "memory: store by layers",
        "store in bulk",
        size,
        Turn(by_layers, before=cache.clear),
        Turn(bulk, before=cache.clear),
        Goal("cost"),
    )
