"""Sharing: a store in memory that keeps leases instead of copies."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from hexkv.contracts.doubles import HeapBlock, chunk_key, deadline
from hexkv.contracts.kit.promise import not_offered, promise
from hexkv.contracts.store._base import StoreCase, content, read, same, write
from hexkv.ports import (
    MAGIC,
    PAGE,
    ChunkKey,
    ChunkStore,
    Lease,
    SupportsClear,
    SupportsOwnMemory,
    SupportsQuarantine,
    SupportsScan,
    SupportsZeroCopy,
    namespace_of,
)

A, B, C, D = (chunk_key(name) for name in "abcd")


def _block(seed: int = 0, payload: int = PAGE) -> HeapBlock:
    """A block with a frame in it, without leases."""
    return HeapBlock(MAGIC + content(PAGE - len(MAGIC) + payload, seed))


def _shares(store: object) -> int:
    """The number of leases on a block that the store keeps: 0 if it has copied the block."""
    return 0 if isinstance(store, SupportsOwnMemory) and store.own_memory else 1


def _keep(sharing: SupportsZeroCopy, key: ChunkKey, block: HeapBlock) -> bytes:
    """Let the store keep *block*, by a lease of its own; return the frame's bytes."""
    lease = block.lease()
    frame = bytes(lease.frame)
    sharing.put_lease([key], [lease])
    return frame


def _is_gone(store: ChunkStore, sharing: SupportsZeroCopy, block: HeapBlock) -> None:
    __tracebackhide__ = True
    assert block.owners == {}
    with _lent(sharing, A) as (lease,):
        assert lease is None
    same(read(store, A), [None])


@contextmanager
def _lent(sharing: SupportsZeroCopy, *keys: ChunkKey) -> Iterator[list[Lease | None]]:
    leases = list(sharing.get_lease(keys, "borrower"))
    assert len(leases) == len(keys), "one lease or None per key"
    try:
        yield leases
    finally:
        for lease in leases:
            if lease is not None:
                lease.release()


