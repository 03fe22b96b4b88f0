"""Promises about moves: the right bytes, to the right places."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from random import Random

from hexkv.contracts.device._base import (
    LAYERS,
    SPANS,
    UNITS,
    Cuts,
    DeviceCase,
    RawKV,
    chunk,
    done,
    empty,
    fill,
    full,
    layer_bytes,
    moved,
    noise,
    put_chunk,
    same,
    scaled,
    unspilled,
    untouched,
)
from hexkv.contracts.doubles import FRESH, ListSink
from hexkv.contracts.kit.cases import each
from hexkv.contracts.kit.promise import promise
from hexkv.ports import DeviceKV, KVLayout, Span, SupportsBackground

ROUNDS = 12


def _some(device: DeviceKV, unit: int, random: Random) -> tuple[Cuts, range]:
    """Disjoint spans in any order, empty ones among them, and a run of layers."""
    marks = sorted(random.choices(range(0, device.tokens + 1, unit), k=random.randint(2, 6)))
    cuts = list(pairwise(marks))
    random.shuffle(cuts)
    first = random.randint(0, device.layout.layers)
    return cuts, range(first, random.randint(first, device.layout.layers))


class Moves(DeviceCase):
    """Gather and scatter, of all layers and of some."""

    @promise(
        "device.1",
        "has every method and property of the port",
        level="L0",
        clause="DeviceKV",
        why="the engine would turn the request away, or fail in the middle of it",
        hint="the `device` fixture gives 24 units and two layers at least",
    )
    def test_is_a_device(self, device: DeviceKV, unit: int) -> None:
        assert isinstance(device, DeviceKV)
        assert isinstance(device.layout, KVLayout)
        assert device.layout.layers >= LAYERS
        assert device.tokens >= UNITS * unit
        if isinstance(device, SupportsBackground):
            assert type(device.background) is bool

    @each("cuts", SPANS.values(), ids=SPANS)
    @promise(
        "device.2",
        "gathers each span's KV in layer-major order, spans in any order",
        clause="DeviceKV.gather",
        why="one token's KV would be stored under another token's name",
        hint="[layer][plane][token][head * width]; a token's slot is its place",
    )
    def test_gathers_layer_major(
        self, device: DeviceKV, raw: RawKV, unit: int, cuts: Callable[[int], Cuts]
    ) -> None:
        fill(device, raw)
        sink = ListSink()
        spans = empty(device, sink, scaled(cuts(device.tokens // unit), unit))
        done(device.gather(spans))
        for index, (start, end, _) in enumerate(spans):
            same(sink.data(index), chunk(device, raw, start, end), f"tokens [{start}, {end})")

    @each("cuts", SPANS.values(), ids=SPANS)
    @promise(
        "device.3",
        "gathers into the spans' data alone, and changes nothing in the engine's memory",
        level="L5",
        clause="DeviceKV.gather",
        why="storing a request would damage a block of the pool, or another request",
    )
    def test_gathering_writes_the_data_alone(
        self, device: DeviceKV, raw: RawKV, unit: int, cuts: Callable[[int], Cuts]
    ) -> None:
        fill(device, raw)
        before = raw.everything()
        sink = ListSink()
        spans = empty(device, sink, scaled(cuts(device.tokens // unit), unit))
        done(device.gather(spans))
        unspilled(sink, spans)
        same(raw.everything(), before, "the engine's memory")

    @each("cuts", SPANS.values(), ids=SPANS)
    @promise(
        "device.4",
        "scatters each span's KV to its place, spans in any order",
        clause="DeviceKV.scatter",
        why="the model would attend to the KV of other tokens, without an error",
        hint="the same order as in gather, the other way",
    )
    def test_scatters_each_row_to_its_place(
        self, device: DeviceKV, raw: RawKV, unit: int, cuts: Callable[[int], Cuts]
    ) -> None:
        fill(device, raw)
        sink = ListSink()
        spans = full(device, sink, scaled(cuts(device.tokens // unit), unit), seed=1)
        done(device.scatter(spans))
        for index, (start, end, data) in enumerate(spans):
            same(chunk(device, raw, start, end), bytes(data), f"tokens [{start}, {end})")
            same(bytes(data), noise(len(data), 1 + index), "the caller's data")

    @each("cuts", SPANS.values(), ids=SPANS)
    @promise(
        "device.5",
        "scatters to the positions of its spans alone",
        level="L5",
        clause="DeviceKV",
        why="loading one request's KV would damage another's",
        hint="whole blocks may hold tokens that are not in the span",
    )
    def test_scattering_touches_the_spans_alone(
        self, device: DeviceKV, raw: RawKV, unit: int, cuts: Callable[[int], Cuts]
    ) -> None:
        fill(device, raw)
        before = raw.everything()
        spans = full(device, ListSink(), scaled(cuts(device.tokens // unit), unit), seed=2)
        old = [chunk(device, raw, start, end) for start, end, _ in spans]
        done(device.scatter(spans))
        for (start, end, _), data in zip(spans, old, strict=True):
            put_chunk(device, raw, start, end, data)
        same(raw.everything(), before, "the memory outside the spans")

    @promise(
        "device.6",
        "gathers some layers to their place in the chunk, and leaves the rest of it",
        clause="DeviceKV.gather",
        why="while a request is stored layer by layer, each layer would damage the others",
        hint="layout.layer_span(layer, tokens) is the place of a layer's bytes",
    )
    def test_gathers_some_layers(self, device: DeviceKV, raw: RawKV, unit: int) -> None:
        fill(device, raw)
        for seed in range(ROUNDS):
            cuts, layers = _some(device, unit, Random(seed))  # noqa: S311 - nothing here is secret
            sink = ListSink()
            done(moved(device, device.gather, empty(device, sink, cuts), layers))
            for index, (start, end) in enumerate(cuts):
                part = layer_bytes(device.layout, layers, end - start)
                want = bytearray([FRESH]) * device.layout.chunk_bytes(end - start)
                want[part] = chunk(device, raw, start, end)[part]
                same(sink.data(index), bytes(want), f"{layers} of tokens [{start}, {end})")

    @promise(
        "device.7",
        "scatters some layers from their place in the chunk, and leaves the others",
        clause="DeviceKV.scatter",
        why="a layer that has not arrived yet would overwrite one that has",
    )
    def test_scatters_some_layers(self, device: DeviceKV, raw: RawKV, unit: int) -> None:
        for seed in range(ROUNDS):
            cuts, layers = _some(device, unit, Random(seed))  # noqa: S311 - nothing here is secret
            fill(device, raw)
            spans = full(device, ListSink(), cuts, seed)
            want = []
            for start, end, data in spans:
                part = layer_bytes(device.layout, layers, end - start)
                want.append(bytearray(chunk(device, raw, start, end)))
                want[-1][part] = data[part]
            done(moved(device, device.scatter, spans, layers))
            for (start, end), rows in zip(cuts, want, strict=True):
                same(
                    chunk(device, raw, start, end),
                    bytes(rows),
                    f"{layers} of tokens [{start}, {end})",
                )

    @promise(
        "device.8",
        "keeps every bit on the way to the engine and back, of not-numbers, too",
        level="L2",
        clause="DeviceKV",
        why="checksums would not hold, and quantised KV has no spare bit patterns",
        hint="move integers: an arithmetic unit may quieten a NaN or flush a subnormal number",
    )
    @each("word", ["ffff", "017f", "01ff", "817f", "0100", "0080", "807f", "017c"])
    def test_keeps_every_bit(self, device: DeviceKV, word: str) -> None:
        n = device.tokens
        sink, back = ListSink(), ListSink()
        spans = empty(device, sink, [(0, n)])
        data = (bytes.fromhex(word) * len(spans[0].data))[: len(spans[0].data)]
        spans[0].data[:] = data
        done(device.scatter(spans))
        done(device.gather(empty(device, back, [(0, n)])))
        same(back.data(0), data, f"elements of {word}")

    @promise(
        "device.9",
        "has nothing to do where there is nothing to move",
        clause="DeviceKV",
        why="a prompt that is all in the cache, or not at all, is a common one",
    )
    def test_moves_nothing_when_there_is_nothing(
        self, device: DeviceKV, raw: RawKV, unit: int
    ) -> None:
        fill(device, raw)
        before = raw.everything()
        n, nothing = device.tokens, memoryview(bytearray())
        for spans in (
            [],
            [Span(0, 0, nothing)],
            [Span(n, n, nothing), Span(5 * unit, 5 * unit, nothing)],
        ):
            done(device.gather(spans))
            done(device.scatter(spans))
            done(device.gather(spans, range(1, 2)))
        sink = ListSink()
        done(device.gather(empty(device, sink, [(0, n)]), range(1, 1)))
        done(device.scatter(full(device, ListSink(), [(0, n)], seed=3), range(1, 1)))
        untouched(sink, 0, "no layer was asked for, and one was copied")
        same(raw.everything(), before, "the engine's memory")

    @promise(
        "device.10",
        "moves what the memory holds at the time of the call",
        clause="DeviceKV",
        why="a window lives as long as its request, and the engine goes on computing",
        hint="keep views of the engine's tensors, no copies",
    )
    def test_moves_what_is_there_now(self, device: DeviceKV, raw: RawKV, unit: int) -> None:
        cuts = scaled([(0, 8), (16, 20)], unit)
        for seed in range(3):
            fill(device, raw, seed)
            sink = ListSink()
            done(device.gather(empty(device, sink, cuts)))
            for index, (start, end) in enumerate(cuts):
                same(sink.data(index), chunk(device, raw, start, end), f"fill {seed}")
        sink = ListSink()
        want = [chunk(device, raw, start, end) for start, end in cuts]
        transfer = device.gather(empty(device, sink, cuts))
        fill(device, raw, seed=3)
        done(transfer)
        for index, data in enumerate(want):
            same(sink.data(index), data, "KV that was computed after the call")
