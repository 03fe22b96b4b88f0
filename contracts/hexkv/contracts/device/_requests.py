"""Promises about invalid requests, and about transfers under way."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from hexkv.contracts.device._base import (
    DeviceCase,
    Holed,
    RawKV,
    chunk,
    done,
    empty,
    fill,
    full,
    noise,
    put_chunk,
    same,
    scaled,
    untouched,
)
from hexkv.contracts.doubles import ListSink, deadline
from hexkv.contracts.kit.cases import each
from hexkv.contracts.kit.promise import not_offered, promise
from hexkv.contracts.kit.sparse import BEYOND, sparse
from hexkv.contracts.kit.waiting import promptly
from hexkv.ports import DeviceKV, InvalidRequest, Span, Transfer

PATIENCE = 5.0
"""Seconds of this process's time after which a call counts as hanging."""

Wrong = Callable[[DeviceKV, int], tuple[Span, range | None]]


def _span(device: DeviceKV, start: int, end: int, more: int = 0) -> Span:
    size = max(0, device.layout.chunk_bytes(end - start)) + more
    return Span(start, end, memoryview(bytearray(size)))


def _short(device: DeviceKV, unit: int) -> Span:
    """Two units with the data of one."""
    return Span(2 * unit, 4 * unit, _span(device, 2 * unit, 3 * unit).data)


def _stretched(device: DeviceKV, unit: int) -> Span:
    """A span whose data has every second byte of a buffer."""
    wide = memoryview(bytearray(2 * device.layout.chunk_bytes(2 * unit)))
    return Span(2 * unit, 4 * unit, wide[::2])


def _beyond(device: DeviceKV, unit: int, start: int, end: int, more: int = 0) -> Span:
    """A good span plus an offset that is lost in arithmetic of 32 or 64 bits."""
    size = device.layout.chunk_bytes(2 * unit) + more
    return Span(2 * unit + start, 4 * unit + end, sparse(size))


WRONG: dict[str, Wrong] = {
    "past the end": lambda d, u: (_span(d, d.tokens - u, d.tokens + u), None),
    "before the beginning": lambda d, u: (_span(d, -u, u), None),
    "the end before the start": lambda d, u: (_span(d, 5 * u, 3 * u), None),
    "half the bytes": lambda d, u: (_short(d, u), None),
    "a byte short": lambda d, u: (_span(d, 2 * u, 4 * u, -1), None),
    "a byte long": lambda d, u: (_span(d, 2 * u, 4 * u, +1), None),
    "4 GiB long": lambda d, u: (_beyond(d, u, 0, 0, BEYOND), None),
    "2**32 tokens behind": lambda d, u: (_beyond(d, u, BEYOND, BEYOND), None),
    "2**32 tokens longer": lambda d, u: (_beyond(d, u, 0, BEYOND), None),
    "2**32 tokens before": lambda d, u: (_beyond(d, u, -BEYOND, -BEYOND), None),
    "2**64 tokens behind": lambda d, u: (_beyond(d, u, BEYOND**2, BEYOND**2), None),
    "data with gaps": lambda d, u: (_stretched(d, u), None),
    "a layer too many": lambda d, u: (
        _span(d, 2 * u, 4 * u),
        range(1, d.layout.layers + 1),
    ),
    "a layer before the first": lambda d, u: (_span(d, 2 * u, 4 * u), range(-1, 1)),
    "layers that are no run": lambda d, u: (
        _span(d, 2 * u, 4 * u),
        range(0, d.layout.layers, 2),
    ),
}
"""Invalid requests, for a device with units of the given number of tokens."""

