"""Chunks between pages and pinned memory, beside one copy of as many bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import product

import torch

from benchmarks.gpu.timing import (
    Rate,
    Size,
    check_pages,
    finish,
    pages_of,
    pinned,
    rate,
    scattered_slots,
    window_on,
)
from hexkv.ports import DeviceKV, Span, Transfer

_LIMIT = "one copy from or to pinned memory"
_BULK = {"gather": 0.95, "scatter": 0.96}
_LAYERS = {"gather": 0.93, "scatter": 0.95}
_RUNS = {16: 0.55, 256: 0.8}
"""By bytes of a run; of all others ``_GOAL``."""

_GOAL = 0.9

Move = Callable[..., Transfer]


def _moved(move: Move, spans: list[Span]) -> None:
    finish(move(spans))


class Paged:
    """Pages, chunks in pinned memory, and as much memory of the device for the limit."""

    def __init__(self, device: torch.device, size: Size) -> None:
        self.device, self.size = device, size
        tokens = size.chunk * size.chunks
        self.layout = size.layout
        self.pages = pages_of(self.layout, 2 * tokens // size.block, size.block, device)
        self.slots = scattered_slots(tokens // size.block, size.block)
        self.bytes = self.layout.chunk_bytes(tokens)
        # The region is kept for as long as its memory is looked at.
        self.region, self.host = pinned(device, self.bytes)
        one = self.layout.chunk_bytes(size.chunk)
        self.spans = [
            Span(
                at * size.chunk,
                (at + 1) * size.chunk,
                self.region.buffer[at * one : (at + 1) * one],
            )
            for at in range(size.chunks)
        ]
        self.there = torch.empty(self.bytes, dtype=torch.uint8, device=device)

    def window(self, *, direct: bool = False) -> DeviceKV:
        return window_on(self.device, self.layout, self.pages, self.slots, direct=direct)

    def check(self, window: DeviceKV) -> None:
        """There and back again, each time over other bytes than it should leave."""
        self.host.zero_()
        finish(window.gather(self.spans))
        check_pages(self.pages, self.slots, self.spans)
        for planes in self.pages:
            for page in planes:
                page.add_(1)
        finish(window.scatter(self.spans))
        check_pages(self.pages, self.slots, self.spans)

    def out(self) -> None:
        self.host.copy_(self.there, non_blocking=True)

    def into(self) -> None:
        self.there.copy_(self.host, non_blocking=True)


def bulk(device: torch.device, size: Size) -> Iterator[Rate]:
    """All layers of all chunks in one call."""
    paged = Paged(device, size)
    what = f"{size.chunks} chunks of {paged.layout.chunk_bytes(size.chunk) >> 20} MiB"
    for way, direct in (("", False), (", by the kernel itself", True)):
        window = paged.window(direct=direct)
        paged.check(window)
        for name, move, copy in (
            ("gather", window.gather, paged.out),
            ("scatter", window.scatter, paged.into),
        ):
            yield rate(
                device,
                size.repeats,
                f"paged {name}{way}, {what}",
                partial(_moved, move, paged.spans),
                (_LIMIT, copy),
                size=paged.bytes,
                goal=0.0 if direct else _BULK[name],
            )


def layers(device: torch.device, size: Size) -> Iterator[Rate]:
    """One layer of all chunks in each call, the next one queued behind it."""
    paged = Paged(device, size)
    window = paged.window()
    paged.check(window)
    each = [range(layer, layer + 1) for layer in range(size.layers)]
    for name, move, copy in (
        ("gather", window.gather, paged.out),
        ("scatter", window.scatter, paged.into),
    ):

        def by_layers(move: Move = move) -> None:
            for transfer in [move(paged.spans, one) for one in each]:
                finish(transfer)

        yield rate(
            device,
            size.repeats,
            f"paged {name} by {size.layers} layers of {size.chunks} chunks",
            by_layers,
            (_LIMIT, copy),
            size=paged.bytes,
            goal=_LAYERS[name],
        )


def pieces(device: torch.device, size: Size) -> Iterator[Rate]:
    """The same bytes in ever larger runs: of a token's head, a token, a block."""
    few = size.layers <= 2
    shapes = [  # heads, width, tokens of a block, tokens of a chunk, chunks, layers
        (1, 8, 1, 4096, 16, 4),  # 16 B
        (1, 128, 1, 1024, 16, 4),  # 256 B
        (8, 128, 1, 1024, 8, 8),  # 2 KiB
        (8, 128, 16, 1024, 8, 8),  # 32 KiB
        (8, 128, 256, 1024, 8, 8),  # 512 KiB
        (8, 128, 16_384, 16_384, 1, 4),  # 32 MiB
    ]
    if few:
        shapes = [(1, 8, 1, 16, 2, 2), (2, 16, 8, 16, 2, 2)]
    for heads, width, block, chunk, chunks, deep in shapes:
        of = replace(
            size, layers=deep, heads=heads, width=width, block=block, chunk=chunk, chunks=chunks
        )
        paged = Paged(device, of)
        run = heads * width * block * 2
        for (name, forth), direct in product((("gather", True), ("scatter", False)), (False, True)):
            window = paged.window(direct=direct)
            if forth:
                paged.check(window)
            move = window.gather if forth else window.scatter
            yield rate(
                device,
                of.repeats,
                f"{name} in runs of {run:,} B, {paged.bytes / 1e6:.1f} MB"
                + (", by the kernel itself" if direct else ""),
                partial(_moved, move, paged.spans),
                (_LIMIT, paged.out if forth else paged.into),
                size=paged.bytes,
                goal=0.0 if direct else _RUNS.get(run, _GOAL),
            )
