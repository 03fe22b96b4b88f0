"""The contract of observers, which show a process's numbers, state and content outside."""

from __future__ import annotations

import threading
from array import array
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from time import monotonic
from typing import ClassVar, NamedTuple

import pytest

from hexkv.contracts.doubles import chunk_key
from hexkv.contracts.kit.promise import not_offered, promise
from hexkv.contracts.kit.waiting import promptly, still_running
from hexkv.contracts.kit.whole import Whole
from hexkv.ports import (
    CacheEvent,
    Change,
    ChunkKey,
    EndedCall,
    Lookup,
    NamedPrompt,
    Observer,
)

CHUNK = 16
"""Tokens of each chunk that a contract names."""

TIERS = {"memory": True}
PROMPT = list(range(100, 100 + 4 * CHUNK))
_SECOND = 3.0
"""Seconds of this process's time: a second to close in, with some more for a busy machine."""

_GOING = 20.0
"""Seconds that threads may take to be gone."""

_AT_ONCE = 60.0
"""Seconds that only a hang reaches."""

Read = Callable[[], str | None]
"""Returns the page; ``None`` if none is served."""


class Shown:
    """A process whose numbers and state are set by attributes."""

    def __init__(self) -> None:
        self.numbers = 1
        self.why = ""

    def metrics(self) -> str:
        """One metric family."""
        name = "hexkv_contract_total"
        return f"# HELP {name} Observed.\n# TYPE {name} counter\n{name} {self.numbers}\n"

    def unready(self) -> str:
        """The value of ``why``."""
        return self.why

    def degraded(self) -> str:
        """Nothing."""
        return ""


class Reading(NamedTuple):
    """Functions that read the pages of an observer."""

    metrics: Read
    """The page of numbers."""

    unready: Read
    """The reason why it takes no requests; empty if it takes requests."""


