"""Engines as a configuration builds them, and memory that has been used before."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.rig.devices import contiguous
from benchmarks.rig.measure import must
from benchmarks.rig.scale import THIN, Scale
from hexkv.core.engine.engine import CacheEngine
from hexkv.plugins.composition.compose import build
from hexkv.plugins.configuration.schema import Chunk, EngineSettings, Pool, TierSettings
from hexkv.plugins.memory.mapping import MmapMemory
from hexkv.ports import DeviceKV, KVLayout, Namespace, frame_bytes

VOCABULARY = 128_256
"""Tokens that there are: Llama 3's."""

TURNS = 64
"""Prompts that take turns where each call is to be of another one: more than are kept with their
names."""

TokenArray = npt.NDArray[np.uint32]


def prompt(tokens: int, number: int = 0) -> TokenArray:
    """Random tokens, for each *number* the same every time."""
    return np.random.default_rng(number + 1).integers(0, VOCABULARY, tokens, dtype=np.uint32)


def in_turn(tokens: int, first: int) -> Iterator[list[int]]:
    """Prompts one after the other, and again: those of :data:`TURNS` numbers from *first* on."""
    return cycle([prompt(tokens, number).tolist() for number in range(first, first + TURNS)])


def engine(layout: KVLayout, chunk: int, blocks: int, tier: TierSettings) -> CacheEngine:
    """An engine of one tier over a pool of *blocks* full chunks, with every default kept."""
    settings = EngineSettings(
        chunk=Chunk(size=chunk),
        pool=Pool(bytes=blocks * frame_bytes(layout.chunk_bytes(chunk))),
        tiers=(tier,),
    )
    made = build(settings, Namespace("benchmark", layout))
    assert isinstance(made, CacheEngine), "without a node an engine has tiers of its own"
    return made


def memory_engine(layout: KVLayout, chunk: int, chunks: int) -> CacheEngine:
    """An engine that keeps *chunks* full chunks in memory, and nothing elsewhere."""
    # A memory tier leaves up to a third of the pool to chunks on their way to other tiers.
    return engine(layout, chunk, chunks * 3 // 2 + 4, TierSettings(store="memory"))


def disk_tier(root: Path) -> TierSettings:
    """A tier of files under *root*, through the page cache as the bare I/O is."""
    return TierSettings(store="disk", settings={"root": str(root), "direct": "off"})


def direct_tier(root: Path) -> TierSettings:
    """A tier of files under *root*, past the page cache; refused where that is not possible."""
    return TierSettings(store="disk", settings={"root": str(root), "direct": "on"})


@contextmanager
def buffers(count: int, size: int) -> Iterator[list[memoryview]]:
    """Buffers of the kind of memory that a pool has."""
    with closing(MmapMemory(prefault=True).allocate(count * size)) as region:
        yield [region.buffer[i * size : (i + 1) * size] for i in range(count)]


@dataclass(frozen=True, slots=True)
class Buffers:
    """A sink that always has the same room."""

    frames: Sequence[memoryview]

    def room(self, index: int, size: int) -> memoryview | None:
        """The buffer of that chunk."""
        must(size == len(self.frames[index]), "a frame of another size")
        return self.frames[index]

    def filled(self, index: int, upto: int) -> None:
        """No reader looks at it before it is there."""


@dataclass(frozen=True, slots=True)
class Cached:
    """A long prompt that an engine's memory holds whole."""

    engine: CacheEngine
    tokens: TokenArray
    window: DeviceKV


@contextmanager
def cached(scale: Scale) -> Iterator[Cached]:
    """An engine that holds a prompt of ``scale.prompt`` tokens, of little KV each."""
    tokens = prompt(scale.prompt)
    window = contiguous(THIN, len(tokens), scale.chunk).window
    blocks = len(tokens) // scale.chunk
    with memory_engine(THIN, scale.chunk, blocks) as opened:
        must(opened.store(tokens, window).stored_tokens == len(tokens), "the prompt was not stored")
        yield Cached(opened, tokens, window)