class Sharing(StoreCase):
    """``SupportsZeroCopy``."""

    @pytest.fixture
    def sharing(self, store: ChunkStore) -> SupportsZeroCopy:
        """The store, seen as one that keeps and lends leases."""
        if not isinstance(store, SupportsZeroCopy):
            not_offered("SupportsZeroCopy")
        return store

    @promise(
        "sharing.1",
        "lends the very memory that it was given to keep, or that it copied it to, once",
        clause="SupportsZeroCopy.get_lease",
        why="each hit in memory would cost a copy, which is most of its time",
    )
    def test_lends_the_memory_it_keeps(self, sharing: SupportsZeroCopy) -> None:
        block = _block()
        frame = _keep(sharing, A, block)
        with _lent(sharing, A, A) as (lease, other):
            assert lease is not None
            assert other is not None
            if _shares(sharing):
                block.memory[PAGE] ^= 0xFF
                assert lease.frame[PAGE] == block.memory[PAGE], "a copy was lent"
            else:
                same([bytes(lease.frame)], [frame])
            assert lease.frame.readonly == other.frame.readonly
            if not lease.frame.readonly:
                lease.payload[0] ^= 0xFF
                assert other.frame[PAGE] == lease.frame[PAGE], "each loan is a copy"
            assert len(lease.frame) == len(frame)

    @promise(
        "sharing.2",
        "keeps every block of a batch under its own key, by the lease that it was given",
        clause="SupportsZeroCopy.put_lease",
        why="a block would be reused while the store lends it, or be held for ever",
        hint="put_lease(keys, leases) keeps these leases, and releases each with its chunk",
    )
    def test_keeps_the_leases_of_a_batch(
        self, store: ChunkStore, sharing: SupportsZeroCopy
    ) -> None:
        blocks = {A: _block(1), B: _block(2), C: _block(3)}
        leases = [block.lease("the store") for block in blocks.values()]
        frames = [bytes(lease.frame) for lease in leases]
        sharing.put_lease([*blocks], leases)
        same(read(store, *blocks), frames)
        with _lent(sharing, *blocks) as lent:
            same([None if one is None else bytes(one.frame) for one in lent], frames)
        if _shares(sharing):
            assert [block.owners for block in blocks.values()] == [{"the store": 1}] * 3
        assert list(store.delete([B], deadline())) == [True]
        assert [block.held for block in blocks.values()] == [_shares(sharing), 0, _shares(sharing)]
        same(read(store, *blocks), [frames[0], None, frames[2]])
        first, last = _block(4), _block(5)
        twice = [first.lease(), last.lease()]
        either = [[bytes(lease.frame)] for lease in twice]
        sharing.put_lease([D, D], twice)
        assert read(store, D) in either, "neither frame of two leases of one key"
        store.delete([D], deadline())
        assert (first.held, last.held) == (0, 0), "of two leases of one key, one is forgotten"

    @promise(
        "sharing.3",
        "reads, contains and lists what it keeps",
        clause="SupportsZeroCopy.put_lease",
        why="a chunk would be there for one way of asking and not for another",
    )
    def test_what_is_kept_is_a_chunk_like_any_other(
        self, store: ChunkStore, sharing: SupportsZeroCopy
    ) -> None:
        assert list(store.contains([A, B], deadline())) == [False, False]
        same(read(store, A, B), [None, None])
        frame = _keep(sharing, A, _block())
        write(store, {B: b"written"})
        same(read(store, B, A, C), [b"written", frame, None])
        assert list(store.contains([A, B, C], deadline())) == [True, True, False]
        if isinstance(store, SupportsScan):
            listed = {entry.key: entry.size for entry in store.scan()}
            assert listed == {A: len(frame), B: len(b"written")}

    @promise(
        "sharing.4",
        "lends nothing after a delete, a quarantine or a clear, and lets go of the block",
        clause="ChunkStore.delete",
        why="the pool would run out of blocks that are not in use",
    )
    def test_lends_nothing_after_a_delete(
        self, store: ChunkStore, sharing: SupportsZeroCopy
    ) -> None:
        block = _block()
        _keep(sharing, A, block)
        assert list(store.delete([A, C], deadline())) == [True, False]
        _is_gone(store, sharing, block)
        if isinstance(store, SupportsQuarantine):
            _keep(sharing, A, block := _block())
            store.quarantine([A], deadline())
            _is_gone(store, sharing, block)
        if isinstance(store, SupportsClear):
            _keep(sharing, A, block := _block())
            assert store.clear_prefix(A, deadline()) == 1
            _is_gone(store, sharing, block)

    @promise(
        "sharing.5",
        "leaves what it has lent to the borrower, whatever becomes of the chunk or the store",
        clause="SupportsZeroCopy.get_lease",
        why="an eviction would pull the memory from under a transfer to the device",
    )
    def test_a_borrower_outlasts_a_delete_and_a_close(
        self, store: ChunkStore, sharing: SupportsZeroCopy
    ) -> None:
        blocks = [_block(i) for i in range(6)]
        keys = [A, B, C, D, chunk_key("e"), chunk_key("f", "other model")]
        frames = [_keep(sharing, key, block) for key, block in zip(keys, blocks, strict=True)]
        with _lent(sharing, *keys) as leases:
            store.delete([A], deadline())
            write(store, {B: frames[0]})
            _keep(sharing, C, _block())
            if isinstance(store, SupportsQuarantine):
                store.quarantine([keys[4]], deadline())
            if isinstance(store, SupportsClear):
                store.clear_prefix(namespace_of(keys[5]), deadline())
            for _ in range(2):
                lent = [None if lease is None else bytes(lease.frame) for lease in leases]
                same(lent, frames)
                store.close()
            assert {block.held for block in blocks} == {_shares(sharing)}
        assert {block.held for block in blocks} == {0}

    @promise(
        "sharing.6",
        "lends in the order of the request, each time a lease of its own",
        clause="SupportsZeroCopy.get_lease",
        why="a prompt would be answered with the KV of another part of it",
    )
    def test_lends_in_order_and_independently(self, sharing: SupportsZeroCopy) -> None:
        blocks = {A: _block(1), B: _block(2)}
        frames = {key: _keep(sharing, key, block) for key, block in blocks.items()}
        with _lent(sharing, B, C, A, B) as leases:
            same(
                [None if lease is None else bytes(lease.frame) for lease in leases],
                [frames[B], None, frames[A], frames[B]],
            )
            owners = {lease.owner for lease in leases if lease is not None}
            assert owners == {"borrower"}, "lent in the name of the borrower"
            if _shares(sharing):
                assert blocks[B].held == 3
                assert blocks[B].owners["borrower"] == 2, "lent in the name of the borrower"
            if leases[0] is not None and leases[3] is not None:
                leases[0].release()
                leases[0].release()
                assert bytes(leases[3].frame) == frames[B]

    @promise(
        "sharing.7",
        "lets go of a block when another takes its place",
        clause="SupportsZeroCopy.put_lease",
        why="each chunk that is stored anew would cost a block for ever",
    )
    def test_replacing_lets_go(self, store: ChunkStore, sharing: SupportsZeroCopy) -> None:
        old, new = _block(1), _block(2)
        _keep(sharing, A, old)
        frame = _keep(sharing, A, new)
        assert (old.held, new.held) == (0, _shares(sharing))
        same(read(store, A), [frame])
        write(store, {A: b"written"})
        assert new.held == 0
        same(read(store, A), [b"written"])
        newest = _block(3)
        frame = _keep(sharing, A, newest)
        same(read(store, A), [frame])
        assert list(store.delete([A], deadline())) == [True]
        same(read(store, A), [None])

    @promise(
        "sharing.8",
        "lends a frame written as bytes whole, or not at all",
        clause="SupportsZeroCopy.get_lease",
        why="what came from a lower tier would be lent without its end",
    )
    def test_what_was_written_is_lent_whole_or_not(
        self, store: ChunkStore, sharing: SupportsZeroCopy
    ) -> None:
        frame = MAGIC + content(2 * PAGE - len(MAGIC))
        write(store, {A: frame})
        with _lent(sharing, A) as (lease,):
            assert lease is None or bytes(lease.frame) == frame

    @promise(
        "sharing.9",
        "has given back every lease once it is closed",
        clause="ChunkStore.close",
        why="an engine that was closed would leave its pool's memory in use",
        hint="close() releases what put_lease() was given; read() releases what it borrowed",
    )
    def test_leases_balance(self, store: ChunkStore, sharing: SupportsZeroCopy) -> None:
        blocks = {chunk_key(f"chunk {i}"): _block(i) for i in range(6)}
        keys = list(blocks)
        for key, block in blocks.items():
            _keep(sharing, key, block)
        read(store, *keys, *keys, C)
        store.contains(keys, deadline())
        with _lent(sharing, *keys, C):
            pass
        assert {block.held for block in blocks.values()} == {_shares(sharing)}
        store.delete(keys[:2], deadline())
        store.close()
        store.close()
        assert {block.held for block in blocks.values()} == {0}
