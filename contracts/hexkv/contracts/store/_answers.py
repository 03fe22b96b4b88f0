"""L1, continued: the types of answers: the port's own outcomes, booleans, or None."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

from hexkv.contracts.doubles import HeapBlock, ListSink, chunk_key, deadline
from hexkv.contracts.kit.cases import case, each
from hexkv.contracts.kit.promise import promise
from hexkv.contracts.store._base import StoreCase, content, write
from hexkv.ports import (
    KEY_BYTES,
    PAGE,
    ChunkStore,
    Corrupt,
    Entry,
    Failed,
    Hit,
    Item,
    Lease,
    Miss,
    Reason,
    Stored,
    StoreError,
    SupportsClear,
    SupportsQuarantine,
    SupportsRangeRead,
    SupportsScan,
    SupportsZeroCopy,
    TimedOut,
)

_LEASE = ("owner", "spec", "size", "frame", "payload", "share", "release")

A, B, C = (chunk_key(name) for name in "abc")
SIZES = {A: 5000, B: 0, chunk_key("d"): 70_000}

RANGES = {
    "all": (A, 0, 5000),
    "a part": (A, 17, 100),
    "beyond the end": (A, 4999, 2),
    "of nothing": (B, 0, 1),
    "of a missing chunk": (C, 0, 1),
}

kinds = promise(
    "L1.28",
    "answers in the port's own kinds: a sequence of one outcome or boolean per key, or nothing",
    clause="ChunkStore, answers",
    why="the core takes every other answer for a failure: nothing would be cached, or used",
    hint="build outcomes from hexkv.ports, numbers with int(); return None where the port does",
)


class Answers(StoreCase):
    """Promises about the answers of every call, successful or not."""

    @kinds
    @each("seconds", [None, -1.0], ids=["in time", "late"])
    def test_batches_are_answered_in_kind(self, store: ChunkStore, seconds: float | None) -> None:
        frames = {key: content(size) for key, size in SIZES.items()}
        keys, until = [A, C, *SIZES], deadline() if seconds is None else deadline(seconds)
        asked = list(keys)
        items = [Item(key, memoryview(frame)) for key, frame in frames.items()]
        with suppress(StoreError):
            _rows(store.write(items, until), items, _written)
        write(store, frames)
        with suppress(StoreError):
            _rows(store.contains(asked, until), keys, _boolean)
        for refusing in (False, True):
            sink = _Reluctant() if refusing else ListSink()
            with suppress(StoreError):
                _rows(store.read(asked, sink, until), keys, _read)
        with suppress(StoreError):
            _rows(store.delete(asked, until), keys, _boolean)
        assert asked == keys, "the caller's batch was changed"

    @kinds
    def test_abilities_answer_in_kind(self, store: ChunkStore) -> None:
        write(store, {key: content(size) for key, size in SIZES.items()})
        if isinstance(store, SupportsScan):
            _listed(store)
        if isinstance(store, SupportsRangeRead):
            for name, (key, start, size) in RANGES.items():
                with case(name), suppress(StoreError):
                    _read(store.read_range(key, start, memoryview(bytearray(size)), deadline()))
        if isinstance(store, SupportsQuarantine):
            for _ in range(2):
                _nothing("quarantine", store.quarantine([A], deadline()))  # type: ignore[func-returns-value]
        if isinstance(store, SupportsClear):
            for _ in range(2):
                count = store.clear_prefix(A[:16], deadline())
                assert type(count) is int, f"a clear was counted with {_kind(count)}"
        if isinstance(store, SupportsZeroCopy):
            _lent(store)
        for _ in range(2):
            _nothing("close", store.close())  # type: ignore[func-returns-value]


class _Reluctant(ListSink):
    """Has room for every other chunk."""

    def room(self, index: int, size: int) -> memoryview | None:
        assert type(index) is int, f"a sink was asked for chunk {_kind(index)}"
        assert type(size) is int, f"a sink was asked for a size, {_kind(size)}"
        return super().room(index, size) if index % 2 else None


def _listed(store: SupportsScan) -> None:
    for entry in store.scan():
        assert type(entry) is Entry, f"a scan lists {_kind(entry)}"
        assert type(entry.key) is bytes, f"a key is {_kind(entry.key)}"
        assert len(entry.key) == KEY_BYTES, f"a key of {len(entry.key)} bytes"
        assert type(entry.size) is int, f"a size is {_kind(entry.size)}"
        assert type(entry.stored) in (float, int), f"a time is {_kind(entry.stored)}"


def _lent(store: SupportsZeroCopy) -> None:
    block = HeapBlock(bytes(2 * PAGE))
    _nothing("put_lease", store.put_lease([A], [block.lease()]))  # type: ignore[func-returns-value]
    lent = store.get_lease([A, C], "a reader")
    try:
        _rows(lent, [A, C], lambda one: _lease(one, "a reader"))
    finally:
        for one in lent:
            if one is not None and hasattr(one, "release"):
                one.release()


def _rows(answer: object, asked: Sequence[object], check: Callable[[object], None]) -> None:
    __tracebackhide__ = True
    assert isinstance(answer, Sequence) or hasattr(answer, "__array__"), (
        f"a batch was answered with {_kind(answer)}, which is no sequence"
    )
    rows: list[object] = list(answer)  # type: ignore[call-overload]
    assert len(rows) == len(asked), f"{len(rows)} answers for {len(asked)} chunks"
    for row in rows:
        check(row)


def _boolean(answer: object) -> None:
    item = getattr(answer, "item", None)  # a numpy scalar has one
    answer = item() if callable(item) else answer
    assert type(answer) is bool, f"a question was answered with {_kind(answer)}"


def _read(outcome: object) -> None:
    kind = type(outcome)
    assert kind in (Hit, Miss, Corrupt, Failed, TimedOut), f"a read answered {_kind(outcome)}"
    if isinstance(outcome, Hit):
        assert type(outcome.size) is int, f"the size of a hit is {_kind(outcome.size)}"
    elif isinstance(outcome, Miss):
        assert type(outcome.reason) is Reason, f"a miss because of {_kind(outcome.reason)}"
    elif isinstance(outcome, Corrupt):
        assert type(outcome.detail) is str, f"a detail is {_kind(outcome.detail)}"
    _error(outcome)


def _written(outcome: object) -> None:
    assert type(outcome) in (Stored, Failed, TimedOut), f"a write answered {_kind(outcome)}"
    if isinstance(outcome, Stored):
        assert type(outcome.size) is int, f"the size of a stored frame is {_kind(outcome.size)}"
    _error(outcome)


def _error(outcome: object) -> None:
    if isinstance(outcome, Failed):
        assert isinstance(outcome.error, Exception), f"an error is {_kind(outcome.error)}"


def _lease(answer: object, owner: str) -> None:
    if answer is None:
        return
    lacks = [name for name in _LEASE if not hasattr(answer, name)]
    assert not lacks, f"lent {_kind(answer)}, a lease without {', '.join(lacks)}"
    lease: Lease = answer  # type: ignore[assignment] # as far as names tell
    assert lease.owner == owner, f"lent to {lease.owner!r} for {owner!r}"
    assert type(lease.size) is int, f"a lease's size is {_kind(lease.size)}"
    for view in (lease.frame, lease.payload):
        assert type(view) is memoryview, f"a lease gives {_kind(view)}"
    assert lease.size >= len(lease.frame), "a lease takes less than its frame"


def _nothing(what: str, answer: object) -> None:
    assert answer is None, f"{what} answered {_kind(answer)}"


def _kind(what: object) -> str:
    return f"the class {what.__qualname__}" if isinstance(what, type) else type(what).__qualname__
