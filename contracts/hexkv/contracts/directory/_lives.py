"""Promises about membership: lives of a node, silence, departures, and a failing directory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from threading import Thread

import pytest

from hexkv.contracts.directory._base import (
    NODES,
    SECONDS,
    DirectoryCase,
    Seen,
    batches,
    holders,
    life,
    some,
    soon,
)
from hexkv.contracts.kit.promise import not_offered, promise
from hexkv.contracts.kit.waiting import UnderWay
from hexkv.plugins.clock import SystemClock
from hexkv.ports import (
    REPORT_KEYS,
    SILENT_HEARTBEATS,
    ChunkKey,
    Deadline,
    Directory,
    Member,
    Report,
    StoreError,
    StoreUnreachable,
    SupportsLives,
)

_BEYOND = 1.01
"""In heartbeat intervals: a node silent for three of these has exceeded the limit."""


class Lives(DirectoryCase):
    """Entries live as long as the life of the node that reported them."""

    @promise(
        "directory.9",
        "names its members, with their generations and addresses",
        level="L1",
        clause="Directory.members",
        why="the nodes could not be asked for their chunks",
    )
    def test_members_are_named_as_they_joined(self, seen: Seen) -> None:
        """Also as holders; an address may be empty, or in any script. Names have a case."""
        keys = some(1)
        other = Member("Bob", 7, "")
        assert seen("ada").join(life("ada", 2**62), batches(keys), soon())
        assert seen("bob").join(other, [], soon())
        assert set(seen("cyd").members(soon())) == {life("ada", 2**62), other}
        ((holder,),) = seen("bob").locate(keys, soon())
        assert holder == life("ada", 2**62)
        assert seen("bob").join(Member("Bob", 9, "Host.example:1"), [], soon())
        assert seen("bob").join(Member("Bob", 10, "Host.example:1"), [], soon())
        assert Member("Bob", 10, "Host.example:1") in seen("cyd").members(soon())

    @promise(
        "directory.10",
        "voids a node's entries as soon as it leaves",
        level="L1",
        clause="Directory.leave",
        why="peers would wait for a node that has left",
    )
    def test_who_left_holds_nothing(self, seen: Seen) -> None:
        """Other nodes stay; leaving twice, or without having joined, has no effect."""
        ada, keys = seen("ada"), some(2)
        assert ada.join(life("ada"), batches(keys), soon())
        assert seen("bob").join(life("bob"), batches(keys[:1]), soon())
        ada.leave(life("ada"), soon())
        ada.leave(life("ada"), soon())
        seen("cyd").leave(life("cyd"), soon())
        assert holders(seen("cyd"), keys) == [["bob"], []]
        assert list(seen("cyd").members(soon())) == [life("bob")]
        assert not ada.report(life("ada"), Report(1, keys), soon())

    @promise(
        "directory.11",
        "voids the entries of an earlier life when the next one joins, and refuses its reports",
        level="L2",
        clause="Directory.join",
        why="a restarted node would be asked for what its last life held",
    )
    def test_a_later_life_ends_the_earlier_one(self, seen: Seen) -> None:
        """Calls of the earlier life change nothing, nor those of one that has not joined."""
        ada, bob, keys = seen("ada"), seen("bob"), some(3)
        assert ada.join(life("ada", 5), batches(keys[:2]), soon())
        amid: list[list[list[str]]] = []

        def snapshot() -> Iterator[Sequence[ChunkKey]]:
            with UnderWay({"ask": lambda: amid.append(holders(bob, keys[:2]))}, patience=SECONDS):
                pass
            yield keys[2:]

        assert ada.join(life("ada", 6), snapshot(), soon())
        assert amid == [[[], []]], "an earlier life's chunks are located amid a join"
        assert holders(bob, keys) == [[], [], ["ada"]]
        assert list(bob.locate(keys[2:], soon())[0]) == [life("ada", 6)]
        assert list(bob.members(soon())) == [life("ada", 6)]
        ada.leave(life("ada", 7), soon())
        assert not ada.report(life("ada", 7), Report(1, keys[:1]), soon())
        assert not ada.report(life("ada", 5), Report(1, keys[:1]), soon())
        assert not ada.heartbeat(life("ada", 5), 0, soon())
        assert not ada.join(life("ada", 5), batches(keys[:2]), soon())
        ada.leave(life("ada", 5), soon())
        assert holders(seen("bob"), keys) == [[], [], ["ada"]]
        assert ada.heartbeat(life("ada", 6), 0, soon())

    @promise(
        "directory.12",
        "locates nothing at a node that is silent for three heartbeats, and forgets no node sooner",
        level="L4",
        clause="Directory.heartbeat",
        why="every request would wait for a dead node until its deadline",
    )
    def test_who_is_silent_for_three_heartbeats_holds_nothing(
        self, seen: Seen, elapse: Callable[[float], None], vanish: Callable[[str], None]
    ) -> None:
        """The other nodes stay: one sent a heartbeat, the other a report."""
        ada, bob, cyd = map(seen, NODES)
        keys = some(2)
        for name in NODES:
            assert seen(name).join(life(name), batches(keys), soon())
        beat = ada.heartbeat_seconds
        elapse((SILENT_HEARTBEATS - 1) * beat)
        assert holders(bob, keys) == [sorted(NODES)] * 2
        assert ada.heartbeat(life("ada"), 0, soon())
        for number in range(SILENT_HEARTBEATS):
            assert bob.heartbeat(life("bob"), 0, soon())
            assert cyd.report(life("cyd"), Report(number + 1, keys[:1]), soon())
            if not number:
                vanish("ada")
            holders(bob, keys)  # to be located is no sign of life
            elapse(_BEYOND * beat)
        assert holders(bob, keys) == [["bob", "cyd"]] * 2
        assert {member.name for member in bob.members(soon())} == {"bob", "cyd"}

    @promise(
        "directory.13",
        "takes a node back that was silent: with its entries, or by having it join again",
        level="L4",
        clause="Directory.heartbeat",
        why="a network that was cut for a moment would cost a node's entries for ever",
    )
    def test_who_was_silent_comes_back(self, seen: Seen, elapse: Callable[[float], None]) -> None:
        """If a heartbeat is answered with True, its entries count again."""
        ada, keys = seen("ada"), some(2)
        assert ada.join(life("ada"), batches(keys), soon())
        for _ in range(SILENT_HEARTBEATS + 1):
            holders(ada, keys)  # a question is no sign of life
            elapse(_BEYOND * ada.heartbeat_seconds)
        assert holders(seen("bob"), keys) == [[], []]
        elapse(SILENT_HEARTBEATS * ada.heartbeat_seconds)
        if not ada.heartbeat(life("ada"), 0, soon()):
            assert ada.join(life("ada"), batches(keys), soon())
        assert holders(seen("bob"), keys) == [["ada"]] * 2

    @promise(
        "directory.14",
        "has every node join again once it lost what it knew",
        level="L4",
        clause="Directory.report",
        why="a directory that was started anew would stay empty",
    )
    def test_after_it_lost_everything_nodes_join_again(
        self, seen: Seen, forget: Callable[[], None]
    ) -> None:
        """A heartbeat and a report are answered with False."""
        ada, bob, keys = seen("ada"), seen("bob"), some(3)
        assert ada.join(life("ada"), batches(keys[:2]), soon())
        assert bob.join(life("bob"), batches(keys[1:]), soon())
        assert bob.report(life("bob"), Report(1), soon())
        forget()
        assert holders(seen("cyd"), keys) == [[], [], []]
        assert not ada.heartbeat(life("ada"), 0, soon())
        assert not bob.report(life("bob"), Report(2, keys[:1]), soon())
        assert ada.join(life("ada"), batches(keys[:2]), soon())
        assert holders(seen("cyd"), keys) == [["ada"], ["ada"], []]

    @promise(
        "directory.15",
        "answers by the deadline, or raises an error",
        level="L4",
        clause="Directory.locate",
        why="a request would wait for a hint longer than the chunk takes to compute",
    )
    def test_no_call_outlasts_its_deadline(
        self, seen: Seen, stalled: Callable[[], AbstractContextManager[None]]
    ) -> None:
        """While no server answers; afterwards calls work again."""
        ada, keys = seen("ada"), some(2)
        assert ada.join(life("ada"), batches(keys), soon())
        clock = SystemClock()
        with stalled():
            for call in _calls(ada):
                until = Deadline.after(clock, 0.2)
                with pytest.raises(StoreUnreachable):
                    call(until)
                assert clock.now() - until.at < 10.0, "no caller waits much longer than asked for"
        assert holders(ada, keys)[0] in (["ada"], [])
        assert ada.join(life("ada"), batches(keys), soon())
        assert holders(ada, keys) == [["ada"]] * 2

    @promise(
        "directory.16",
        "asks no member once the deadline has passed",
        level="L4",
        clause="Directory.locate",
        why="calls that are too late already would pile up behind each other",
    )
    def test_an_expired_deadline_is_answered_at_once(self, seen: Seen) -> None:
        """With the error for a missing answer, and nothing is changed."""
        ada, keys = seen("ada"), some(1)
        assert ada.join(life("ada"), batches(keys), soon())
        for call in _calls(ada):
            with pytest.raises(StoreUnreachable):
                call(Deadline(SystemClock(), 0.0))
        assert holders(ada, keys) == [["ada"]]

    @promise(
        "directory.17",
        "answers many threads at a time",
        level="L3",
        clause="Directory",
        why="entries of one node would be lost among another's reports",
    )
    def test_nodes_report_while_others_ask(self, seen: Seen) -> None:
        """Each node in a thread of its own, which both reports and locates."""
        mine = {name: some(600, name) for name in NODES}
        failed: list[BaseException] = []

        def report(name: str) -> None:
            node, member = seen(name), life(name)
            try:
                assert node.join(member, batches(mine[name][:100], 10), soon())
                for number in range(1, 51):
                    part = mine[name][90 + 10 * number : 100 + 10 * number]
                    assert node.report(member, Report(number, part), soon())
                    for row in node.locate(mine[NODES[number % 3]][:50], soon()):
                        assert {it.name for it in row} <= {NODES[number % 3]}
            except BaseException as error:  # noqa: BLE001 - raised below, by the test's thread
                failed.append(error)

        seen("ada")  # one thread uses the fixture first
        threads = [Thread(target=report, args=(name,)) for name in NODES]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failed:
            raise failed[0]
        for name in NODES:
            assert holders(seen("ada"), mine[name]) == [[name]] * len(mine[name])

    @promise(
        "directory.18",
        "answers nothing but a StoreError once it is closed",
        level="L0",
        clause="Directory.close",
        why="a late call would open connections that are never closed",
    )
    def test_a_closed_one_says_so(self, seen: Seen) -> None:
        """Every call; closing twice is allowed, and the directories of other nodes stay open."""
        ada = seen("ada")
        assert seen("bob").join(life("bob"), [], soon())
        assert 0.0 < ada.heartbeat_seconds < float("inf")
        ada.close()
        ada.close()
        for call in _calls(ada):
            with pytest.raises(StoreError):
                call(soon())

    @promise(
        "directory.19",
        "returns which life of a node was the last, also of one that is silent",
        level="L1",
        clause="SupportsLives.last_life",
        why="a node that starts anew could not begin a later life than its former one",
    )
    def test_the_last_life_of_a_node_is_known(
        self, seen: Seen, elapse: Callable[[float], None]
    ) -> None:
        """Other nodes join while it is silent; a refused life changes nothing."""
        ada, bob = seen("ada"), seen("bob")
        if not isinstance(bob, SupportsLives):
            not_offered("SupportsLives")
        assert bob.last_life("ada", soon()) == 0
        for generation, taken in ((5, True), (2**62, True), (6, False)):
            assert ada.join(life("ada", generation), [], soon()) is taken
        for _ in range(2):
            assert bob.join(life("bob", 7), [], soon())
            assert [bob.last_life(name, soon()) for name in NODES] == [2**62, 7, 0]
            elapse(2 * SILENT_HEARTBEATS * bob.heartbeat_seconds)
        with pytest.raises(StoreUnreachable):
            bob.last_life("ada", Deadline(SystemClock(), 0.0))


def _calls(directory: Directory) -> list[Callable[[Deadline], object]]:
    """Every call that takes a deadline, for ``ada``."""
    keys, member = some(1), life("ada")
    many = batches(some(REPORT_KEYS))
    return [
        lambda until: directory.locate(keys, until),
        lambda until: directory.heartbeat(member, 0, until),
        lambda until: directory.report(member, Report(1, keys), until),
        lambda until: directory.members(until),
        lambda until: directory.leave(member, until),
        lambda until: directory.join(member, many, until),
    ]
