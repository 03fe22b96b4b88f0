"""L4: the service behind the store dies, hangs, lies, fills up and comes back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import count
from threading import Event

import pytest

from hexkv.contracts.doubles import ListSink, chunk_key
from hexkv.contracts.promise import not_offered, promise
from hexkv.contracts.store._base import StoreCase, arrived, content, promptly
from hexkv.contracts.store._service import Ability, Service
from hexkv.contracts.waiting import UnderWay
from hexkv.plugins.clock import SystemClock
from hexkv.ports import (
    ChunkKey,
    ChunkStore,
    Corrupt,
    Deadline,
    Failed,
    Hit,
    Item,
    Miss,
    Stored,
    StoreError,
    SupportsClear,
    TimedOut,
    namespace_of,
)

SHORT = 0.4
"""Seconds that a call is given while something is wrong."""

GRACE = 2.0
"""Seconds of this process's time after its deadline in which a call's answer is in time."""

RETURN = 30.0
"""Seconds after a service's return within which the same store object must work again."""

TRIES = 5
"""How often it may try at least, where each takes so long that there is time for fewer."""

ENOUGH = 30.0
"""Seconds for a call that a service in order answers, on however busy a machine."""

OLD = {chunk_key(f"old {i}"): content(20_000 * i + 5000, seed=i) for i in range(3)}
NEW = {chunk_key(f"new {i}"): content(30_000 * i + 7000, seed=9 + i) for i in range(2)}
LARGE = {chunk_key(f"large {i}"): content(1 << 20, seed=20 + i) for i in range(4)}
DOOMED = {chunk_key("doomed"): content(600, seed=30)}
FRAMES = OLD | NEW | LARGE | DOOMED
"""Each key has one value in its life: whatever may still happen to it does no harm."""


def soon(seconds: float = SHORT) -> Deadline:
    """A deadline of real time."""
    return Deadline.after(SystemClock(), seconds)


Break = Callable[[Ability], tuple[ChunkStore, Service]]
"""Sees to it that the chunks are in place: see the fixture ``broken``."""


