"""Storing to memory and loading from it, against the bare strided copy of the same bytes."""

from __future__ import annotations

from collections.abc import Generator

from benchmarks.rig.devices import Device, contiguous, one_by_one, paged
from benchmarks.rig.engines import buffers, memory_engine, prompt
from benchmarks.rig.measure import Comparison, Goal, Turn, must
from benchmarks.rig.scale import Scale

SHARE = 0.95
"""Of the bare copy's speed that is wanted."""


def memory(scale: Scale) -> Generator[Comparison, None, None]:
    """Store and retrieve, from contiguous KV and from paged KV."""
    tokens = scale.memory_chunks * scale.chunk
    for form in (contiguous, paged):
        device = form(scale.layout, tokens, scale.chunk)
        yield from _with(device, f"memory, {form.__name__}", scale)


def _with(device: Device, name: str, scale: Scale) -> Generator[Comparison, None, None]:
    chunk = scale.layout.chunk_bytes(scale.chunk)
    count = scale.memory_chunks
    tokens = prompt(count * scale.chunk)
    with (
        memory_engine(scale.layout, scale.chunk, count) as cache,
        buffers(count, chunk) as copies,
    ):
        bare = [device.bare(i, copies[i]) for i in range(count)]

        def store() -> None:
            report = cache.store(tokens, device.window)
            must(report.stored_tokens == len(tokens), f"incomplete: {report}")

        def retrieve() -> None:
            report = cache.retrieve(tokens, device.window)
            must(report.loaded_tokens == len(tokens), f"incomplete: {report}")

        gather, scatter = one_by_one(bare)

        size, goal = count * chunk, Goal("speed", SHARE)
        fresh = Turn(store, before=cache.clear)
        yield Comparison(f"{name}: store", "bare gather", size, fresh, Turn(gather), goal)

        original = device.fingerprint()
        yield Comparison(
            f"{name}: retrieve", "bare scatter", size, Turn(retrieve), Turn(scatter), goal
        )
        device.wipe()
        retrieve()
        must(device.fingerprint() == original, "other KV came back than was stored")
