"""L0: a store can be opened, and closed without a call."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress

from hexkv.contracts.doubles import HeapBlock, ListSink, chunk_key, deadline
from hexkv.contracts.kit.promise import promise
from hexkv.contracts.store._base import RawAccess, StoreCase, read, write
from hexkv.ports import (
    PAGE,
    ChunkKey,
    ChunkStore,
    Hit,
    Item,
    Stored,
    StoreError,
    SupportsClear,
    SupportsQuarantine,
    SupportsRangeRead,
    SupportsScan,
    SupportsZeroCopy,
)

ABILITIES: tuple[type, ...] = (
    SupportsClear,
    SupportsQuarantine,
    SupportsRangeRead,
    SupportsScan,
    SupportsZeroCopy,
)


class Lifecycle(StoreCase):
    """Promises about a store before its first chunk and after its last."""

    @promise(
        "L0.1",
        "has every method of a ChunkStore",
        clause="ChunkStore",
        why="the core would find out at the first request that needs the method",
    )
    def test_is_a_chunk_store(self, store: ChunkStore) -> None:
        assert isinstance(store, ChunkStore)

    @promise(
        "L0.2",
        "has all methods of an optional ability, or none",
        clause="SupportsScan, SupportsQuarantine, SupportsClear, SupportsRangeRead and the like",
        why="an ability that is half there is not used, and there is no error",
        hint="a misspelt method makes the core believe that the ability is not offered",
    )
    def test_offers_an_ability_whole_or_not_at_all(self, store: ChunkStore) -> None:
        for ability in ABILITIES:
            methods = {name for name in vars(ability) if not name.startswith("_")}
            present = {name for name in methods if hasattr(store, name)}
            assert present in (set(), methods), f"{ability.__name__} without {methods - present}"

    @promise(
        "L0.3",
        "holds nothing when it is new",
        clause="ChunkStore",
        why="an engine that starts would count chunks that were never stored",
        hint="the `store` fixture must be empty",
    )
    def test_begins_empty(self, store: ChunkStore, raw: RawAccess) -> None:
        key = chunk_key("never written")
        assert read(store, key) == [None]
        assert list(store.contains([key], deadline())) == [False]
        assert list(store.delete([key], deadline())) == [False]
        assert raw.get(key) is None
        assert raw.keys() == set()

    @promise(
        "L0.4",
        "answers an empty batch with an empty answer",
        clause="ChunkStore, every call",
        why="a request of which nothing is left to ask would fail",
    )
    def test_an_empty_batch_has_an_empty_answer(self, store: ChunkStore) -> None:
        sink = ListSink()
        assert list(store.contains([], deadline())) == []
        assert list(store.read([], sink, deadline())) == []
        assert list(store.write([], deadline())) == []
        assert list(store.delete([], deadline())) == []
        assert sink.calls == []

    @promise(
        "L0.5",
        "may be closed twice",
        clause="ChunkStore.close",
        why="an engine that is closed while it fails would hide the first error behind a second",
        hint="remember that you are closed",
    )
    def test_may_be_closed_twice(self, store: ChunkStore) -> None:
        write(store, {chunk_key("a"): b"frame"})
        store.close()
        store.close()

    @promise(
        "L0.6",
        "fails as a store does once it is closed",
        clause="ChunkStore.close",
        why="a worker that is late when the engine closes would end with a foreign error",
        hint="raise a StoreError, or answer with anything but a hit",
    )
    def test_a_closed_store_fails_as_a_store_does(self, store: ChunkStore) -> None:
        key = chunk_key("a")
        write(store, {key: b"frame"})
        store.close()
        new = Item(chunk_key("b"), memoryview(b"frame"))
        calls: list[Callable[[], Iterable[object]]] = [
            lambda: store.contains([key], deadline()),
            lambda: store.read([key], ListSink(), deadline()),
            lambda: store.write([new], deadline()),
            lambda: store.delete([key], deadline()),
        ]
        if isinstance(store, SupportsRangeRead):
            ranged = store
            calls.append(lambda: [ranged.read_range(key, 0, memoryview(bytearray(5)), deadline())])
        if isinstance(store, SupportsClear):
            clearer = store
            calls.append(lambda: [clearer.clear_prefix(key, deadline()) > 0])
        if isinstance(store, SupportsScan):
            listing = store
            calls.append(lambda: [any(entry.key == key for entry in listing.scan())])
        if isinstance(store, SupportsQuarantine):
            warden = store
            calls.append(lambda: [warden.quarantine([key], deadline())])  # type: ignore[func-returns-value]
        block = HeapBlock(bytes(2 * PAGE))
        if isinstance(store, SupportsZeroCopy):
            sharing = store
            calls.append(lambda: [lease is not None for lease in sharing.get_lease([key], "late")])
            calls.append(lambda: [_keep(sharing, key, block)])  # type: ignore[func-returns-value]
        for call in calls:
            with suppress(StoreError):
                (answer,) = call()
                assert answer is not True
                assert not isinstance(answer, Hit | Stored)
        assert block.held == 0, "a lease was kept by a closed store"


def _keep(sharing: SupportsZeroCopy, key: ChunkKey, block: HeapBlock) -> None:
    with block.lease() as lease:  # which stays ours if the store refuses it
        sharing.put_lease([key], [lease])