class Faults(StoreCase):
    """What a store does with a service that does not do its part."""

    @pytest.fixture
    def broken(self, service: Service | None, exposed: ChunkStore) -> Iterator[Break]:
        """The store, with its chunks in place, and the service if it can fail that way."""

        def broken(way: Ability) -> tuple[ChunkStore, Service]:
            if service is None or way not in service.can:
                not_offered(f"service.{way}")
            _until_written(exposed, OLD | DOOMED)
            return exposed, service

        yield broken
        if service is not None and service.can & {"slow", "cut", "garbage", "full"}:
            service.mend()

    @promise(
        "L4.1",
        "answers in time while its service is down, and works again once it is back",
        clause="ChunkStore, every call",
        why="a cache server that crashed would stop the serving engine as well",
        hint="raise StoreUnreachable, or answer Failed; connect anew with the next call",
    )
    def test_outlives_a_service_that_is_killed(self, broken: Break) -> None:
        store, service = broken("kill")
        service.kill()
        try:
            _endures(store)
            _endures(store)
        finally:
            service.start()
        _comes_back(store)

    @promise(
        "L4.2",
        "works again after its service was restarted while nobody called",
        clause="ChunkStore, every call",
        why="after each upgrade of the server the first requests would fail, or load wrong KV",
        hint="a connection that waited in a pool may be dead: try a fresh one before you fail",
    )
    def test_outlives_a_service_that_is_restarted(self, broken: Break) -> None:
        store, service = broken("kill")
        service.kill()
        service.start()
        _endures(store, seconds=10.0)
        _comes_back(store)

    @promise(
        "L4.3",
        "gives nothing wrong when its service is killed in the middle of calls",
        clause="ChunkStore.read, ChunkStore.write",
        why="half a chunk that counts as whole makes a model answer from another's KV",
        hint="Hit only after the last byte; Stored only after the service said so",
    )
    def test_outlives_a_service_that_dies_amid_calls(self, broken: Break) -> None:
        store, service = broken("kill")
        answered = [Event()]
        """When a round of calls is over that began in the newest phase, and in each before it."""
        over = Event()

        def traffic() -> None:
            while not over.is_set():
                phase = answered[-1]
                _write(store, LARGE, soon())
                _read(store, LARGE, soon())
                phase.set()

        with UnderWay({"one": traffic, "another": traffic}, over.set, patience=RETURN):
            for _ in range(2):
                assert answered[-1].wait(RETURN), "no call was answered"
                service.kill()
                answered.append(Event())
                try:
                    assert answered[-1].wait(RETURN), "no call was answered after the service died"
                finally:
                    service.start()
                answered.append(Event())
        _comes_back(store)

    @promise(
        "L4.4",
        "keeps its deadlines while its service hangs, and works again once it goes on",
        clause="ChunkStore, every call's deadline",
        why="a server that swaps or is suspended would hang every request of the engine",
        hint="give Deadline.remaining() to whatever waits, each time that it waits",
    )
    def test_outlives_a_service_that_hangs(self, broken: Break) -> None:
        store, service = broken("stall")
        service.stall()
        try:
            _endures(store)
        finally:
            service.resume()
        _comes_back(store)

    @promise(
        "L4.5",
        "is right with a slow service for who can wait, and in time for who cannot",
        clause="ChunkStore, every call's deadline",
        why="a slow server costs each request its deadline at most, or it costs without limit",
        hint="a time-out per receive is no deadline: what trickles never runs into it",
    )
    def test_outlives_a_slow_service(self, broken: Break) -> None:
        store, service = broken("slow")
        service.slow(0.1)
        _write(store, NEW, soon(ENOUGH))
        found = _read(store, FRAMES, soon(ENOUGH))
        assert set(OLD) <= found, "a chunk was not found in 30 seconds because of 0.1"
        service.slow(SHORT + GRACE + 1)
        _endures(store)
        service.mend()
        _comes_back(store)

    @promise(
        "L4.6",
        "fails as a store does while every connection is cut, and works again afterwards",
        clause="ChunkStore, every call",
        why="a firewall, a proxy or a restart in between ends connections at any moment",
        hint="map what your client raises to StoreUnreachable, in one place",
    )
    def test_outlives_cut_connections(self, broken: Break) -> None:
        store, service = broken("cut")
        service.cut()
        _endures(store)
        service.mend()
        _comes_back(store)

    @promise(
        "L4.7",
        "takes garbage from its service for a failure, and never uses that connection again",
        clause="ChunkStore, every call",
        why="an answer that belongs to nothing shifts all later ones: other chunks' bytes",
        hint="check the head of every answer; close the connection when it makes no sense",
    )
    def test_outlives_garbage(self, broken: Break) -> None:
        store, service = broken("garbage")
        service.garbage()
        _endures(store)
        service.mend()
        _comes_back(store)

    @promise(
        "L4.8",
        "says that it did not store what its service has no room for, and loses nothing else",
        clause="ChunkStore.write",
        why="chunks that are counted as stored and are not there make every budget wrong",
        hint="answer Failed(StoreFull(...)) for the chunk; the others of the batch go on",
    )
    def test_outlives_a_full_service(self, broken: Break) -> None:
        store, service = broken("full")
        service.fill()
        here = _read(store, OLD, soon(ENOUGH))
        stored = _write(store, LARGE, soon(ENOUGH))
        found = _read(store, FRAMES, soon(ENOUGH))
        assert found & set(LARGE) <= stored, "a chunk that was not stored is there"
        if not self.loses:
            assert stored <= found, "a chunk that was stored is not there"
            assert here <= found, "a chunk that was there had to go for another one"
        _endures(store, seconds=10.0)
        service.mend()
        _comes_back(store)

    @promise(
        "L4.9",
        "closes at once while its service hangs, and lets go of everybody who waits for it",
        clause="ChunkStore.close",
        why="the serving engine could not be stopped as long as a cache server hangs",
        hint="closing a socket does not wake a thread that waits on it: shut it down first",
    )
    def test_can_be_closed_while_its_service_hangs(self, broken: Break) -> None:
        store, service = broken("stall")
        watch = _Watch()
        limit = Deadline.after(watch, 600.0)
        service.stall()
        watch.looked_at.clear()
        waiting = partial(_read, store, OLD, limit)
        try:
            with UnderWay({"one call": waiting, "another": waiting}, patience=15.0):
                assert watch.looked_at.wait(RETURN), "no call looked at its deadline"
                promptly(store.close)
        finally:
            service.resume()