class ObserverContract(Whole):
    """Subclass this and give it the fixtures ``observer`` and ``reading``.

    ``observer`` does not serve yet, and ``reading`` reads its pages. Optional are
    ``announced(tokens)``: the number of tokens at the beginning of a prompt that a subscriber of
    the content knows, in blocks that divide :data:`CHUNK`; and ``collected()``: the number of calls
    that the trace collector has received. The attribute ``patience`` is the time in seconds
    within which both are up to date.
    """

    patience: ClassVar[float] = 60.0

    @pytest.fixture
    def observer(self) -> Observer:
        """An observer that can serve, publish and send. Closed by the contract."""
        raise NotImplementedError(f"give {type(self).__name__} an `observer` fixture")

    @pytest.fixture
    def reading(self) -> Reading:
        """The functions that read its pages."""
        raise NotImplementedError(f"give {type(self).__name__} a `reading` fixture")

    @pytest.fixture
    def announced(self) -> Callable[[Sequence[int]], int]:
        """A function: the number of tokens of a prompt that a subscriber of the content knows."""
        not_offered("announced")

    @pytest.fixture
    def collected(self) -> Callable[[], int]:
        """A function: the number of calls that the trace collector has received."""
        not_offered("collected")

    @promise(
        "observer.1",
        "shows the numbers and the state that there are, and new ones once they change",
        level="L1",
        clause="Observer.serve",
        why="operators would look at a process that was",
    )
    def test_what_is_shown_is_what_there_is(self, observer: Observer, reading: Reading) -> None:
        """Polled, because some observers read the process and others show a recent copy."""
        shown = Shown()
        observer.serve(shown)
        try:
            for numbers, why in ((1, ""), (20, "it learns"), (300, "")):
                shown.numbers, shown.why = numbers, why
                line = f"hexkv_contract_total {numbers}\n"
                self._until(lambda line=line: line in (reading.metrics() or ""))  # type: ignore[misc]
                self._until(lambda why=why: reading.unready() == why)  # type: ignore[misc]
        finally:
            observer.close()

    @promise(
        "observer.2",
        "shows nothing before it serves, nor once it is closed: in a second, without a thread left",
        level="L0",
        clause="Observer.close",
        why="a process that ends would be taken for one that works, or could not end",
    )
    def test_nothing_is_shown_before_and_after(self, observer: Observer, reading: Reading) -> None:
        """Closing twice is allowed."""
        assert reading.metrics() is None
        assert reading.unready() != "", "ready before it serves"
        before = threading.enumerate()
        observer.serve(Shown())
        assert reading.metrics() is not None
        promptly(observer.close, _SECOND)
        assert reading.metrics() is None
        assert reading.unready() != "", "ready once it is closed"
        left = [it for it in threading.enumerate() if it not in before]
        assert not still_running(left, _GOING), "a thread outlives its observer"
        observer.close()

    @promise(
        "observer.3",
        "answers several who look at once",
        level="L3",
        clause="Observer.serve",
        why="one that reads slowly would keep the others from seeing anything",
    )
    def test_several_look_at_once(self, observer: Observer, reading: Reading) -> None:
        """Each reader gets a complete page."""
        observer.serve(Shown())
        try:
            with ThreadPoolExecutor(8) as many:
                pages = list(many.map(lambda _: reading.metrics(), range(32)))
        finally:
            observer.close()
        assert [page for page in pages if not page or "hexkv_contract_total 1\n" not in page] == []

    @promise(
        "observer.4",
        "follows for the first rank alone",
        level="L1",
        clause="Observer.follow",
        why="a router would get a chunk's event from each rank, and forget it with the first",
    )
    def test_other_ranks_publish_nothing(self, observer: Observer) -> None:
        """With any settings."""
        try:
            assert observer.follow(TIERS, rank=1) is None
        finally:
            observer.close()

    @promise(
        "observer.5",
        "takes events before it serves, while nothing listens, and after its end",
        level="L4",
        clause="ContentFeed",
        why="a store would wait for a router, or fail with it",
    )
    def test_it_is_told_without_being_heard(self, observer: Observer) -> None:
        """More than any queue holds. No call raises or blocks."""
        feed, sink = observer.follow(TIERS), observer.trace("contract")
        if feed is None and sink is None:
            not_offered("content and traces")

        def report(many: int) -> None:
            for number in range(many):
                if feed is not None:
                    keys = (chunk_key(f"{number}"),)
                    feed.emit(CacheEvent(Change.STORED, "memory", keys))
                    feed.named(_named(PROMPT[:CHUNK], keys))
                if sink is not None:
                    sink.ended(EndedCall("lookup", 0.0, 0.1, Lookup(1, 1), (), ""))

        with ThreadPoolExecutor(1) as reporter:
            reporter.submit(report, 5_000).result(_AT_ONCE)
            observer.serve(Shown())
            reporter.submit(report, 100).result(_AT_ONCE)
            observer.close()
            reporter.submit(report, 100).result(_AT_ONCE)

    @promise(
        "observer.6",
        "publishes what a tier holds of prompts whose tokens were named, until it is gone",
        level="L1",
        clause="Observer.follow",
        why="routers would send prompts to where they are not, or not to where they are",
    )
    def test_content_is_published(
        self, observer: Observer, announced: Callable[[Sequence[int]], int]
    ) -> None:
        """The caller may reuse the memory of the tokens after ``named``."""
        feed = observer.follow(TIERS)
        assert feed is not None, "nothing is followed"
        observer.serve(Shown())
        try:
            keys = tuple(chunk_key(f"chunk {i}") for i in range(4))
            tokens = array("I", PROMPT)
            feed.named(_named(tokens, keys))
            tokens[:] = array("I", bytes(4 * len(tokens)))
            feed.emit(CacheEvent(Change.STORED, "memory", keys))
            self._until(lambda: announced(PROMPT) == len(PROMPT))
            feed.emit(CacheEvent(Change.REMOVED, "memory", keys[2:]))
            self._until(lambda: announced(PROMPT) == 2 * CHUNK)
        finally:
            observer.close()

    @promise(
        "observer.7",
        "sends the calls reported to it, those that ended just before its own end included",
        level="L1",
        clause="Observer.trace",
        why="a trace would lack what a process did last",
    )
    def test_calls_are_sent(self, observer: Observer, collected: Callable[[], int]) -> None:
        """Each call is sent once."""
        sink = observer.trace("contract")
        assert sink is not None, "nothing is traced"
        observer.serve(Shown())
        for _ in range(3):
            sink.ended(EndedCall("lookup", 0.0, 0.1, Lookup(1, 1), (), ""))
        self._until(lambda: collected() == 3)
        sink.ended(EndedCall("lookup", 0.0, 0.1, Lookup(1, 1), (), ""))
        observer.close()
        self._until(lambda: collected() == 4)

    def _until(self, reached: Callable[[], bool]) -> None:
        """Poll until *reached* returns True: the other process does not notify."""
        began, pause = monotonic(), Event()
        while not reached():
            assert monotonic() - began < self.patience, "it did not come to that"
            pause.wait(0.01)


def _named(tokens: Sequence[int], keys: Sequence[ChunkKey]) -> NamedPrompt:
    ends = [CHUNK * (i + 1) for i in range(len(keys))]
    identity = '{"model": "contract", "salt": "", "parallel": [0, 1], "lora": ""}'
    packed = tokens if isinstance(tokens, array) else array("I", tokens)
    return NamedPrompt(identity, tuple(keys), ends, memoryview(packed).cast("B"))
