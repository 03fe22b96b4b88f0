"""The checks of every call of a store during a fault: in time, and without wrong answers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import count
from threading import Event

import pytest

from hexkv.contracts.doubles import ListSink, chunk_key
from hexkv.contracts.kit.promise import not_offered
from hexkv.contracts.kit.waiting import UnderWay
from hexkv.contracts.store._base import StoreCase, arrived, content, same
from hexkv.contracts.store._service import Ability, Service
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
    SupportsQuarantine,
    SupportsRangeRead,
    SupportsScan,
    SupportsZeroCopy,
    TimedOut,
    namespace_of,
)

SHORT = 0.4
"""Seconds until the deadline of a call during a fault."""

GRACE = 2.0
"""Seconds of this process's time after its deadline in which an answer still counts as in time."""

RETURN = 30.0
"""Seconds after a service's return within which the same store object must work again."""

TRICKLE = 0.9
"""The share of a call's time that each answer takes, so that several take too long."""

TRIES = 5
"""The least number of attempts, even if they take longer than the time for them."""

ENOUGH = 30.0
"""Seconds for a call to a healthy service, on a machine however busy."""

OLD = {chunk_key(f"old {i}"): content(20_000 * i + 5000, seed=i) for i in range(3)}
NEW = {chunk_key(f"new {i}"): content(30_000 * i + 7000, seed=9 + i) for i in range(2)}
LARGE = {chunk_key(f"large {i}"): content(1 << 20, seed=20 + i) for i in range(4)}
SMALL = {chunk_key(f"small {i}"): content(300 + i, seed=40 + i) for i in range(12)}
DOOMED = {chunk_key("doomed"): content(600, seed=30)}
FIRST = {chunk_key("replaced"): content(1 << 20, seed=31)}
SECOND = {chunk_key("replaced"): content(1 << 20, seed=32)}
"""Two frames of one key."""

ABSENT = [chunk_key(f"absent {i}") for i in range(12)]
"""Never stored: deleting or setting them aside cannot disturb other calls."""

FRAMES = OLD | NEW | LARGE | SMALL | DOOMED
"""Each key only ever has one value: a late write of it does no harm."""


def soon(seconds: float = SHORT) -> Deadline:
    """A deadline of real time."""
    return Deadline.after(SystemClock(), seconds)


Break = Callable[[Ability], tuple[ChunkStore, Service]]
"""Puts the chunks in place: see the fixture ``broken``."""


class Breakable(StoreCase):
    """Base of the promises about a faulty service."""

    @property
    def kept(self) -> Collection[ChunkKey]:
        """Chunks that ``broken`` has put in place, and that stay there during a fault."""
        return () if self.loses else OLD

    def endures(self, store: ChunkStore) -> None:
        """Check as the function :func:`endures`, with the chunks that stay there."""
        __tracebackhide__ = True
        endures(store, kept=self.kept, here=() if self.denies_unreachable else self.kept)

    @pytest.fixture
    def broken(self, service: Service | None, exposed: ChunkStore) -> Iterator[Break]:
        """A function: the store, with its chunks, and the service if it can fail that way."""

        def broken(way: Ability) -> tuple[ChunkStore, Service]:
            if service is None or way not in service.can:
                not_offered(f"service.{way}")
            until_written(exposed, OLD | DOOMED)
            return exposed, service

        yield broken
        if service is not None and service.can & {"slow", "cut", "garbage", "full"}:
            service.mend()


class Watch(SystemClock):
    """A clock that sets an event when it is read, which precedes every wait."""

    __slots__ = ("looked_at",)

    def __init__(self) -> None:
        self.looked_at = Event()

    def now(self) -> float:
        self.looked_at.set()
        return super().now()


def endures(
    store: ChunkStore,
    seconds: float = SHORT,
    *,
    kept: Collection[ChunkKey] = (),
    here: Collection[ChunkKey] = (),
) -> None:
    """Make every call at the same time; each must answer in time, by the port, and correctly.

    Args:
        store: the store.
        seconds: until the deadline of each call.
        kept: chunks that are there, whatever happens: none of them is a miss.
        here: those of them for which ``contains`` is not False.
    """
    __tracebackhide__ = True  # the test that calls tells more
    calls = {
        "contains": lambda: _here(store, here, soon(seconds)),
        "read": lambda: read_some(store, FRAMES, soon(seconds), kept),
        "write": lambda: write_some(store, SMALL | NEW, soon(seconds)),
        "delete": lambda: _flags(store.delete, [*DOOMED, *ABSENT], soon(seconds)),
    }
    if isinstance(store, SupportsClear):
        clearer = store
        calls["clear_prefix"] = lambda: _clear(clearer, soon(seconds))
    if isinstance(store, SupportsRangeRead):
        ranged = store
        calls["read_range"] = lambda: _ranges(ranged, soon(seconds))
    if isinstance(store, SupportsQuarantine):
        warden = store
        calls["quarantine"] = lambda: _set_aside(warden, soon(seconds))
    if isinstance(store, SupportsZeroCopy):
        sharing = store
        calls["get_lease"] = lambda: _borrow(sharing)
    with UnderWay(calls, patience=GRACE) as crowd:
        late = crowd.late(seconds + GRACE)
        assert not late, f"no answer {GRACE} s after the deadline of {' and '.join(late)}"


