"""Encoded chunks loaded into pages and decoded on the device, beside raw ones over the bus."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import numpy as np
import torch

from benchmarks.gpu.copies import Paged
from benchmarks.gpu.timing import Rate, Size, Value, check_pages, finish, on_gpu, pinned, rate
from hexkv.adapters.cachegen.cachegen import LEVELS, CacheGen
from hexkv.adapters.cachegen.lowbit import CODECS
from hexkv.adapters.cachegen.serde import LossySerde
from hexkv.adapters.lossless.rans import RansSerde
from hexkv.kernels.coding.choosing import Choice, LowBitChoice
from hexkv.ports import EncodedSpan, Serde, Span, SupportsEncodedLayers

_GOALS = {"cachegen": 2.8, "int8": 1.7, "fp8": 1.7, "int4": 2.5, "rans": 1.3}
"""Of raw chunks."""

_ENCODED = 4
"""Chunks that are encoded; the others are these once more."""

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
    layout, tokens = paged.layout, size.chunk
    window = cast("SupportsEncodedLayers", paged.window())
    finish(paged.window().gather(paged.spans))
    choices = Choice(), LowBitChoice()
    if on_gpu(device):
        for choice in choices:
            choice.wait(_COMPILE_SECONDS)
    for name, serde in (
        ("cachegen", LossySerde(CacheGen(LEVELS["default"], choices[0]))),
        *((name, LossySerde(codec(choices[1]))) for name, codec in CODECS.items()),
        ("rans", RansSerde(choices[0])),
    ):
        region, host = pinned(
            device, len(paged.spans) * (serde.bound(layout.chunk_bytes(tokens)) + _ALIGNED)
        )
        spans: list[EncodedSpan] = []
        at = 0
        for number, (start, end, data) in enumerate(paged.spans):
            room = region.buffer[at : at + serde.bound(len(data))]
            if number < _ENCODED:
                used = serde.encode(data, layout, tokens, room)
            else:  # the host takes a second for each
                again = spans[number % _ENCODED].payload
                used = len(again)
                room[:used] = again
            spans.append(EncodedSpan(start, end, room[:used]))
            at += -(-used // _ALIGNED) * _ALIGNED
        finish(window.scatter_encoded(serde, spans))
        for span in spans:
            raw = np.empty(layout.chunk_bytes(tokens), np.uint8)
            serde.decode(span.payload, layout, tokens, raw.data)
            check_pages(paged.pages, paged.slots, [Span(span.start, span.end, raw.data)])
        yield Value(
            f"{name}: bytes of a raw one",
            round(sum(len(s.payload) for s in spans) / paged.bytes, 3),
        )

        def load(serde: Serde = serde, spans: list[EncodedSpan] = spans) -> None:
            finish(window.scatter_encoded(serde, spans))

        def by_layers(serde: Serde = serde, spans: list[EncodedSpan] = spans) -> None:
            each = (range(layer, layer + 1) for layer in range(size.layers))
            for queued in [window.scatter_encoded_layers(serde, spans, one) for one in each]:
                finish(queued)

        limit = "raw chunks loaded", lambda: finish(paged.window().scatter(paged.spans))
        for way, run, goal in (("", load, _GOALS[name]), (", layer by layer", by_layers, 1.0)):
            yield rate(
                device,
                size.repeats,
                f"{name}: load, decoded on the device{way}",
                run,
                limit,
                size=paged.bytes,
                goal=goal,
            )
        del host
        # Freed after its last use.
        del region
