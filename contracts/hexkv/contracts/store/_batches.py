"""L1, continued: batches, look-alike keys, and deadlines that have passed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

from hexkv.contracts.doubles import ListSink, ManualClock, chunk_key, deadline
from hexkv.contracts.kit.cases import each
from hexkv.contracts.kit.promise import promise
from hexkv.contracts.store._base import (
    RawAccess,
    StoreCase,
    answered,
    arrived,
    content,
    promptly,
    read,
    same,
    write,
)
from hexkv.ports import (
    KEY_BYTES,
    NAMESPACE_BYTES,
    ChunkKey,
    ChunkStore,
    Corrupt,
    Deadline,
    Failed,
    Hit,
    Item,
    Miss,
    Reason,
    Stored,
    StoreError,
    SupportsQuarantine,
    SupportsRangeRead,
    TimedOut,
)

A, B, C = (chunk_key(name) for name in "abc")
MANY = 4000
_BASE = bytes(range(0x41, 0x41 + KEY_BYTES))


class _Passing(ManualClock):
    """A clock that jumps far beyond a deadline after some looks at it."""

    def __init__(self, looks: int) -> None:
        super().__init__()
        self.left = looks

    def now(self) -> float:
        self.left -= 1
        return super().now() + (1000.0 if self.left < 0 else 0.0)


def _passing(looks: int) -> Deadline:
    """Return a deadline that has not passed for the first *looks* at it."""
    clock = _Passing(looks + 1)
    return Deadline.after(clock, 10.0)


def _changed(place: int, value: int = 0) -> bytes:
    return _BASE[:place] + bytes([value]) + _BASE[place + 1 :]


LOOK_ALIKE = {
    "namespace, first byte": (_BASE, _changed(0)),
    "namespace, last byte": (_BASE, _changed(NAMESPACE_BYTES - 1)),
    "digest, first byte": (_BASE, _changed(NAMESPACE_BYTES)),
    "digest, last byte": (_BASE, _changed(KEY_BYTES - 1)),
    "digest, one bit": (_BASE, _changed(30, _BASE[30] ^ 1)),
    "letter case": (b"k" * KEY_BYTES, b"K" * KEY_BYTES),
    "text after a zero byte": (b"k\0a" + _BASE[3:], b"k\0b" + _BASE[3:]),
    "trailing blanks": (_BASE[:-2] + b"\0\0", _BASE[:-2] + b"  "),
    "line ends": (_BASE[:-2] + b"\r\n", _BASE[:-2] + b"\n\n"),
    "not UTF-8": (b"\xff" * KEY_BYTES, b"\xfe" * KEY_BYTES),
    "paths": (b"../" * (KEY_BYTES // 3), b"./." * (KEY_BYTES // 3)),
    "wildcards": (b"k" * KEY_BYTES, b"%" * KEY_BYTES),
    "placeholders": (b"k" * KEY_BYTES, b"_" * KEY_BYTES),
    "stars": (b"k" * KEY_BYTES, b"*" * KEY_BYTES),
    "the ends of the range": (bytes(KEY_BYTES), b"\xff" * KEY_BYTES),
}
"""Pairs of keys that a store might confuse, by the difference that it would have to overlook."""


class Batches(StoreCase):
    """Promises about several chunks at once, and about keys that are easily confused."""

    @promise(
        "L1.20",
        "answers a batch in the order of the request, hits and misses mixed",
        clause="ChunkStore, the order of a batch",
        why="a prompt would be answered with the KV of another part of it",
    )
    def test_a_batch_is_answered_in_order(self, store: ChunkStore) -> None:
        keys = [chunk_key(f"chunk {i}") for i in range(12)]
        frames = {key: content(100 + i, seed=i) for i, key in enumerate(keys) if i % 3}
        write(store, frames)
        for order in (keys, keys[::-1], keys[5:] + keys[:5]):
            same(read(store, *order), [frames.get(key) for key in order])
            here = store.contains(order, deadline())
            assert list(here) == [key in frames for key in order]

    @promise(
        "L1.21",
        "answers a key that is asked twice in a batch twice",
        clause="ChunkStore, the order of a batch",
        why="two requests that share a prefix are often in one batch",
    )
    def test_duplicates_in_a_batch_are_each_answered(self, store: ChunkStore) -> None:
        write(store, {A: b"aaa", B: b"b"})
        same(read(store, A, B, A, C, A), [b"aaa", b"b", b"aaa", None, b"aaa"])
        assert list(store.contains([A, A, C, C], deadline())) == [True, True, False, False]
        sink = ListSink(refuse={0})
        outcomes = store.read([A, C, A], sink, deadline())
        assert list(outcomes) == [Miss(Reason.REFUSED), Miss(), Hit(3)]
        same([sink.data(2)], [b"aaa"])
        gone = store.delete([A, A], deadline())
        assert len(gone) == 2
        assert any(gone)
        same(read(store, A, B), [None, b"b"])

    @promise(
        "L1.22",
        "keeps one of two frames that a batch writes under one key, whole",
        clause="ChunkStore.write",
        why="two requests that store the same chunk at once are the rule, not the exception",
    )
    def test_duplicates_in_a_write_leave_one_of_them(self, store: ChunkStore) -> None:
        one, two = content(5000, seed=1), content(300, seed=2)
        outcomes = store.write([Item(A, memoryview(one)), Item(A, memoryview(two))], deadline())
        assert all(isinstance(outcome, Stored) for outcome in outcomes)
        assert len(outcomes) == 2
        assert read(store, A) in ([one], [two])

    @promise(
        "L1.26",
        "answers a write in the order of its items, small and large mixed",
        clause="ChunkStore.write",
        why="the core would count one chunk's bytes, or its failure, for another",
    )
    def test_a_write_is_answered_in_order(self, store: ChunkStore) -> None:
        sizes = [70_000, 0, 5000, 1, 300_000, 4096, 17]
        frames = {chunk_key(f"chunk {i}"): content(n, seed=i) for i, n in enumerate(sizes)}
        items = [Item(key, memoryview(frame)) for key, frame in frames.items()]
        assert list(store.write(items, deadline())) == [Stored(size) for size in sizes]
        same(read(store, *frames), list(frames.values()))

    @promise(
        "L1.27",
        "answers a batch of thousands, few of which are there",
        clause="ChunkStore, the order of a batch",
        why="a prompt of a million tokens is 4,000 chunks, looked up at once",
        hint="split the batch where your client, protocol or server has a limit",
    )
    def test_a_batch_may_be_long(self, store: ChunkStore) -> None:
        keys = [chunk_key(f"chunk {i}") for i in range(MANY)]
        frames = {key: content(40, seed=i) for i, key in enumerate(keys) if i % 500 == 7}
        write(store, frames)
        answered(list(store.contains(keys, deadline())), [key in frames for key in keys])
        same(read(store, *keys), [frames.get(key) for key in keys])
        answered(list(store.delete(keys, deadline())), [key in frames for key in keys])

    @promise(
        "L1.23",
        "keeps keys apart that differ in a single byte",
        clause="ChunkKey",
        why="the KV of another prompt, or of another model, would be given back",
        hint="a key is opaque bytes: use all of them, encode them without loss",
    )
    @each("pair", LOOK_ALIKE.values(), ids=LOOK_ALIKE)
    def test_keeps_look_alike_keys_apart(
        self, store: ChunkStore, raw: RawAccess, pair: tuple[bytes, bytes]
    ) -> None:
        one, other = map(ChunkKey, pair)
        write(store, {one: b"one"})
        same(read(store, one, other), [b"one", None])
        assert list(store.contains([other], deadline())) == [False]
        assert list(store.delete([other], deadline())) == [False]
        write(store, {other: b"the other"})
        same(read(store, one, other), [b"one", b"the other"])
        same([raw.get(one), raw.get(other)], [b"one", b"the other"])
        store.delete([one], deadline())
        same(read(store, one, other), [None, b"the other"])
        store.delete([other], deadline())

    @promise(
        "L1.24",
        "answers at once when the deadline has passed: TimedOut, a failure, or the answer",
        clause="ChunkStore, every call's deadline",
        why="a request that is late already would be made later",
        hint="look at the deadline before you wait, and give Deadline.remaining() to what waits",
    )
    @each("operation", ["contains", "read", "write", "delete", "read_range", "quarantine"])
    def test_an_expired_deadline_is_answered_at_once(
        self, store: ChunkStore, operation: str
    ) -> None:
        frame, passed, sink = content(5000), deadline(-1.0), ListSink()
        write(store, {A: frame})
        calls: dict[str, Callable[[], Sequence[object]]] = {
            "contains": lambda: store.contains([A], passed),
            "read": lambda: store.read([A], sink, passed),
            "write": lambda: store.write([Item(B, memoryview(frame))], passed),
            "delete": lambda: store.delete([A], passed),
        }
        if isinstance(store, SupportsRangeRead):
            ranged, into = store, memoryview(bytearray(5))
            calls["read_range"] = lambda: [ranged.read_range(A, 0, into, passed)]
        if isinstance(store, SupportsQuarantine):
            warden = store
            calls["quarantine"] = lambda: [warden.quarantine([A], passed)]  # type: ignore[func-returns-value]
        if operation not in calls:
            return
        with suppress(StoreError):
            answers = promptly(calls[operation])
            assert len(answers) == 1
        assert read(store, A) in ([frame], [None])
        assert read(store, B) in ([frame], [None])

    @promise(
        "L1.25",
        "tells the truth when the deadline has passed",
        clause="ChunkStore, every call's deadline",
        why="in a hurry, half a frame would be taken for a whole one, or a chunk for absent",
        hint="a store without an answer in time raises StoreUnreachable: False is an answer",
    )
    def test_an_expired_deadline_makes_nobody_lie(self, store: ChunkStore) -> None:
        frames = {A: content(5000, seed=1), B: content(300, seed=2)}
        write(store, frames)
        sink = ListSink()
        with suppress(StoreError):
            answers = promptly(lambda: store.read([A, B], sink, deadline(-1.0)))
            for index, (key, outcome) in enumerate(zip(frames, answers, strict=True)):
                assert not isinstance(outcome, Corrupt)
                assert arrived(sink, index, outcome) in (None, frames[key])
        item = Item(C, memoryview(b"late"))
        with suppress(StoreError):
            (late,) = promptly(lambda: store.write([item], deadline(-1.0)))
            assert isinstance(late, Stored | TimedOut | Failed)
            if isinstance(late, Stored):
                same(read(store, C), [b"late"])
        for looks in range(4):
            with suppress(StoreError):
                here = promptly(lambda looks=looks: store.contains([A, B], _passing(looks)))  # type: ignore[misc]
                assert all(here), f"late after {looks} looks at the clock, contains denies a chunk"
        with suppress(StoreError):
            gone = promptly(lambda: store.delete([A, B], deadline(-1.0)))
            for key, was_there in zip(frames, gone, strict=True):
                assert was_there or read(store, key) == [None], "a delete denies a chunk that stays"
