"""L2: damage on the medium. The core refuses damaged frames if the store returns them as is."""

from __future__ import annotations

from collections.abc import Callable

from hexkv.contracts.doubles import ListSink, chunk_key, deadline
from hexkv.contracts.kit.cases import each
from hexkv.contracts.kit.promise import not_offered, promise
from hexkv.contracts.store._base import (
    RawAccess,
    StoreCase,
    Unreadable,
    arrived,
    content,
    read,
    same,
    write,
)
from hexkv.ports import ChunkKey, ChunkStore, Hit, StoreError, StoreUnreachable

A, B, C = (chunk_key(name) for name in "abc")

DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "a flipped bit at the start": lambda f: bytes([f[0] ^ 1]) + f[1:],
    "a flipped bit in the middle": lambda f: f[:5000] + bytes([f[5000] ^ 0x10]) + f[5001:],
    "a flipped bit at the end": lambda f: f[:-1] + bytes([f[-1] ^ 0x80]),
    "one byte short": lambda f: f[:-1],
    "cut after a page": lambda f: f[:4096],
    "cut to nothing": lambda _: b"",
    "longer than written": lambda f: f + f[:100],
    "zeros in a page": lambda f: f[:4096] + bytes(4096) + f[8192:],
    "a torn end": lambda f: f[:6000] + bytes(len(f) - 6000),
}


class Damage(StoreCase):
    """Promises about bytes that change on the medium without the store."""

    @promise(
        "L2.1",
        "gives damaged bytes back as they are, or no hit",
        clause="ChunkStore.read",
        why="a bit that flips on the medium must cost one chunk, not the engine",
        hint="the core verifies frames: mend nothing, guess nothing, and do not fall over",
    )
    @each("damage", DAMAGES.values(), ids=DAMAGES)
    def test_damage_is_given_back_as_it_is_or_not_at_all(
        self, store: ChunkStore, raw: RawAccess, damage: Callable[[bytes], bytes]
    ) -> None:
        frames = {A: content(10_000, seed=1), B: content(10_000, seed=2)}
        store.delete(list(frames), deadline())
        write(store, frames)
        damaged = damage(frames[A])
        raw.put(A, damaged)
        same(_survived(store, A, damaged), [damaged])
        same(read(store, B), [frames[B]])

    @promise(
        "L2.2",
        "gives swapped chunks back as they are, or no hit",
        clause="ChunkStore.read",
        why="a restored backup or a repaired disk would answer prompts with others' KV",
        hint="look a chunk up by its key alone, never by where it used to be",
    )
    def test_swapped_chunks_are_seen_as_swapped(self, store: ChunkStore, raw: RawAccess) -> None:
        one, two = content(10_000, seed=1), content(10_000, seed=2)
        write(store, {A: one, B: two, C: b"c"})
        raw.put(A, two)
        raw.put(B, one)
        same(_survived(store, A, two), [two])
        same(_survived(store, B, one), [one])
        same(read(store, C), [b"c"])

    @promise(
        "L2.3",
        "gives a stale chunk back as it is, or no hit",
        clause="ChunkStore.read",
        why="an old replica would answer with what a newer write has replaced",
    )
    def test_a_stale_chunk_is_seen_as_stale(self, store: ChunkStore, raw: RawAccess) -> None:
        old, new = content(10_000, seed=1), content(12_000, seed=2)
        write(store, {A: old})
        write(store, {A: new})
        raw.put(A, old)
        same(_survived(store, A, old), [old])

    @promise(
        "L2.4",
        "lets a damaged chunk be deleted and written anew",
        clause="ChunkStore.write, ChunkStore.delete",
        why="a chunk that was damaged once could never be cached again",
    )
    @each("damage", [b"", b"short", b"long" * 5000])
    def test_damage_can_be_repaired(self, store: ChunkStore, raw: RawAccess, damage: bytes) -> None:
        frame = content(10_000)
        store.delete([A], deadline())
        write(store, {A: frame})
        raw.put(A, damage)
        write(store, {A: frame})
        same(read(store, A), [frame])
        raw.put(A, damage)
        store.delete([A], deadline())
        same(read(store, A), [None])
        write(store, {A: frame})
        same(read(store, A), [frame])

    @promise(
        "L2.5",
        "lets a chunk that cannot be read be written anew, and reads the others beside it",
        clause="ChunkStore.read, ChunkStore.write, ChunkStore.delete",
        why="one bad sector would end each request for its prompt, as long as the cache lives",
        hint="answer Failed for the chunk alone, with a StoreError that is no StoreUnreachable;"
        " never answer Stored because a file of that name is there",
    )
    def test_what_cannot_be_read_is_one_chunk_and_can_be_replaced(
        self, store: ChunkStore, unreadable: Unreadable | None
    ) -> None:
        if unreadable is None:
            not_offered("unreadable")
        frames = {key: content(10_000, seed) for seed, key in enumerate((A, B, C))}
        write(store, frames)
        for renew in (lambda: None, lambda: store.delete([B], deadline())):
            unreadable(B)
            sink = ListSink()
            for _ in range(2):
                outcomes = store.read([A, B, C], sink, deadline())
                assert not isinstance(outcomes[1], Hit), f"what cannot be read is {outcomes[1]}"
                error = getattr(outcomes[1], "error", None)
                assert not isinstance(error, StoreUnreachable), "others of the store are read"
            brought = [arrived(sink, i, outcomes[i]) for i in (0, 2)]
            same(brought, [frames[A], frames[C]])
            renew()
            write(store, {B: frames[B]})
            same(read(store, A, B, C), list(frames.values()))


def _survived(store: ChunkStore, key: ChunkKey, expected: bytes) -> list[bytes]:
    """The bytes of a hit on *key*; *expected* if there was none, because a miss is right, too."""
    sink = ListSink()
    try:
        (outcome,) = store.read([key], sink, deadline())
    except StoreError:
        return [expected]
    data = arrived(sink, 0, outcome)
    return [expected if data is None else data]
