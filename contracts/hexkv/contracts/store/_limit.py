"""Promises about a limit of bytes that changes while the store is in use."""

from __future__ import annotations

from contextlib import suppress

from hexkv.contracts.doubles import chunk_key, deadline
from hexkv.contracts.kit.promise import not_offered, promise
from hexkv.contracts.store._base import StoreCase, content, read, same, write
from hexkv.ports import ChunkStore, Failed, Item, StoreFull, SupportsLimit

A, B, C = (chunk_key(name) for name in "abc")
SIZE = 256 << 10
ROOM = 8 * SIZE
"""More than three frames take on any medium."""


class OwnLimit(StoreCase):
    """``SupportsLimit``."""

    @promise(
        "limit.1",
        "takes as many bytes as its latest limit, and keeps chunks beyond",
        clause="SupportsLimit.limit",
        why="a tier whose budget changes would lose chunks that are in its index, or stay full",
        hint="change the number alone; the core evicts",
    )
    def test_a_limit_changes_while_the_store_is_in_use(self, store: ChunkStore) -> None:
        if not isinstance(store, SupportsLimit):
            not_offered("SupportsLimit")
        frames = {A: content(SIZE, seed=1), B: content(SIZE, seed=2)}
        write(store, frames)
        for size in (2 * SIZE - 1, 0, 1):
            store.limit(size)
            same(read(store, A, B), [*frames.values()])
        _is_full(store)
        with suppress(StoreFull):  # where there cannot be as many, the former limit stays
            store.limit(1 << 62)
            store.limit(1)
        _is_full(store)
        store.limit(2 * SIZE + SIZE // 2)
        _is_full(store)
        store.limit(ROOM)
        write(store, {C: content(SIZE, seed=3)})
        same(read(store, A, B, C), [*frames.values(), content(SIZE, seed=3)])
        store.limit(1)
        assert list(store.delete([A, B, C], deadline())) == [True] * 3
        _is_full(store)


def _is_full(store: ChunkStore) -> None:
    """Check that a frame finds no room, and that none is there afterwards."""
    (outcome,) = store.write([Item(C, memoryview(content(SIZE, seed=4)))], deadline())
    refused = isinstance(outcome, Failed) and isinstance(outcome.error, StoreFull)
    assert refused, f"a write beyond the limit answered {outcome}, not Failed with StoreFull"
    same(read(store, C), [None])
