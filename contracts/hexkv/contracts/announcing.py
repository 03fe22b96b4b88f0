"""The contract of caches where clients announce the chunks that they compute."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from hexkv.contracts.doubles import chunk_key
from hexkv.contracts.kit.promise import not_offered, promise
from hexkv.contracts.kit.waiting import UnderWay
from hexkv.contracts.kit.whole import Whole
from hexkv.plugins.clock import SystemClock
from hexkv.ports import Announcing, ChunkKey, Deadline

CLIENTS = ("ada", "bob")
BRIEF = 0.1
"""Seconds in which threads begin to wait, as a rule."""

LONG = 600.0
"""Seconds that only a hang reaches."""

Seen = Callable[[str], Announcing]
"""Returns the cache as the client of a name sees it, the same object each time."""


def soon() -> Deadline:
    """A deadline that only a hang reaches."""
    return Deadline.after(SystemClock(), 60.0)


def now() -> Deadline:
    """A deadline for calls that do not wait."""
    return Deadline(SystemClock(), 0.0)


def some(count: int) -> list[ChunkKey]:
    """*count* keys."""
    return [chunk_key(f"announced {i}") for i in range(count)]


class AnnouncingContract(Whole):
    """Subclass this and give it the fixtures ``seen`` and ``publish``.

    ``seen(name)`` is the cache as one of the two ``CLIENTS`` sees it; ``publish(name, keys)`` has
    that client publish chunks. Optional are ``elapse(seconds)``, which lets time pass for the
    cache, and ``vanish(name)``, which ends a client without a farewell.
    """

    @pytest.fixture
    def seen(self) -> Seen:
        """A function that returns the cache as a client sees it."""
        raise NotImplementedError(f"give {type(self).__name__} a `seen` fixture")

    @pytest.fixture
    def publish(self) -> Callable[[str, Sequence[ChunkKey]], None]:
        """A function that has a client publish chunks."""
        raise NotImplementedError(f"give {type(self).__name__} a `publish` fixture")

    @pytest.fixture
    def elapse(self) -> Callable[[float], None]:
        """A function that lets that many seconds pass for the cache."""
        not_offered("elapse")

    @pytest.fixture
    def vanish(self) -> Callable[[str], None]:
        """A function that ends a client without a farewell."""
        not_offered("vanish")

    @promise(
        "announcing.1",
        "expects what others compute, key by key, and nothing of the asker's own group",
        level="L1",
        clause="Announcing.expect",
        why="one would wait for what no other client computes, or for itself",
    )
    def test_what_others_compute_is_expected(self, seen: Seen) -> None:
        """Answers come in the order of the keys asked for; names of groups have a case."""
        keys = some(4)
        assert seen("ada").announce("request", "a", [keys[2], keys[0]], LONG, soon()) == 2
        for asker in ("ada", "bob"):
            assert list(seen(asker).expect(keys, "b", now())) == [True, False, True, False]
            assert list(seen(asker).expect(keys, "a", now())) == [False] * 4
        assert list(seen("bob").expect(keys, "A", now())) == [True, False, True, False]
        twice = [keys[2], keys[1], keys[2]]
        assert list(seen("bob").expect(twice, "b", now())) == [True, False, True]
        assert list(seen("bob").expect([], "b", soon())) == []

    @promise(
        "announcing.2",
        "ends an announcement once its chunk is published, by whomever",
        level="L1",
        clause="Announcing",
        why="one would wait for a chunk that is there",
    )
    def test_what_is_published_is_not_expected(
        self, seen: Seen, publish: Callable[[str, Sequence[ChunkKey]], None]
    ) -> None:
        """Chunk by chunk."""
        keys = some(3)
        seen("ada").announce("request", "a", keys, LONG, soon())
        publish("ada", keys[:1])
        assert list(seen("bob").expect(keys, "b", now())) == [False, True, True]
        publish("bob", keys[1:2])
        assert list(seen("bob").expect(keys, "b", now())) == [False, False, True]

    @promise(
        "announcing.3",
        "ends the withdrawn announcements of that client and owner alone",
        level="L1",
        clause="Announcing.withdraw",
        why="one would wait for a request that was aborted",
    )
    def test_what_is_withdrawn_is_not_expected(self, seen: Seen) -> None:
        """Two clients may use the same owner name; a second withdrawal changes nothing."""
        keys = some(3)
        seen("ada").announce("first", "a", keys[:1], LONG, soon())
        seen("ada").announce("second", "a", keys[1:2], LONG, soon())
        seen("bob").announce("first", "b", keys[2:], LONG, soon())
        assert seen("ada").withdraw("first", soon()) == 1
        assert seen("ada").withdraw("first", soon()) == 0
        assert list(seen("bob").expect(keys, "c", now())) == [False, True, True]

    @promise(
        "announcing.4",
        "leaves a chunk to who announced it first, as long as that stands",
        level="L1",
        clause="Announcing.announce",
        why="two would wait for each other, or both compute",
    )
    def test_the_first_one_keeps_it(self, seen: Seen) -> None:
        """A second client gets only the chunks left; after a withdrawal it may have the rest."""
        keys = some(3)
        assert seen("ada").announce("request", "a", keys[:2], LONG, soon()) == 2
        assert seen("ada").announce("request", "a", keys[:2], LONG, soon()) == 2
        assert seen("bob").announce("request", "b", keys, LONG, soon()) == 1
        assert list(seen("bob").expect(keys, "b", now())) == [True, True, False]
        seen("ada").withdraw("request", soon())
        assert seen("bob").announce("request", "b", keys, LONG, soon()) == 3
        assert list(seen("ada").expect(keys, "a", now())) == [True] * 3

    @promise(
        "announcing.5",
        "ends an announcement when its time is over",
        level="L2",
        clause="Announcing.announce",
        why="one would wait for a client that hangs",
    )
    def test_an_announcement_has_its_time(
        self, seen: Seen, elapse: Callable[[float], None]
    ) -> None:
        """At that time waits for it end, and others may announce the chunk."""
        keys = some(2)
        seen("ada").announce("request", "a", keys[:1], 10.0, soon())
        seen("ada").announce("other", "a", keys[1:], 30.0, soon())
        elapse(9.0)
        assert list(seen("bob").expect(keys, "b", now())) == [True, True]
        elapse(1.5)
        assert list(seen("bob").expect(keys, "b", soon())) == [False, True]
        assert seen("bob").announce("request", "b", keys, LONG, soon()) == 1

    @promise(
        "announcing.6",
        "ends what a client announced when it dies",
        level="L2",
        clause="Announcing",
        why="one would wait for the dead",
    )
    def test_a_client_that_dies_computes_nothing(
        self, seen: Seen, vanish: Callable[[str], None]
    ) -> None:
        """Waits for its chunks end at once; announcements of other clients stay."""
        keys = some(2)
        seen("ada").announce("request", "a", keys[:1], LONG, soon())
        seen("bob").announce("request", "b", keys[1:], LONG, soon())
        bob = seen("bob")
        vanish("ada")
        assert list(bob.expect(keys[:1], "b", soon())) == [False]
        assert list(bob.expect(keys, "c", now())) == [False, True]

    @promise(
        "announcing.7",
        "has all waits end with the first chunk that comes, and each at its deadline",
        level="L3",
        clause="Announcing.expect",
        why="requests would wait longer than they have to, or for ever",
    )
    def test_a_wait_ends_with_what_it_waits_for(
        self, seen: Seen, publish: Callable[[str, Sequence[ChunkKey]], None]
    ) -> None:
        """A wait ends when the chunk is published or its announcement withdrawn."""
        keys = some(3)
        seen("ada").announce("first", "a", keys[:2], LONG, soon())
        seen("ada").announce("second", "a", keys[2:], LONG, soon())
        # If another process answers, a busy machine may be late for a short deadline.
        for seconds in (0.05, 0.5, 5.0):
            short = Deadline.after(SystemClock(), seconds)
            still = list(seen("bob").expect(keys, "b", short))
            assert short.expired
            if all(still):
                break
        assert still == [True] * 3

        def waits(left: Sequence[ChunkKey], end: Callable[[], object]) -> Sequence[bool]:
            found: list[list[bool]] = []
            until, bob = soon(), seen("bob")

            def wait() -> None:
                found.append(list(bob.expect(left, "b", until)))

            with UnderWay({"one": wait, "another": wait}, end, patience=60.0) as waiting:
                waiting.late(BRIEF)  # until both are likely to wait
            assert not until.expired, "a wait ends by its own deadline alone"
            assert found[0] == found[1]
            return found[0]

        ada = seen("ada")
        assert waits(keys, lambda: publish("ada", keys[1:2])) == [True, False, True]
        left = [keys[0], keys[2]]
        assert waits(left, lambda: ada.withdraw("first", soon())) == [False, True]
