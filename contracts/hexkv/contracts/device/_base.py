"""The common part of the device contract: the fixtures, the spans and the calls."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import NamedTuple, Protocol

import pytest

from hexkv.contracts.doubles import FRESH, ListSink, deadline
from hexkv.contracts.kit.whole import Whole
from hexkv.ports import DeviceKV, KVLayout, Span, SupportsBackground, Transfer

UNITS, LAYERS = 24, 2
"""The least that the window of the ``device`` fixture must have."""

Move = Callable[[Sequence[Span], range], Transfer]
"""Gather or scatter, of some layers."""

Cuts = list[tuple[int, int]]
"""``(start, end)`` of some spans."""


class RawKV(Protocol):
    """The back door: the engine's memory, reached without any method of the window."""

    def get(self, layer: int, plane: int, position: int) -> bytes:
        """The row of the token at *position* of the window: ``heads * width`` elements."""
        ...

    def put(self, layer: int, plane: int, position: int, row: bytes) -> None:
        """Write *row* at that place, as the computing engine does.

        If copies are queued on streams, the write is queued behind the copies requested before.
        """
        ...

    def everything(self) -> bytes:
        """All of the memory, including bytes that no position of the window addresses."""
        ...


class Holed(NamedTuple):
    """A window in which some positions have no place."""

    device: DeviceKV
    raw: RawKV
    """Called only with positions that have a place."""

    holes: Collection[int]
    """The positions without a place: at least one unit, never the first or the last."""


class DeviceCase(Whole):
    """The fixtures that an author gives."""

    @pytest.fixture
    def unit(self) -> int:
        """The number of tokens that are moved together or not at all: over one for opaque blocks.

        Spans start and end between units; positions without a place are whole units.
        """
        return 1

    @pytest.fixture
    def device(self) -> DeviceKV:
        """A window of 24 units or more on two layers or more; every position has a place."""
        raise NotImplementedError(f"give {type(self).__name__} a `device` fixture")

    @pytest.fixture
    def raw(self) -> RawKV:
        """The back door to the memory of this very window."""
        raise NotImplementedError(f"give {type(self).__name__} a `raw` fixture")

    @pytest.fixture
    def holed(self) -> Holed | None:
        """A window with holes, for devices whose positions may have no place."""
        return None


def scaled(cuts: Cuts, unit: int) -> Cuts:
    """*cuts* of units as cuts of tokens."""
    return [(start * unit, end * unit) for start, end in cuts]


SPANS: dict[str, Callable[[int], Cuts]] = {
    "all of it": lambda n: [(0, n)],
    "the first unit": lambda _: [(0, 1)],
    "the last unit": lambda n: [(n - 1, n)],
    "a run inside": lambda n: [(3, n - 2)],
    "chunks and a shorter last one": lambda n: [(i, min(i + 7, n)) for i in range(0, n, 7)],
    "chunks from the last to the first": lambda n: [(i - 4, i) for i in range(n, 3, -4)],
    "with gaps, in no order": lambda n: [(10, 14), (n - 3, n), (1, 2), (4, 9)],
    "single units": lambda n: [(i, i + 1) for i in range(0, n, 2)],
}
"""Disjoint spans of a window of *n* units, by a name of their shape."""


def noise(size: int, seed: int) -> bytes:
    """*size* bytes of every bit pattern, not-numbers included."""
    return Random(seed).randbytes(size)  # noqa: S311 - nothing here is secret


def fill(device: DeviceKV, raw: RawKV, seed: int = 0, without: Collection[int] = ()) -> None:
    """Put noise at every position, through the back door."""
    random = Random(seed)  # noqa: S311 - nothing here is secret
    for layer, planes in enumerate(device.layout.planes):
        for index, plane in enumerate(planes):
            row = plane.heads * plane.width * device.layout.dtype.itemsize
            for position in range(device.tokens):
                if position not in without:
                    raw.put(layer, index, position, random.randbytes(row))


def chunk(device: DeviceKV, raw: RawKV, start: int, end: int) -> bytes:
    """The bytes of ``[start, end)`` as the back door has them, layer-major."""
    return b"".join(
        raw.get(layer, plane, position)
        for layer, planes in enumerate(device.layout.planes)
        for plane in range(len(planes))
        for position in range(start, end)
    )


def put_chunk(device: DeviceKV, raw: RawKV, start: int, end: int, data: bytes) -> None:
    """The other way: put the bytes of ``[start, end)`` back, through the back door."""
    at = 0
    for layer, planes in enumerate(device.layout.planes):
        for index, plane in enumerate(planes):
            row = plane.heads * plane.width * device.layout.dtype.itemsize
            for position in range(start, end):
                raw.put(layer, index, position, data[at : at + row])
                at += row


def layer_bytes(layout: KVLayout, layers: range, tokens: int) -> slice:
    """The byte range of a run of layers in a chunk."""
    if not layers:
        return slice(0, 0)
    return slice(layout.layer_span(layers[0], tokens)[0], layout.layer_span(layers[-1], tokens)[1])


def empty(device: DeviceKV, sink: ListSink, cuts: Cuts) -> list[Span]:
    """Spans to gather into; their data is poisoned and has the sink's guard bytes around it."""
    spans = []
    for index, (start, end) in enumerate(cuts):
        room = sink.room(index, device.layout.chunk_bytes(end - start))
        assert room is not None, "this sink refuses nothing"
        spans.append(Span(start, end, room))
    return spans


def full(device: DeviceKV, sink: ListSink, cuts: Cuts, seed: int) -> list[Span]:
    """Spans of noise, to scatter."""
    spans = empty(device, sink, cuts)
    for index, span in enumerate(spans):
        span.data[:] = noise(len(span.data), seed + index)
    return spans


def moved(device: DeviceKV, move: Move, spans: Sequence[Span], layers: range) -> Transfer:
    """The transfer of *move*, called by another thread if *device* allows that."""
    if not isinstance(device, SupportsBackground) or not device.background:
        return move(spans, layers)
    with ThreadPoolExecutor(1) as other:
        return other.submit(move, spans, layers).result()


def done(transfer: Transfer) -> None:
    """Wait for *transfer*."""
    __tracebackhide__ = True  # the calling test's frame explains more
    assert transfer.wait(deadline()) is True, "a copy was not done, and its deadline had not passed"


def same(left: bytes | None, right: bytes, why: str) -> None:
    """Fail with the message *why* unless both hold the same bytes; do not print the difference."""
    __tracebackhide__ = True
    assert left is not None, f"{why}: nothing"
    if left != right:
        at = next((i for i, (x, y) in enumerate(zip(left, right, strict=False)) if x != y), -1)
        raise AssertionError(f"{why}: {len(left)} and {len(right)} bytes differ, first at {at}")


def unspilled(sink: ListSink, spans: Sequence[Span]) -> None:
    """Fail if anything beside the spans' data was written."""
    __tracebackhide__ = True
    for index in range(len(spans)):
        assert not sink.spilled(index), f"bytes beside the data of span {index} were written"


def untouched(sink: ListSink, index: int, why: str) -> None:
    """Fail with the message *why* if the data of span *index* was written."""
    __tracebackhide__ = True
    data = sink.data(index) or b""
    same(data, bytes([FRESH]) * len(data), why)
