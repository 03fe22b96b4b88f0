"""Promises about holds: chunks arrive whole, stay until released, and leave no leases."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hexkv.contracts.chunk_cache._base import (
    ChunkCacheCase,
    Ledger,
    content,
    now,
    put,
    soon,
    spec,
    specs,
)
from hexkv.contracts.kit.promise import promise
from hexkv.ports import ChunkCache, Reason


class Holds(ChunkCacheCase):
    """A hold cannot miss."""

    @promise(
        "holds.1",
        "brings the chunk of each key, in the order of the keys asked for",
        level="L1",
        clause="ChunkCache.hold",
        why="a host would load KV of other tokens",
    )
    def test_a_hold_brings_the_chunks(self, cache: ChunkCache) -> None:
        """Bytes and spec are those of the key, in any order of keys, one of them twice."""
        some = specs(6)
        put(cache, some)
        wanted = [some[i] for i in (4, 0, 5, 2, 4)]
        with cache.hold(wanted, "host", soon()) as hold:
            assert hold.wait(soon())
            assert hold.done
            assert [bytes(lease.payload) for lease in hold.leases if lease] == [
                content(chunk) for chunk in wanted
            ]
            assert [lease.spec.key for lease in hold.leases if lease and lease.spec] == [
                chunk.key for chunk in wanted
            ]
            assert list(hold.reasons) == [None] * 5
            tiers = cache.match([chunk.key for chunk in some], soon())
            assert set(hold.origins) <= {tier for tier in tiers if tier is not None}

    @promise(
        "holds.2",
        "gives a reason for each chunk that is missing, and the others all the same",
        level="L1",
        clause="Hold.reasons",
        why="one absent chunk would cost all the others",
    )
    def test_what_is_missing_has_a_reason_and_takes_nothing_along(self, cache: ChunkCache) -> None:
        """Chunks behind a gap arrive: a caller that wants a prefix must stop at the gap."""
        some = specs(4)
        put(cache, [some[0], some[3]])
        with cache.hold(some, "host", soon()) as hold:
            assert hold.wait(soon())
            assert [lease is not None for lease in hold.leases] == [True, False, False, True]
            reasons = list(hold.reasons)
            assert [isinstance(reason, Reason) for reason in reasons] == [False, True, True, False]
            assert [bool(tier) for tier in hold.origins] == [True, False, False, True]

    @promise(
        "holds.3",
        "cannot miss: a held chunk stays readable although it is forgotten on every tier",
        level="L2",
        clause="Hold.leases",
        why="a host that promised a load to its scheduler could not keep it",
    )
    def test_what_is_held_survives_the_tiers(self, cache: ChunkCache) -> None:
        """Also while other chunks are stored, until memory is exhausted."""
        some = specs(3)
        put(cache, some)
        with cache.hold(some, "host", soon()) as hold:
            assert hold.wait(soon())
            cache.forget([chunk.key for chunk in some], soon())
            for turn in range(4):
                put(cache, specs(6, f"other{turn}"))
            assert [bytes(lease.payload) for lease in hold.leases if lease] == [
                content(chunk) for chunk in some
            ]

    @promise(
        "holds.4",
        "is listed under its owner while it lasts, and leaves nothing behind",
        level="L4",
        clause="Hold.release",
        why="every abandoned request would take memory for good",
    )
    def test_a_hold_is_in_the_ledger_until_it_is_released(
        self, cache: ChunkCache, ledger: Ledger
    ) -> None:
        """Also if it is released twice, released before it is done, or left by an error."""
        some = specs(4)
        put(cache, some)
        hold = cache.hold(some, "lasting", soon())
        assert hold.wait(soon())
        assert ledger().get("lasting") == 4
        hold.release()
        hold.release()
        assert list(hold.leases) == []
        early = cache.hold(some, "early", soon())
        early.release()
        with pytest.raises(ZeroDivisionError), cache.hold(some, "failing", soon()):
            _ = 1 / 0
        assert {"lasting", "early", "failing"}.isdisjoint(ledger())

    @promise(
        "holds.5",
        "shares of a held lease outlive the hold",
        level="L1",
        clause="Hold.leases",
        why="a copy that is late would read memory that belongs to another chunk",
    )
    def test_a_share_lasts_longer_than_the_hold(self, cache: ChunkCache, ledger: Ledger) -> None:
        """The bytes stay until the share is released."""
        chunk = spec("one")
        put(cache, [chunk])
        hold = cache.hold([chunk], "host", soon())
        assert hold.wait(soon())
        (lease,) = hold.leases
        assert lease is not None
        share = lease.share("longer")
        hold.release()
        cache.forget([chunk.key], soon())
        put(cache, specs(6))
        assert bytes(share.payload) == content(chunk)
        share.release()
        assert "longer" not in ledger()

    @promise(
        "holds.6",
        "does not wait for memory past its deadline, nor while it holds some",
        level="L4",
        clause="ChunkCache.hold",
        why="requests that wait for each other's memory would stand still for ever",
    )
    def test_without_memory_chunks_are_refused(
        self, cache: ChunkCache, crowd: Callable[[], Callable[[], None]]
    ) -> None:
        """The reason names it, and afterwards the same hold succeeds."""
        some = specs(2)
        put(cache, some)
        give_back = crowd()
        try:
            with cache.hold(some, "host", now()) as hold:
                hold.wait(now())
                assert not any(hold.leases) or all(hold.leases)
                assert all(
                    lease is not None or reason is not None
                    for lease, reason in zip(hold.leases, hold.reasons, strict=True)
                )
        finally:
            give_back()
        with cache.hold(some, "host", soon()) as hold:
            assert hold.wait(soon())
            assert all(hold.leases)

    @promise(
        "holds.7",
        "brings one chunk to any number of holds",
        level="L3",
        clause="ChunkCache.hold",
        why="two requests with one prompt would lose a hit, or free each other's memory",
    )
    def test_holds_of_one_chunk_do_not_know_each_other(
        self, cache: ChunkCache, ledger: Ledger
    ) -> None:
        """Each is released independently."""
        some = specs(2)
        put(cache, some)
        holds = [cache.hold(some, f"host {i}", soon()) for i in range(4)]
        for hold in holds:
            assert hold.wait(soon())
        for number in (2, 0, 3):
            holds[number].release()
        assert [bytes(lease.payload) for lease in holds[1].leases if lease] == [
            content(chunk) for chunk in some
        ]
        holds[1].release()
        assert dict(ledger()) == {}

    @promise(
        "holds.8",
        "wants a chunk as it was stored: another length is none",
        level="L2",
        clause="ChunkCache.hold",
        why="KV of another shape would be scattered over the model's memory",
    )
    def test_a_chunk_of_another_length_is_missing(self, cache: ChunkCache) -> None:
        """It is a miss with a reason, never a shorter or longer payload."""
        chunk = spec("one")
        put(cache, [chunk])
        other = chunk._replace(tokens=chunk.tokens // 2)
        with cache.hold([other], "host", soon()) as hold:
            assert hold.wait(soon())
            assert list(hold.leases) == [None]
            assert hold.reasons[0] is not None
