"""Small chunks: a short prompt through a window of its own, and many pages of 16 tokens."""

from __future__ import annotations

from collections.abc import Callable, Generator

import torch

from benchmarks.rig.devices import PAGE_TOKENS, Device, contiguous, one_by_one, paged
from benchmarks.rig.engines import buffers, memory_engine, prompt
from benchmarks.rig.measure import Comparison, Goal, Turn, must
from benchmarks.rig.scale import SLIM, Scale
from hexkv.core.memory.pipelining import Pipelining
from hexkv.ports import DeviceKV, KVLayout, Span, frame_bytes

SHARE = 0.5
"""Of the speed of one call for each plane that is wanted."""


def pages(scale: Scale) -> Generator[Comparison, None, None]:
    """New windows, then pages: their copies alone, and through a whole engine."""
    yield from _short(scale)
    tokens = scale.pages * PAGE_TOKENS
    # One bare copy has all pages in it.
    device = paged(SLIM, tokens, tokens)
    name = f"{scale.pages} pages of {PAGE_TOKENS} tokens"
    with buffers(1, SLIM.chunk_bytes(tokens)) as [whole]:
        bare = device.bare(0, whole)
        yield from _copies(device, name, scale, bare.gather, bare.scatter)
        fresh = device.fresh
        yield from _engine(device, fresh, SLIM, tokens, name, (bare.gather, bare.scatter), SHARE)


def _short(scale: Scale) -> Generator[Comparison, None, None]:
    """A window for each call, as a host makes one for each request."""
    tokens, layout = scale.short, scale.layout
    count = tokens // PAGE_TOKENS
    device = contiguous(layout, tokens, PAGE_TOKENS)
    with buffers(count, layout.chunk_bytes(PAGE_TOKENS)) as rooms:
        bare = [device.bare(i, rooms[i]) for i in range(count)]

        gather, scatter = one_by_one(bare)

        name = f"new window of {tokens} tokens"
        yield from _engine(device, device.fresh, layout, tokens, name, (gather, scatter), None)


def _copies(
    device: Device,
    name: str,
    scale: Scale,
    gather: Callable[[], object],
    scatter: Callable[[], object],
) -> Generator[Comparison, None, None]:
    """What the window alone does, in steps as long as an engine's, from and to slots of a pool."""
    count, size = scale.pages, SLIM.chunk_bytes(PAGE_TOKENS)
    slot = frame_bytes(size)
    step = Pipelining.with_slots(count, slot).run
    for order in ("in order", "in no order"):
        with buffers(1, count * slot) as [region]:
            slots = range(count) if order == "in order" else torch.randperm(count).tolist()
            spans = [
                Span(i * PAGE_TOKENS, (i + 1) * PAGE_TOKENS, region[at * slot :][:size])
                for i, at in enumerate(slots)
            ]
            steps = [spans[start : start + step] for start in range(0, count, step)]
            what = f"{name}, window alone, slots {order}"
            original = device.fingerprint()
            moves = {
                "gather": (device.window.gather, gather, "index_select"),
                "scatter": (device.window.scatter, scatter, "index_copy_"),
            }
            for way, (move, limit, called) in moves.items():
                path = Turn(_each(move, steps))
                goal = Goal("speed", SHARE)
                yield Comparison(f"{what}: {way}", called, count * size, path, Turn(limit), goal)
            device.wipe()
            _each(device.window.scatter, steps)()
            must(device.fingerprint() == original, "other KV came back than was gathered")
            del spans, steps, path, moves


def _each(move: Callable[[list[Span]], object], steps: list[list[Span]]) -> Callable[[], None]:
    def run() -> None:
        for spans in steps:
            move(spans)

    return run


def _engine(
    device: Device,
    fresh: Callable[[], DeviceKV],
    layout: KVLayout,
    count: int,
    name: str,
    bare: tuple[Callable[[], object], Callable[[], object]],
    share: float | None,
) -> Generator[Comparison, None, None]:
    """Store and retrieve of *count* tokens through a whole engine."""
    tokens = prompt(count)
    with memory_engine(layout, PAGE_TOKENS, count // PAGE_TOKENS) as cache:

        def store() -> None:
            report = cache.store(tokens, fresh())
            must(report.stored_tokens == count, f"incomplete: {report}")

        def retrieve() -> None:
            report = cache.retrieve(tokens, fresh())
            must(report.loaded_tokens == count, f"incomplete: {report}")

        size, goal = layout.chunk_bytes(count), Goal("speed", share)
        new = Turn(store, before=cache.clear)
        yield Comparison(f"{name}: store", "bare gather", size, new, Turn(bare[0]), goal)
        original = device.fingerprint()
        loads = Turn(retrieve)
        yield Comparison(f"{name}: retrieve", "bare scatter", size, loads, Turn(bare[1]), goal)
        device.wipe()
        retrieve()
        must(device.fingerprint() == original, "other KV came back than was stored")
