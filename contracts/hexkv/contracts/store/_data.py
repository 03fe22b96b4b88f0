"""L1: a frame written under a key is read under that key."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from random import Random

from hexkv.contracts.doubles import ListSink, chunk_key, deadline
from hexkv.contracts.kit.cases import each
from hexkv.contracts.kit.promise import promise
from hexkv.contracts.store._base import (
    RawAccess,
    Reopen,
    StoreCase,
    alike,
    arrived,
    content,
    read,
    same,
    write,
)
from hexkv.ports import (
    ChunkKey,
    ChunkStore,
    Hit,
    Item,
    Miss,
    Reason,
    Stored,
    StoreError,
    SupportsRangeRead,
)

A, B, C, D = (chunk_key(name) for name in "abcd")


class Data(StoreCase):
    """Promises about one chunk at a time."""

    @promise(
        "L1.1",
        "gives back the bytes that were written",
        clause="ChunkStore.read",
        why="the frame's checksum would fail, and the chunk never be a hit",
    )
    @each("size", [0, 1, 4095, 4096, 4097, 65_537, 1 << 20, (8 << 20) + 1])
    def test_gives_back_what_was_written(self, store: ChunkStore, size: int) -> None:
        key, frame = chunk_key(f"{size}"), content(size)
        write(store, {key: frame})
        same(read(store, key), [frame])

    @promise(
        "L1.2",
        "takes a frame of 64 MiB",
        clause="ChunkStore.write",
        why="chunks of a large model would never be cached, or be cached in part",
        hint="loop over short reads and short writes",
    )
    def test_takes_a_large_frame(self, store: ChunkStore) -> None:
        frame = content(64 << 20)
        write(store, {A: frame})
        same(read(store, A), [frame])

    @promise(
        "L1.3",
        "takes buffers that start anywhere in memory",
        clause="Item.frame, Sink.room",
        why="only engines whose memory happens to be aligned could use the store",
    )
    @each("offset", [1, 7, 511])
    @each("size", [1, 4096, 70_001])
    def test_takes_unaligned_buffers(self, store: ChunkStore, size: int, offset: int) -> None:
        key = chunk_key(f"{size} at {offset}")
        backing = bytearray(content(size + offset))
        outcomes = store.write([Item(key, memoryview(backing)[offset:])], deadline())
        assert isinstance(outcomes[0], Stored)
        sink = ListSink(offset=offset)
        (outcome,) = store.read([key], sink, deadline())
        same([arrived(sink, 0, outcome)], [bytes(backing[offset:])])

    @promise(
        "L1.4",
        "lets go of the caller's buffers when the call returns, whatever came of it",
        clause="Item.frame",
        why="the pool reuses the memory at once: another chunk's bytes would be stored or read",
        hint="keep a copy of the bytes, and no memoryview of them",
    )
    def test_lets_go_of_the_callers_buffers(self, store: ChunkStore) -> None:
        backing = bytearray(content(5000))
        before = bytes(backing)
        view = memoryview(backing)
        store.write([Item(A, view)], deadline())
        backing[:] = bytes(len(backing))
        same(read(store, A), [before])
        view.release()
        sinks = [ListSink(), ListSink(refuse={0}), ListSink()]
        late, ranges = bytearray(content(5000, seed=1)), [bytearray(100) for _ in range(3)]
        for sink, seconds in zip(sinks, (60.0, 60.0, -1.0), strict=True):
            with suppress(StoreError):
                store.read([A, B], sink, deadline(seconds))
        with suppress(StoreError):
            store.write([Item(B, memoryview(late))], deadline(-1.0))
        if isinstance(store, SupportsRangeRead):
            for into, key, seconds in zip(ranges, (A, C, A), (60.0, 60.0, -1.0), strict=True):
                with suppress(StoreError):
                    store.read_range(key, 1, memoryview(into), deadline(seconds))
        try:
            for buffer in (backing, late, *ranges):
                buffer.clear()
            for sink in sinks:
                sink.reclaim()
        except BufferError as error:
            raise AssertionError("the store still holds a view of a buffer") from error
        same(read(store, A), [before])

    @promise(
        "L1.5",
        "asks the sink for exactly the frame's size, and fills all of it",
        clause="Sink.room",
        why="the rest of the memory's former chunk would be taken for KV",
        hint="Hit(size) means that every byte of the buffer was written",
    )
    @each("size", [1, 4096, 10_000])
    def test_fills_exactly_the_room_it_asked_for(self, store: ChunkStore, size: int) -> None:
        key = chunk_key(f"{size}")
        frame = bytes(size)  # zeros: bytes that a store failed to write would not be zero
        write(store, {key: frame})
        sink = ListSink()
        outcomes = store.read([key], sink, deadline())
        assert list(outcomes) == [Hit(size)]
        assert set(sink.calls) == {(0, size)}
        same([arrived(sink, 0, outcomes[0])], [frame])

    @promise(
        "L1.6",
        "returns Stored with the frame's size, and then the frame is readable",
        clause="Stored",
        why="the core would count a chunk that is not there, and look for it each time",
    )
    def test_stored_means_readable(self, store: ChunkStore) -> None:
        frame = content(300)
        (first,) = store.write([Item(A, memoryview(frame))], deadline())
        assert first == Stored(300)
        same(read(store, A), [frame])
        (again,) = store.write([Item(A, memoryview(frame))], deadline())
        assert again in (Stored(300), Stored(0))
        same(read(store, A), [frame])

    @promise(
        "L1.7",
        "answers Miss(ABSENT) for what it does not have",
        clause="ChunkStore.read",
        why="every prompt that is new would look like a broken tier, until the breaker opens",
        hint="a miss is no error",
    )
    def test_a_miss_is_a_value(self, store: ChunkStore) -> None:
        sink = ListSink()
        assert list(store.read([A], sink, deadline())) == [Miss(Reason.ABSENT)]
        assert sink.calls == [], "the sink was asked for a buffer for a miss"

    @promise(
        "L1.8",
        "replaces a frame whole",
        clause="ChunkStore.write",
        why="the end of an old frame would stick to a new one",
        hint="truncate, or publish a new file by renaming; and most frames begin alike",
    )
    @each(
        ("old", "new", "make"),
        [
            *[(9000, 100, content), (100, 9000, content), (5000, 5000, content)],
            *[(5000, 0, content), (0, 5000, content)],
            *[(9000, 400_000, alike), (400_000, 400_000, alike)],
        ],
    )
    def test_overwriting_replaces_the_whole(
        self, store: ChunkStore, old: int, new: int, make: Callable[[int, int], bytes]
    ) -> None:
        key, beside = (chunk_key(f"{name} of {old} and {new}, {make.__name__}") for name in "ab")
        write(store, {key: make(old, 1), beside: make(old, 2)})
        same(read(store, key, beside), [make(old, 1), make(old, 2)])
        write(store, {key: make(new, 3)})
        same(read(store, key, beside), [make(new, 3), make(old, 2)])

    @promise(
        "L1.9",
        "contains what can be read, and nothing else",
        clause="ChunkStore.contains",
        why="an engine would promise its scheduler a hit that never comes, or compute for nothing",
    )
    def test_contains_agrees_with_read(self, store: ChunkStore) -> None:
        write(store, {A: b"a", C: b""})
        assert list(store.contains([A, B, C, D], deadline())) == [True, False, True, False]
        store.delete([A], deadline())
        assert list(store.contains([A, C], deadline())) == [False, True]

    @promise(
        "L1.10",
        "tells for each deleted chunk whether it was there",
        clause="ChunkStore.delete",
        why="the budget would be wrong by each chunk that was or was not there",
    )
    def test_delete_tells_whether_it_was_there(self, store: ChunkStore) -> None:
        write(store, {A: b"a", C: b"c"})
        assert list(store.delete([A, B, C], deadline())) == [True, False, True]
        assert list(store.delete([A], deadline())) == [False]

    @promise(
        "L1.11",
        "forgets deleted chunks, and nothing beside them",
        clause="ChunkStore.delete",
        why="chunks deleted for good, for a customer perhaps, would come back",
    )
    def test_a_deleted_chunk_is_a_miss(self, store: ChunkStore) -> None:
        write(store, {A: b"a", B: b"b"})
        store.delete([A], deadline())
        same(read(store, A, B), [None, b"b"])
        write(store, {A: b"again"})
        same(read(store, A), [b"again"])

    @promise(
        "L1.12",
        "answers a refused room with Miss(REFUSED), and disturbs no neighbour",
        clause="Sink.room",
        why="one chunk for which there is no memory would cost the whole batch",
        hint="Sink.room may give None",
    )
    def test_a_refused_room_is_a_miss(self, store: ChunkStore) -> None:
        write(store, {A: b"a" * 10, B: b"b" * 20, C: b"c" * 30})
        sink = ListSink(refuse={1})
        outcomes = store.read([A, B, C], sink, deadline())
        assert list(outcomes) == [Hit(10), Miss(Reason.REFUSED), Hit(30)]
        same([sink.data(0), sink.data(2)], [b"a" * 10, b"c" * 30])
        same(read(store, B), [b"b" * 20])

    @promise(
        "L1.13",
        "puts exactly the frame's bytes on the medium",
        clause="ChunkStore.write",
        why="another engine, or a later version, could not read what this one has written",
        hint="the `raw` fixture must give the frame as the medium holds it",
    )
    def test_what_is_written_is_on_the_medium(self, store: ChunkStore, raw: RawAccess) -> None:
        frames = {A: content(5000, seed=1), B: b"", C: content(1, seed=2)}
        write(store, frames)
        assert raw.keys() == set(frames)
        same([raw.get(key) for key in frames], list(frames.values()))
        store.delete([A], deadline())
        assert raw.get(A) is None
        assert raw.keys() == {B, C}

    @promise(
        "L1.14",
        "reads the bytes of the medium",
        clause="ChunkStore.read",
        why="what another engine has written could not be read",
        hint="at the latest after it was opened again, where it keeps an index of its own",
    )
    def test_what_is_on_the_medium_is_read(
        self, store: ChunkStore, raw: RawAccess, reopen: Reopen
    ) -> None:
        frame = content(5000)
        raw.put(A, frame)
        if reopen is not None and read(store, A) == [None]:
            store = reopen()
        same(read(store, A), [frame])
        assert list(store.contains([A], deadline())) == [True]

    @promise(
        "L1.15",
        "agrees with a dictionary, whatever it is asked in which order",
        clause="ChunkStore, every call",
        why="calls that are right alone and wrong together are found by users",
    )
    @each("seed", range(3))
    def test_agrees_with_a_dictionary(self, store: ChunkStore, seed: int) -> None:
        random = Random(seed)  # noqa: S311 - nothing here is secret
        some = [chunk_key(f"{seed}: {name}") for name in "abcd"]
        model: dict[ChunkKey, bytes] = {}
        for step in range(120):
            keys = random.sample(some, random.randint(1, 4))
            match random.choice(["write", "write", "delete", "read"]):
                case "write":
                    frames = {k: content(random.choice([0, 7, 4096, 9999]), step) for k in keys}
                    write(store, frames)
                    model.update(frames)
                case "delete":
                    gone = list(store.delete(keys, deadline()))
                    assert gone == [model.pop(key, None) is not None for key in keys]
                case _:
                    assert list(store.contains(keys, deadline())) == [k in model for k in keys]
                    same(read(store, *keys), [model.get(key) for key in keys])