CUT_THROUGH: dict[str, Callable[[int], tuple[int, int]]] = {
    "a token before the end": lambda unit: (0, 2 * unit - 1),
    "a token after the start": lambda unit: (unit + 1, 3 * unit),
    "a unit's length, from inside one": lambda unit: (1, unit + 1),
    "the first half of a unit": lambda unit: (unit, unit + unit // 2),
}
"""Spans that do not start and end between units."""


class Requests(DeviceCase):
    """The requests that a device refuses, and how callers wait for transfers."""

    @promise(
        "device.11",
        "turns a request that means nothing away with InvalidRequest, before anything moves",
        level="L2",
        clause="DeviceKV.gather",
        why="a wrong length would move bytes of other requests, and half a request is damage",
        hint="check all spans, and the layers, before you move the first",
    )
    @each("wrong", WRONG.values(), ids=WRONG)
    def test_turns_nonsense_away(
        self, device: DeviceKV, raw: RawKV, unit: int, wrong: Wrong
    ) -> None:
        fill(device, raw)
        before = raw.everything()
        _turned_away(device, *wrong(device, unit), unit)
        same(raw.everything(), before, "the engine's memory")

    @promise(
        "device.12",
        "refuses to gather into read-only data, before anything moves, and scatters from it",
        level="L2",
        clause="DeviceKV.gather",
        why="a chunk that others read may be shown read-only: writing there would damage theirs",
    )
    def test_minds_read_only_data(self, device: DeviceKV, raw: RawKV, unit: int) -> None:
        fill(device, raw)
        sink = ListSink()
        good, other = empty(device, sink, scaled([(0, 8), (8, 12)], unit))
        with pytest.raises(InvalidRequest):
            device.gather([good, Span(other.start, other.end, other.data.toreadonly())])
        untouched(sink, 0, "the first span was moved nevertheless")
        untouched(sink, 1, "read-only data was written")
        (span,) = full(device, ListSink(), scaled([(3, 9)], unit), seed=5)
        start, end, data = span
        done(device.scatter([Span(start, end, data.toreadonly())]))
        same(chunk(device, raw, start, end), bytes(span.data), "the scattered KV")

    @promise(
        "device.13",
        "refuses to gather a position without a place, before anything moves",
        level="L2",
        clause="DeviceKV",
        why="the chunk would be stored with a hole, and be given to others as if it were whole",
        hint="-1 in a slot mapping, which would count from the end in most array libraries",
    )
    def test_gathers_no_hole(self, holed: Holed | None) -> None:
        device, raw, holes = _offered(holed)
        fill(device, raw, without=holes)
        n, hole = device.tokens, min(holes)
        sink = ListSink()
        for cuts in ([(0, n)], [(0, hole), (hole, n)]):
            with pytest.raises(InvalidRequest):
                device.gather(empty(device, sink, cuts))
            for index in range(len(cuts)):
                untouched(sink, index, "a span was moved nevertheless")
        done(device.gather(empty(device, sink, [(0, hole)])))
        same(sink.data(0), chunk(device, raw, 0, hole), "tokens before the hole")

    @promise(
        "device.14",
        "passes over a position without a place when it scatters, and places all others",
        level="L5",
        clause="DeviceKV",
        why="-1 taken as an index is the last slot there is: another token's",
    )
    def test_scatters_around_holes(self, holed: Holed | None) -> None:
        device, raw, holes = _offered(holed)
        fill(device, raw, without=holes)
        before = raw.everything()
        here = [at for at in range(device.tokens) if at not in holes]
        old = {at: chunk(device, raw, at, at + 1) for at in here}
        (span,) = full(device, ListSink(), [(0, device.tokens)], seed=6)
        done(device.scatter([span]))
        want = _rows(device, bytes(span.data))
        for at in here:
            same(chunk(device, raw, at, at + 1), want[at], f"token {at}")
        for at in here:
            put_chunk(device, raw, at, at + 1, old[at])
        same(raw.everything(), before, "the memory without a position")

    @promise(
        "device.15",
        "keeps several transfers apart, and lets other threads wait for them in any order",
        level="L3",
        clause="Transfer",
        why="layers are copied while others are computed, and late copies are waited for later",
    )
    def test_several_transfers_may_be_under_way(
        self, device: DeviceKV, raw: RawKV, unit: int
    ) -> None:
        fill(device, raw)
        sink = ListSink()
        cuts = [(0, 8 * unit), (8 * unit, 16 * unit), (16 * unit, device.tokens)]
        spans = empty(device, sink, cuts)
        last = full(device, ListSink(), cuts[2:], seed=7)
        want = [chunk(device, raw, *cut) for cut in cuts[:2]]
        under_way: list[Transfer] = [device.gather(spans[:1]), device.gather(spans[1:2])]
        under_way.append(device.scatter(last))
        with ThreadPoolExecutor(3) as threads:
            for waited in [threads.submit(done, one) for one in reversed(under_way)]:
                waited.result(60)
        same(sink.data(0), want[0], "the first transfer")
        same(sink.data(1), want[1], "the second transfer")
        same(chunk(device, raw, *cuts[2]), bytes(last[0].data), "the third transfer")

    @promise(
        "device.16",
        "answers truthfully when a deadline has passed, at once, and may be waited for again",
        level="L4",
        clause="Transfer.wait",
        why="a busy device would hold the request up, or its memory be used before it is there",
        hint="poll the device's event; never synchronise without a limit",
    )
    def test_minds_the_deadline(self, device: DeviceKV, raw: RawKV, unit: int) -> None:
        fill(device, raw)
        n, sink = device.tokens, ListSink()
        transfer = device.gather(empty(device, sink, [(0, n)]))
        answer = promptly(lambda: transfer.wait(deadline(-1.0)), PATIENCE)
        assert answer in (True, False)
        if answer:
            same(sink.data(0), chunk(device, raw, 0, n), "a gather that is reported done")
        done(transfer)
        same(sink.data(0), chunk(device, raw, 0, n), "a gather that is done")
        _waited_for_again(device, raw, unit)

    @promise(
        "device.17",
        "lets go of the spans' data once the copy is done",
        clause="Transfer.wait",
        why="the block is used for another chunk by then",
        hint="keep no view, no array and no tensor over the caller's data",
    )
    def test_lets_go_of_the_data(self, device: DeviceKV, unit: int) -> None:
        for move in (device.gather, device.scatter):
            sink = ListSink()
            spans = full(device, sink, scaled([(0, 8), (16, 20)], unit), seed=8)
            done(move(spans))
            del spans  # its views are not released here: they might be kept
            try:
                sink.reclaim()
            except BufferError:
                raise AssertionError("a view of the caller's data was kept") from None

    @each("cut", CUT_THROUGH.values(), ids=CUT_THROUGH)
    @promise(
        "device.18",
        "turns a span that cuts a unit through away, before anything moves",
        level="L2",
        clause="DeviceKV.gather",
        why="half an opaque block would be filed as tokens, and come back as other tokens' KV",
        hint="start and end are multiples of the unit; never round them",
    )
    def test_cuts_no_unit_through(
        self, device: DeviceKV, raw: RawKV, unit: int, cut: Callable[[int], tuple[int, int]]
    ) -> None:
        if unit == 1:
            not_offered("units of several tokens")
        fill(device, raw)
        before = raw.everything()
        _turned_away(device, _span(device, *cut(unit)), None, unit)
        same(raw.everything(), before, "the engine's memory")


def _turned_away(device: DeviceKV, span: Span, layers: range | None, unit: int) -> None:
    """Gather and scatter must refuse *span*, and not move the valid span before it."""
    sink = ListSink()
    good = empty(device, sink, scaled([(8, 10)], unit))
    with pytest.raises(InvalidRequest):
        device.gather([*good, span], layers)
    untouched(sink, 0, "the first span was moved nevertheless")
    other = full(device, ListSink(), scaled([(8, 10)], unit), seed=4)
    with pytest.raises(InvalidRequest):
        device.scatter([*other, span], layers)


def _waited_for_again(device: DeviceKV, raw: RawKV, unit: int) -> None:
    """A second wait for a finished transfer moves nothing."""
    sink = ListSink()
    (span,) = empty(device, sink, scaled([(2, 9)], unit))
    gathering = device.gather([span])
    done(gathering)
    scattering = device.scatter(full(device, ListSink(), scaled([(10, 16)], unit), seed=9))
    done(scattering)
    fill(device, raw, seed=1)
    before, other = raw.everything(), noise(len(span.data), seed=10)
    span.data[:] = other
    for transfer in (gathering, scattering, gathering):
        done(transfer)
        same(sink.data(0), other, "data that was gathered, used for something else, waited for")
        same(raw.everything(), before, "memory that was scattered to, computed on, waited for")


def _offered(holed: Holed | None) -> Holed:
    if holed is None:
        not_offered("positions without a place")
    return holed


def _rows(device: DeviceKV, data: bytes) -> dict[int, bytes]:
    """The one-token chunk of each position, cut out of the bytes of the whole window's chunk."""
    rows = dict.fromkeys(range(device.tokens), b"")
    start = 0
    for planes in device.layout.planes:
        for plane in planes:
            row = plane.heads * plane.width * device.layout.dtype.itemsize
            for at in rows:
                rows[at] += data[start : start + row]
                start += row
    return rows
