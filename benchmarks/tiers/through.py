"""Storing and loading through a whole engine, beside the bare copy and the bare transfer.

The limit is one thread with one buffer: it copies a chunk and sends it, or receives and copies
it. The engine does the same for each chunk, and names, books and verifies it as well.
"""

from __future__ import annotations

from collections.abc import Callable, Generator

import torch

from benchmarks.rig.devices import contiguous
from benchmarks.rig.engines import buffers, engine, prompt
from benchmarks.rig.measure import Comparison, Goal, Turn, must
from benchmarks.rig.scale import Scale
from hexkv.plugins.configuration.schema import TierSettings
from hexkv.ports import PAGE, frame_bytes

Move = Callable[[int, memoryview], object]
"""Sends a frame by its number, or receives it."""


def through(
    name: str, tier: TierSettings, scale: Scale, put: Move, get: Move, share: float
) -> Generator[Comparison, None, None]:
    """Store and retrieve through an engine of nothing but *tier*.

    Args:
        name: of the tier.
        tier: what the engine has.
        scale: how much is moved.
        put: the bare way out, which must leave the frame where *get* finds it.
        get: the bare way in.
        share: of the limit's speed that is wanted.
    """
    # Of the bare copy: many would wait for each other, and for the process at the other end.
    torch.set_num_threads(1)
    chunk, count = scale.layout.chunk_bytes(scale.chunk), scale.disk_chunks // 2
    tokens = prompt(count * scale.chunk)
    device = contiguous(scale.layout, len(tokens), scale.chunk)
    with (
        engine(scale.layout, scale.chunk, scale.pool_chunks, tier) as cache,
        buffers(1, frame_bytes(chunk)) as (frame,),
    ):
        copies = [device.bare(i, frame[PAGE : PAGE + chunk]) for i in range(count)]

        def store() -> None:
            report = cache.store(tokens, device.window)
            must(report.stored_tokens == len(tokens), f"incomplete: {report}")

        def retrieve() -> None:
            report = cache.retrieve(tokens, device.window)
            must(report.loaded_tokens == len(tokens), f"incomplete: {report}")

        def bare_store() -> None:
            for i, copy in enumerate(copies):
                copy.gather()
                put(i, frame)

        def bare_retrieve() -> None:
            for i, copy in enumerate(copies):
                get(i, frame)
                copy.scatter()

        size, goal = count * chunk, Goal("speed", share)
        path, limit = Turn(store, before=cache.clear), Turn(bare_store, before=cache.clear)
        yield Comparison(f"{name}, engine: store", "gather and send", size, path, limit, goal)
        cache.clear()
        store()
        bare_store()
        original = device.fingerprint()
        path, limit = Turn(retrieve), Turn(bare_retrieve)
        yield Comparison(
            f"{name}, engine: retrieve", "receive and scatter", size, path, limit, goal
        )
        device.wipe()
        retrieve()
        must(device.fingerprint() == original, "other KV came back than was stored")
