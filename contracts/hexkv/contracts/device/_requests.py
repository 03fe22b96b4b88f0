"""Requests that mean nothing, and transfers that are under way."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Thread

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
    put_chunk,
    same,
    untouched,
)
from hexkv.contracts.doubles import ListSink, deadline
from hexkv.contracts.promise import not_offered, promise
from hexkv.ports import DeviceKV, InvalidRequest, Span, Transfer

PATIENCE = 5.0
"""Seconds of real time after which a call counts as hanging."""

Wrong = Callable[[DeviceKV], tuple[Span, range | None]]


def _span(device: DeviceKV, start: int, end: int, more: int = 0) -> Span:
    size = max(0, device.layout.chunk_bytes(end - start)) + more
    return Span(start, end, memoryview(bytearray(size)))


def _stretched(device: DeviceKV) -> Span:
    """A span whose data has every second byte of a buffer."""
    wide = memoryview(bytearray(2 * device.layout.chunk_bytes(2)))
    return Span(2, 4, wide[::2])


WRONG: dict[str, Wrong] = {
    "past the end": lambda d: (_span(d, d.tokens - 1, d.tokens + 1), None),
    "before the beginning": lambda d: (_span(d, -1, 1), None),
    "the end before the start": lambda d: (_span(d, 5, 3), None),
    "a token's bytes short": lambda d: (Span(2, 4, _span(d, 2, 3).data), None),
    "a byte short": lambda d: (_span(d, 2, 4, -1), None),
    "a byte long": lambda d: (_span(d, 2, 4, +1), None),
    "data with gaps": lambda d: (_stretched(d), None),
    "a layer too many": lambda d: (_span(d, 2, 4), range(1, d.layout.layers + 1)),
    "a layer before the first": lambda d: (_span(d, 2, 4), range(-1, 1)),
    "layers that are no run": lambda d: (_span(d, 2, 4), range(0, d.layout.layers, 2)),
}
"""Requests that mean nothing."""


class Requests(DeviceCase):
    """What a device turns away, and how it is waited for."""

    @promise(
        "device.11",
        "turns a request that means nothing away with InvalidRequest, before anything moves",
        level="L2",
        clause="DeviceKV.gather",
        why="a wrong length would move bytes of other requests, and half a request is damage",
        hint="check all spans, and the layers, before you move the first",
    )
    @pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
    def test_turns_nonsense_away(self, device: DeviceKV, raw: RawKV, wrong: Wrong) -> None:
        fill(device, raw)
        before = raw.everything()
        span, layers = wrong(device)
        sink = ListSink()
        good = empty(device, sink, [(8, 10)])
        with pytest.raises(InvalidRequest):
            device.gather([*good, span], layers)
        untouched(sink, 0, "the first span was moved nevertheless")
        with pytest.raises(InvalidRequest):
            device.scatter([*full(device, ListSink(), [(8, 10)], seed=4), span], layers)
        same(raw.everything(), before, "the engine's memory")

    @promise(
        "device.12",
        "refuses to gather into read-only data, before anything moves, and scatters from it",
        level="L2",
        clause="DeviceKV.gather",
        why="a chunk that others read may be shown read-only: writing there would damage theirs",
    )
    def test_minds_read_only_data(self, device: DeviceKV, raw: RawKV) -> None:
        fill(device, raw)
        sink = ListSink()
        good, other = empty(device, sink, [(0, 8), (8, 12)])
        with pytest.raises(InvalidRequest):
            device.gather([good, Span(other.start, other.end, other.data.toreadonly())])
        untouched(sink, 0, "the first span was moved nevertheless")
        untouched(sink, 1, "read-only data was written")
        (span,) = full(device, ListSink(), [(3, 9)], seed=5)
        done(device.scatter([Span(3, 9, span.data.toreadonly())]))
        same(chunk(device, raw, 3, 9), bytes(span.data), "what was scattered")

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
        why="-1 taken as an index is the last slot there is: somebody else's token",
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
    def test_several_transfers_may_be_under_way(self, device: DeviceKV, raw: RawKV) -> None:
        fill(device, raw)
        sink, cuts = ListSink(), [(0, 8), (8, 16), (16, device.tokens)]
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
    def test_minds_the_deadline(self, device: DeviceKV, raw: RawKV) -> None:
        fill(device, raw)
        n, sink = device.tokens, ListSink()
        transfer = device.gather(empty(device, sink, [(0, n)]))
        answers: list[bool] = []
        thread = Thread(target=lambda: answers.append(transfer.wait(deadline(-1.0))), daemon=True)
        thread.start()
        thread.join(PATIENCE)
        assert not thread.is_alive(), f"no answer within {PATIENCE} seconds"
        assert answers in ([True], [False])
        if answers == [True]:
            same(sink.data(0), chunk(device, raw, 0, n), "what was called done")
        done(transfer)
        same(sink.data(0), chunk(device, raw, 0, n), "what was done")
        done(transfer)

    @promise(
        "device.17",
        "lets go of the spans' data once the copy is done",
        clause="Transfer.wait",
        why="the block is used for another chunk by then",
        hint="keep no view, no array and no tensor over the caller's data",
    )
    def test_lets_go_of_the_data(self, device: DeviceKV) -> None:
        for move in (device.gather, device.scatter):
            sink = ListSink()
            spans = full(device, sink, [(0, 8), (16, 20)], seed=8)
            done(move(spans))
            for span in spans:
                span.data.release()
            del spans, span
            try:
                sink.reclaim()
            except BufferError:
                raise AssertionError("a view of the caller's data was kept") from None


def _offered(holed: Holed | None) -> Holed:
    if holed is None:
        not_offered("positions without a place")
    return holed


def _rows(device: DeviceKV, data: bytes) -> dict[int, bytes]:
    """The one-token chunk of each position, out of the bytes of the whole window's chunk."""
    rows = dict.fromkeys(range(device.tokens), b"")
    start = 0
    for planes in device.layout.planes:
        for plane in planes:
            row = plane.heads * plane.width * device.layout.dtype.itemsize
            for at in rows:
                rows[at] += data[start : start + row]
                start += row
    return rows