class _Watch(SystemClock):
    """A clock that tells when somebody looks at it, for that is what comes before waiting."""

    __slots__ = ("looked_at",)

    def __init__(self) -> None:
        self.looked_at = Event()

    def now(self) -> float:
        self.looked_at.set()
        return super().now()


def _endures(store: ChunkStore, seconds: float = SHORT) -> None:
    """Make every call at once; each must answer in time, as a store does, and not lie."""
    __tracebackhide__ = True  # the test that calls tells more
    calls = {
        "contains": lambda: _flags(store.contains, list(OLD), soon(seconds)),
        "read": lambda: _read(store, FRAMES, soon(seconds)),
        "write": lambda: _write(store, NEW, soon(seconds)),
        "delete": lambda: _flags(store.delete, list(DOOMED), soon(seconds)),
    }
    if isinstance(store, SupportsClear):
        clearer = store
        calls["clear_prefix"] = lambda: _clear(clearer, soon(seconds))
    with UnderWay(calls, patience=GRACE) as crowd:
        late = crowd.late(seconds + GRACE)
        assert not late, f"no answer {GRACE} s after the deadline of {' and '.join(late)}"


def _flags(
    call: Callable[[Sequence[ChunkKey], Deadline], Sequence[bool]],
    keys: list[ChunkKey],
    deadline: Deadline,
) -> None:
    try:
        answers = call(keys, deadline)
    except StoreError:
        return
    assert len(answers) == len(keys), "one answer per key"


def _clear(store: SupportsClear, deadline: Deadline) -> None:
    """Clear a namespace that has no chunk: whatever becomes of it harms no other call."""
    with suppress(StoreError):
        count = store.clear_prefix(namespace_of(chunk_key("", "cleared")), deadline)
        assert count == 0, f"{count} chunks of a namespace without any"


def _read(store: ChunkStore, frames: dict[ChunkKey, bytes], deadline: Deadline) -> set[ChunkKey]:
    """Which of *frames* could be read; what was read must be right."""
    __tracebackhide__ = True
    sink = ListSink()
    try:
        outcomes = store.read(list(frames), sink, deadline)
    except StoreError:
        return set()
    assert len(outcomes) == len(frames), "one outcome per key"
    found = set()
    for index, ((key, frame), outcome) in enumerate(zip(frames.items(), outcomes, strict=True)):
        assert isinstance(outcome, Hit | Miss | Corrupt | Failed | TimedOut), outcome
        if isinstance(outcome, Failed):
            assert isinstance(outcome.error, StoreError), f"a foreign error: {outcome.error!r}"
        data = arrived(sink, index, outcome)
        if data is not None:
            right = data == frame
            assert right, f"chunk {index}: a hit, with bytes that nobody put there"
            found.add(key)
    return found


def _write(store: ChunkStore, frames: dict[ChunkKey, bytes], deadline: Deadline) -> set[ChunkKey]:
    """Which of *frames* the store says that it took, or may have taken."""
    __tracebackhide__ = True
    items = [Item(key, memoryview(frame)) for key, frame in frames.items()]
    try:
        outcomes = store.write(items, deadline)
    except StoreError:
        return set()
    assert len(outcomes) == len(frames), "one outcome per item"
    for outcome in outcomes:
        assert isinstance(outcome, Stored | Failed | TimedOut), outcome
        if isinstance(outcome, Failed):
            assert isinstance(outcome.error, StoreError), f"a foreign error: {outcome.error!r}"
    return {k for k, o in zip(frames, outcomes, strict=True) if isinstance(o, Stored | TimedOut)}


def _until_written(store: ChunkStore, frames: dict[ChunkKey, bytes]) -> None:
    """Write *frames*, and see them there, as soon as the service lets the store."""
    __tracebackhide__ = True
    limit, pause = soon(RETURN), Event()
    for tries in count(1):
        if _write(store, frames, soon(5.0)) == set(frames) == _read(store, frames, soon(5.0)):
            return
        assert tries < TRIES or not limit.expired, f"the store did not work within {RETURN:.0f} s"
        pause.wait(0.02)


def _comes_back(store: ChunkStore) -> None:
    """The same object works again, by itself, and what it still has is right."""
    __tracebackhide__ = True
    _until_written(store, NEW)
    _read(store, FRAMES, soon(10.0))
    found = store.contains(list(NEW), soon(ENOUGH))
    assert list(found) == [True] * len(NEW)
