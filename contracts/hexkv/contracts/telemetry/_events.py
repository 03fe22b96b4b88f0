"""The contract of sinks of changes of the tiers' content."""

from __future__ import annotations

from collections.abc import Callable, Collection

import pytest

from hexkv.contracts.doubles import chunk_key
from hexkv.contracts.kit.promise import not_offered, promise
from hexkv.contracts.telemetry._base import LOAD, TIERS, WORKERS, HearingCase, load
from hexkv.ports import CacheEvent, Change, ChunkKey, EventSink

MANY = 10_000
"""Keys of one event, as a clear makes it."""

FEW = 40
"""Keys that come and go under load: few enough for every queue, once the load is over."""

Held = Callable[[str], Collection[ChunkKey]]
"""Returns the chunks that the sink knows on a tier, once it is up to date."""


class EventSinkContract(HearingCase):
    """Subclass this and give it a ``sink`` fixture.

    Optional are ``held``, see :data:`Held`, and ``end``, which ends what the adapter has opened.
    """

    @pytest.fixture
    def sink(self) -> EventSink:
        """A fresh sink. What it sends to need not be there."""
        raise NotImplementedError(f"give {type(self).__name__} a `sink` fixture")

    @pytest.fixture
    def held(self) -> Held:
        """A function that returns the chunks of a tier, for sinks that know them."""
        not_offered("held")

    @promise(
        "events.1",
        "has the method of the port, and takes every event: any tier, no keys, thousands of keys",
        level="L1",
        clause="EventSink.emit",
        why="a clear, or a tier by another name, would end a request",
    )
    def test_takes_whatever_happens(self, sink: EventSink) -> None:
        assert isinstance(sink, EventSink)
        keys = [chunk_key(f"{number}") for number in range(MANY)]
        for change in (Change.REMOVED, Change.STORED, Change.STORED, Change.REMOVED):
            for tier in TIERS:
                for some in ((), (keys[0],), keys[:2], (keys[0], keys[0])):
                    answer = sink.emit(CacheEvent(change, tier, some))  # type: ignore[func-returns-value]
                    assert answer is None
            sink.emit(CacheEvent(change, "memory", keys))

    @promise(
        "events.2",
        "knows what each tier holds, by the last change of each chunk",
        level="L1",
        clause="EventSink.emit",
        why="a router would send prompts to where their KV is not, or not to where it is",
        hint="tiers are apart, changes come in order, a chunk that is stored twice is one chunk",
    )
    def test_the_last_change_counts(self, sink: EventSink, held: Held) -> None:
        a, b, c = (chunk_key(name) for name in "abc")
        memory = [a, b, c, a]
        sink.emit(CacheEvent(Change.STORED, "memory", memory))
        memory.clear()  # the list is the caller's again
        sink.emit(CacheEvent(Change.STORED, "disk", (a, b)))
        sink.emit(CacheEvent(Change.REMOVED, "memory", (a, b)))
        assert (set(held("memory")), set(held("disk"))) == ({c}, {a, b})
        sink.emit(CacheEvent(Change.STORED, "memory", (b,)))
        sink.emit(CacheEvent(Change.REMOVED, "disk", (b, c)))
        assert (set(held("memory")), set(held("disk"))) == ({b, c}, {a})
        many = [chunk_key(f"one of many {i}") for i in range(MANY)]
        sink.emit(CacheEvent(Change.STORED, "disk", many))
        assert set(held("disk")) == {a, *many}
        sink.emit(CacheEvent(Change.REMOVED, "disk", many))
        assert set(held("disk")) == {a}

    @promise(
        "events.3",
        "neither waits nor raises under load, whether or not its events are taken",
        level="L4",
        clause="EventSink.emit",
        why="each store would wait for a router, or fail with it",
        hint="queue within a bound; drop and count what does not fit",
    )
    def test_no_event_waits(self, sink: EventSink) -> None:
        def report(number: int) -> None:
            change = (Change.STORED, Change.REMOVED)[number // FEW % 2]
            sink.emit(CacheEvent(change, "memory", (chunk_key(f"{number % FEW}"),)))

        load(report)

    @promise(
        "events.4",
        "keeps apart what several threads report at once",
        level="L3",
        clause="EventSink.emit",
        why="chunks of one request would be lost among those of another",
    )
    def test_threads_do_not_disturb_each_other(self, sink: EventSink, held: Held) -> None:
        keys = {worker: chunk_key(f"of {worker}") for worker in range(WORKERS)}

        def report(number: int) -> None:
            worker, turn = divmod(number, LOAD)
            change = (Change.REMOVED, Change.STORED)[turn % 2]  # the last one of each is stored
            sink.emit(CacheEvent(change, "memory", (keys[worker],)))

        load(report)
        assert set(held("memory")) == set(keys.values())

    @promise(
        "events.5",
        "takes events after its end",
        level="L0",
        clause="EventSink.emit",
        why="a worker that is late when a program stops would end with a foreign error",
    )
    def test_events_come_after_the_end(self, sink: EventSink, end: Callable[[], None]) -> None:
        sink.emit(CacheEvent(Change.STORED, "memory", (chunk_key("a"),)))
        end()
        for _ in range(3):
            sink.emit(CacheEvent(Change.REMOVED, "memory", (chunk_key("a"),)))
