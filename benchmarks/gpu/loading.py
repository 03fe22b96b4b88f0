"""Encoded chunks loaded into pages and decoded on the device, beside raw ones over the bus."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import accumulate
from typing import cast

import torch

from benchmarks.gpu.copies import Paged
from benchmarks.gpu.timing import Rate, Size, Value, check_pages, finish, on_gpu, pinned, rate
from hexkv.adapters.cachegen.cachegen import LEVELS, CacheGen
from hexkv.adapters.cachegen.lowbit import CODECS
from hexkv.adapters.cachegen.serde import LossySerde
from hexkv.adapters.lossless.rans import RansSerde
from hexkv.core.requests.layers.groups import layer_groups
from hexkv.kernels.coding.choosing import Choice, LowBitChoice
from hexkv.ports import EncodedSpan, Serde, Span, SupportsEncodedLayers

_GOALS = {"cachegen": 2.8, "int8": 1.7, "fp8": 1.7, "int4": 2.5, "rans": 1.3}
"""Of raw chunks."""

_ENCODED = 4
"""Chunks that are encoded; the others are these once more: the host takes a second for each."""

_ALIGNED = 4096
"""Payloads begin at pages, as frames do."""

_COMPILE_SECONDS = 60.0
"""How long to wait for numba, where it is: the chunks are encoded on the host."""


def loading(device: torch.device, size: Size) -> Iterator[Rate | Value]:
    """Both ways end in the same pages; the decoded KV is the host's.

    Raises:
        AssertionError: it is not, so nothing is measured.
    """
    paged = Paged(device, size)
    window = cast("SupportsEncodedLayers", paged.window())
    finish(paged.window().gather(paged.spans))
    choices = Choice(), LowBitChoice()
    if on_gpu(device):
        for choice in choices:
            choice.wait(_COMPILE_SECONDS)
    serdes = {
        "cachegen": LossySerde(CacheGen(LEVELS["default"], choices[0])),
        **{name: LossySerde(codec(choices[1])) for name, codec in CODECS.items()},
        "rans": RansSerde(choices[0]),
    }
    limit = "raw chunks loaded", lambda: finish(paged.window().scatter(paged.spans))

    def measured(name: str, run: Callable[[], None], goal: float) -> Rate:
        return rate(device, size.repeats, name, run, limit, size=paged.bytes, goal=goal)

    held: list[_Encoded] = []
    for name, serde in serdes.items():
        chunks = _Encoded(paged, serde)
        held.append(chunks)
        finish(window.scatter_encoded(serde, chunks.spans))
        chunks.check(paged)
        yield Value(f"{name}: bytes of a raw one", round(chunks.bytes / paged.bytes, 3))
        load = partial(_load, window, chunks)
        yield measured(f"{name}: load, decoded on the device", load, _GOALS[name])
    # Afterwards, so that all are measured whole where time is short.
    groups = layer_groups(paged.layout, size.chunk * size.chunks)
    each = [range(layer, layer + 1) for layer in range(size.layers)]
    ways = {"by the groups of layers of a retrieve": groups, "layer by layer": each}
    for way, parts in ways.items():
        for name, chunks in zip(serdes, held, strict=True):
            load = partial(_by_layers, window, chunks, parts)
            yield measured(f"{name}: load, decoded on the device, {way}", load, 1.0)


class _Encoded:
    """Chunks of pages, encoded, in pinned memory."""

    def __init__(self, paged: Paged, serde: Serde) -> None:
        self.serde = serde
        self._made: list[memoryview] = []
        for start, end, data in paged.spans[:_ENCODED]:
            room = memoryview(bytearray(serde.bound(len(data))))
            self._made.append(room[: serde.encode(data, paged.layout, end - start, room)])
        sizes = [len(self._made[number % len(self._made)]) for number in range(len(paged.spans))]
        self.bytes = sum(sizes)
        places = [*accumulate((-(-size // _ALIGNED) * _ALIGNED for size in sizes), initial=0)]
        # The region is kept for as long as its memory is used.
        self._region, _ = pinned(paged.device, places[-1])
        self.spans: list[EncodedSpan] = []
        for number, (start, end, _) in enumerate(paged.spans):
            room = self._region.buffer[places[number] : places[number] + sizes[number]]
            room[:] = self._made[number % len(self._made)]
            self.spans.append(EncodedSpan(start, end, room))

    def check(self, paged: Paged) -> None:
        """Compare the pages with the chunks as the host decodes them."""
        raws = []
        for payload, (start, end, data) in zip(self._made, paged.spans, strict=False):
            raw = memoryview(bytearray(len(data)))
            self.serde.decode(payload, paged.layout, end - start, raw)
            raws.append(raw)
        for number, (start, end, _) in enumerate(paged.spans):
            span = Span(start, end, raws[number % len(raws)])
            check_pages(paged.pages, paged.slots, [span])


def _load(window: SupportsEncodedLayers, chunks: _Encoded) -> None:
    finish(window.scatter_encoded(chunks.serde, chunks.spans))


def _by_layers(window: SupportsEncodedLayers, chunks: _Encoded, parts: Sequence[range]) -> None:
    load = partial(window.scatter_encoded_layers, chunks.serde, chunks.spans)
    for queued in [load(layers) for layers in parts]:
        finish(queued)