def _flags(
    call: Callable[[Sequence[ChunkKey], Deadline], Sequence[bool]],
    keys: list[ChunkKey],
    deadline: Deadline,
) -> Sequence[bool]:
    """Return the answers; True for each key after an error, which denies nothing."""
    try:
        answers = call(keys, deadline)
    except StoreError:
        return [True] * len(keys)
    assert len(answers) == len(keys), "one answer per key"
    return answers


def _here(store: ChunkStore, kept: Collection[ChunkKey], deadline: Deadline) -> None:
    __tracebackhide__ = True
    answers = _flags(store.contains, list(FRAMES), deadline)
    denied = [key for key, here in zip(FRAMES, answers, strict=True) if key in kept and not here]
    assert not denied, f"contains is False for {len(denied)} chunks that are there"


def deleted(store: ChunkStore, deadline: Deadline) -> dict[ChunkKey, bytes]:
    """``DOOMED`` if a delete of it is answered, with True or False; nothing after an error."""
    try:
        store.delete(list(DOOMED), deadline)
    except StoreError:
        return {}
    return DOOMED


def _clear(store: SupportsClear, deadline: Deadline) -> None:
    """Clear a namespace without chunks, which cannot disturb the other calls."""
    with suppress(StoreError):
        count = store.clear_prefix(namespace_of(chunk_key("", "cleared")), deadline)
        assert count == 0, f"{count} chunks of a namespace without any"


def _ranges(store: SupportsRangeRead, deadline: Deadline) -> None:
    """Read a part of each chunk; the bytes of each hit must be right."""
    __tracebackhide__ = True
    for key, frame in OLD.items():
        into = bytearray(1000)
        with suppress(StoreError):
            outcome = store.read_range(key, 4000, memoryview(into), deadline)
            right = not isinstance(outcome, Hit) or into == frame[4000:5000]
            assert right, "a range with bytes that were never put there"


def _set_aside(store: SupportsQuarantine, deadline: Deadline) -> None:
    with suppress(StoreError):
        store.quarantine(ABSENT, deadline)


def _borrow(store: SupportsZeroCopy) -> None:
    """Borrow without a deadline: leases on memory need no service."""
    with suppress(StoreError):
        for lease in store.get_lease(list(FRAMES), "borrower"):
            if lease is not None:
                lease.release()


def lists(store: ChunkStore) -> None:
    """List the store, if it can; the entries must be right."""
    __tracebackhide__ = True
    if isinstance(store, SupportsScan):
        sizes = {key: len(frame) for key, frame in FRAMES.items()}
        with suppress(StoreError):
            for entry in store.scan():
                assert sizes.get(entry.key) == entry.size, "it lists a chunk that was never stored"


def read_some(
    store: ChunkStore,
    frames: dict[ChunkKey, bytes],
    deadline: Deadline,
    kept: Collection[ChunkKey] = (),
    sink: ListSink | None = None,
) -> set[ChunkKey]:
    """Return those of *frames* that could be read; the bytes of each hit must be right.

    Those of *kept* are there: a failure to read one is no miss.
    """
    __tracebackhide__ = True
    sink = ListSink() if sink is None else sink
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
        missed = isinstance(outcome, Miss) and key in kept
        assert not missed, f"chunk {index} is there, and a failure to read it is {outcome}"
        data = arrived(sink, index, outcome)
        if data is not None:
            right = data == frame
            assert right, f"chunk {index}: a hit, with bytes that were never put there"
            found.add(key)
    return found


def write_some(
    store: ChunkStore, frames: dict[ChunkKey, bytes], deadline: Deadline
) -> set[ChunkKey]:
    """Return those of *frames* that the store reports as stored, or as timed out."""
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


def found_of(store: ChunkStore, keys: Sequence[ChunkKey]) -> list[bytes | None]:
    """The frame of each hit on *keys*; None where there is none, or it cannot be read."""
    __tracebackhide__ = True
    sink = ListSink()
    outcomes = store.read(keys, sink, soon(ENOUGH))
    return [arrived(sink, index, outcome) for index, outcome in enumerate(outcomes)]


def until_written(store: ChunkStore, frames: dict[ChunkKey, bytes]) -> None:
    """Write *frames* and read them back, repeatedly until the service works."""
    __tracebackhide__ = True
    limit, pause = soon(RETURN), Event()
    for tries in count(1):
        if (
            write_some(store, frames, soon(5.0))
            == set(frames)
            == read_some(store, frames, soon(5.0))
        ):
            return
        assert tries < TRIES or not limit.expired, f"the store did not work within {RETURN:.0f} s"
        pause.wait(0.02)


def comes_back(store: ChunkStore) -> None:
    """Check that the same object works again without help, and that its chunks are right."""
    __tracebackhide__ = True
    until_written(store, NEW)
    read_some(store, FRAMES, soon(10.0))
    found = store.contains(list(NEW), soon(ENOUGH))
    assert list(found) == [True] * len(NEW)


def old_or_new(
    found: Sequence[bytes | None],
    old: Mapping[ChunkKey, bytes],
    new: Mapping[ChunkKey, bytes],
    stored: set[ChunkKey],
) -> None:
    """Check *found*: for each key of *new* that frame; or the old one or none, if not *stored*."""
    __tracebackhide__ = True
    for key, data in zip(new, found, strict=True):
        if key in stored:
            same([data], [new[key]])
        else:
            assert data in (old[key], new[key], None), "a frame that was never written"
