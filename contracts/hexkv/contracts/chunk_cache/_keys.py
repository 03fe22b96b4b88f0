"""Promises about the presence of chunks: match, publish, forget, pin."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hexkv.contracts.chunk_cache._base import (
    SECONDS,
    SOON,
    ChunkCacheCase,
    Ledger,
    content,
    put,
    soon,
    spec,
    specs,
)
from hexkv.contracts.kit.examples import examples
from hexkv.contracts.kit.promise import promise
from hexkv.ports import ChunkCache, EngineClosed, InvalidRequest

MANY = 400
"""More chunks than most caches of a test have memory for."""


class Keys(ChunkCacheCase):
    """Chunks are present from their publishing until they are forgotten."""

    @promise(
        "chunks.1",
        "finds each published chunk on a tier, and no other",
        level="L1",
        clause="ChunkCache.match",
        why="hosts would compute chunks again that are there, or wait for chunks that are not",
    )
    def test_what_was_published_is_matched_and_nothing_else(self, cache: ChunkCache) -> None:
        """Answers come in the order of the keys, one for each."""
        some = specs(5)
        put(cache, some[1:4])
        answer = cache.match([chunk.key for chunk in some], soon())
        assert [tier is not None for tier in answer] == [False, True, True, True, False]
        assert all(isinstance(tier, str) and tier for tier in answer[1:4])
        assert list(cache.match([], soon())) == []
        assert list(cache.allocate([], "host", soon())) == []

    @promise(
        "chunks.2",
        "keeps namespaces apart",
        level="L5",
        clause="ChunkCache.match",
        why="one model would be given another one's KV",
    )
    def test_a_chunk_of_another_namespace_is_another_chunk(self, cache: ChunkCache) -> None:
        """Equal digests under two namespaces are two chunks."""
        own, other = spec("same"), spec("same", namespace="other")
        put(cache, [own])
        assert list(cache.match([other.key], soon())) == [None]
        put(cache, [other])
        assert cache.forget([own.key], soon()) == 1
        assert cache.match([other.key], soon())[0] is not None

    @promise(
        "chunks.3",
        "locates published chunks as soon as they are there",
        level="L1",
        clause="Publishing.tiers",
        why="a host would report KV as stored that no tier has",
    )
    def test_a_publishing_names_the_tiers_that_hold_the_chunks(
        self, cache: ChunkCache, ledger: Ledger
    ) -> None:
        """Every named tier holds every chunk of the batch; the leases stay the caller's."""
        some = specs(3)
        leases = cache.allocate(some, "host", soon())
        assert len(leases) == 3, "there is room for three chunks"
        try:
            for lease, chunk in zip(leases, some, strict=True):
                lease.payload[:] = content(chunk)
            publishing = cache.publish(leases, None, soon())
            assert publishing.wait(soon())
            assert publishing.done
            assert publishing.tiers, "some tier takes new chunks"
            assert all(list(here) == [True] * 3 for here in publishing.tiers.values())
            assert dict(ledger()) == {"host": 3}, (
                "publishing takes the caller's leases, or keeps more"
            )
            assert [bytes(lease.payload) for lease in leases] == [content(chunk) for chunk in some]
        finally:
            for lease in leases:
                lease.release()

    @promise(
        "chunks.4",
        "publishes a lease under the key of its spec, and refuses a lease without one",
        level="L2",
        clause="ChunkCache.publish",
        why="KV would be stored under a key that nothing checked",
    )
    def test_a_lease_carries_what_it_was_allocated_for(self, cache: ChunkCache) -> None:
        """Its spec is the wanted one, its payload has the chunk's bytes."""
        some = specs(2)
        leases = cache.allocate(some, "host", soon())
        try:
            assert [lease.spec for lease in leases] == some
            assert [len(lease.payload) for lease in leases] == [chunk.raw_bytes for chunk in some]
            assert not any(lease.payload.readonly for lease in leases)
        finally:
            for lease in leases:
                lease.release()

    @promise(
        "chunks.5",
        "forgets chunks on every tier, and returns how many there were",
        level="L1",
        clause="ChunkCache.forget",
        why="KV of replaced weights would be served after it was cleared",
    )
    def test_what_was_forgotten_is_gone(self, cache: ChunkCache) -> None:
        """Forgetting twice is allowed; other chunks stay."""
        some = specs(4)
        put(cache, some)
        assert cache.forget([some[1].key, some[2].key], soon()) == 2
        assert cache.forget([some[1].key], soon()) == 0
        answer = cache.match([chunk.key for chunk in some], soon())
        assert [tier is not None for tier in answer] == [True, False, False, True]

    @promise(
        "chunks.6",
        "counts pins by owner, and ends them all at once",
        level="L1",
        clause="ChunkCache.pin",
        why="a vanished request would keep its chunks for ever",
    )
    def test_pins_are_an_owner_s_until_it_ends_them(self, cache: ChunkCache) -> None:
        """Absent chunks are not pinned; pinning twice counts once."""
        some = specs(3)
        put(cache, some[:2])
        keys = [chunk.key for chunk in some]
        assert cache.pin("owner", keys) == 2
        assert cache.pin("owner", keys) == 2
        assert cache.pin("owner 2", keys) == 2
        assert cache.forget([spec("another").key], soon()) == 0
        assert cache.unpin("other") == cache.unpin("own") == 0
        assert cache.unpin("owner") >= 2
        assert cache.unpin("owner") == 0
        assert cache.unpin("owner 2") >= 2

    @pytest.mark.thorough
    @promise(
        "chunks.11",
        "ends a pin by itself after its seconds, counted from its last renewal",
        level="L1",
        clause="ChunkCache.pin",
        why="chunks of requests that are gone would fill a tier, or those of a long one be evicted",
        hint="seconds, not milliseconds; the owner's latest call counts; without seconds it stays",
    )
    def test_a_pin_lasts_its_seconds(
        self, cache: ChunkCache, elapse: Callable[[float], None]
    ) -> None:
        """One of a moment, one that is renewed for long, one without an end."""
        put(cache, specs(2))
        keys = [chunk.key for chunk in specs(2)]
        for owner, lasting in (
            ("brief", [SOON]),
            ("renewed", [SOON, SECONDS]),
            ("endless", [None]),
        ):
            for seconds in lasting:
                assert cache.pin(owner, keys, seconds) == 2
        elapse(2 * SOON)
        cache.match(keys, soon())
        assert cache.unpin("brief") == 0
        assert cache.unpin("renewed") >= 2
        assert cache.unpin("endless") >= 2

    @promise(
        "chunks.7",
        "refuses a chunk that is larger than its memory, before anything is read",
        level="L4",
        clause="ChunkCache.allocate",
        why="a host with another layout would wait for memory that never comes",
    )
    def test_a_chunk_that_fits_nowhere_is_refused(self, cache: ChunkCache, ledger: Ledger) -> None:
        """By allocate and by hold, with an error of the caller's branch."""
        huge = spec("huge", tokens=1 << 40)
        with pytest.raises(InvalidRequest):
            cache.allocate([huge], "host", soon())
        with pytest.raises(InvalidRequest):
            cache.hold([huge], "host", soon())
        assert dict(ledger()) == {}

    @promise(
        "chunks.10",
        "gives leases for the first of many chunks, and has all memory back when they are released",
        level="L0",
        clause="ChunkCache.allocate",
        why="each batch that is larger than the free memory would cost some of it for ever",
        hint="release the memory of a chunk that does not fit",
    )
    def test_an_allocation_in_part_costs_nothing(self, cache: ChunkCache, ledger: Ledger) -> None:
        """Of more chunks than fit, three times; the last one finds as much memory as the first."""
        counts = []
        for _ in range(3):
            leases = cache.allocate(specs(MANY), "host", soon())
            counts.append(len(leases))
            assert [lease.spec for lease in leases] == specs(MANY)[: len(leases)]
            assert dict(ledger()) == {"host": len(leases)}
            for lease in leases:
                lease.release()
            assert dict(ledger()) == {}
        assert len(set(counts)) == 1, f"there was memory for {counts} chunks"

    @promise(
        "chunks.8",
        "answers nothing but EngineClosed once it is closed",
        level="L0",
        clause="ChunkCache",
        why="a late call would use memory that was given back",
    )
    def test_every_call_after_the_end_says_so(self, closed: ChunkCache) -> None:
        """Each method, with any arguments."""
        some = specs(1)
        for call in (
            lambda: closed.match([some[0].key], soon()),
            lambda: closed.hold(some, "late", soon()),
            lambda: closed.allocate(some, "late", soon()),
            lambda: closed.publish([], None, soon()),
            lambda: closed.forget([some[0].key], soon()),
            lambda: closed.pin("late", [some[0].key]),
            lambda: closed.unpin("late"),
        ):
            with pytest.raises(EngineClosed):
                call()

    @promise(
        "chunks.9",
        "agrees with a dictionary after any sequence of puts and forgets",
        level="L1",
        clause="ChunkCache",
        why="a chunk stored over another would be lost, or come back",
    )
    def test_it_behaves_like_a_set_of_keys(self, cache: ChunkCache) -> None:
        """A key is present if and only if it was put after it was last forgotten."""

        def agree(steps: list[tuple[bool, list[int]]]) -> None:
            some = specs(8)
            cache.forget([chunk.key for chunk in some], soon())
            there: set[int] = set()
            for storing, numbers in steps:
                chosen = sorted(set(numbers))
                if storing:
                    put(cache, [some[i] for i in chosen])
                    there.update(chosen)
                else:
                    gone = cache.forget([some[i].key for i in chosen], soon())
                    assert gone == len(there.intersection(chosen))
                    there.difference_update(chosen)
                answer = cache.match([chunk.key for chunk in some], soon())
                assert [i for i, tier in enumerate(answer) if tier is not None] == sorted(there)

        some_keys = st.lists(st.integers(0, 7), min_size=1, max_size=4)
        calls = given(st.lists(st.tuples(st.booleans(), some_keys), max_size=8))
        examples("chunks.9", lambda chosen: chosen(calls(agree))(), 25)
