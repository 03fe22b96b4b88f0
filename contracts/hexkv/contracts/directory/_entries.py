"""Promises about the location of chunks: snapshots, reports, and holders."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hexkv.contracts.directory._base import (
    NODES,
    DirectoryCase,
    Seen,
    batches,
    holders,
    life,
    some,
    soon,
)
from hexkv.contracts.kit.examples import examples
from hexkv.contracts.kit.promise import promise
from hexkv.ports import REPORT_KEYS, InvalidRequest, Report


class Entries(DirectoryCase):
    """Chunks are located as they were reported."""

    @promise(
        "directory.1",
        "locates what nodes joined with, by key and in order, and nothing else",
        level="L1",
        clause="Directory.join",
        why="a peer would be asked for what it never had, or not for what it has",
    )
    def test_what_a_node_joined_with_is_located_and_nothing_else(self, seen: Seen) -> None:
        """Answers come in the order of the keys; a chunk on two nodes has two holders."""
        keys = some(6)
        assert seen("ada").join(life("ada"), batches(keys[:4], 3), soon())
        assert seen("bob").join(life("bob"), batches(keys[3:5]), soon())
        expected = [["ada"], ["ada"], ["ada"], ["ada", "bob"], ["bob"], []]
        for name in NODES:
            assert holders(seen(name), keys) == expected
            assert holders(seen(name), keys[::-1]) == expected[::-1]
            assert holders(seen(name), [keys[0], keys[5], keys[0]]) == [["ada"], [], ["ada"]]
            assert list(seen(name).locate([], soon())) == []

    @promise(
        "directory.2",
        "notes what reports add and remove",
        level="L1",
        clause="Directory.report",
        why="chunks that were evicted would be asked for, and new ones would not",
    )
    def test_reports_add_and_remove(self, seen: Seen) -> None:
        """Reports apply in order, not to other nodes; a chunk that is named twice is one chunk."""
        ada, bob, keys = seen("ada"), seen("bob"), some(4)
        assert ada.join(life("ada"), batches([*keys[:2], keys[0]], 2), soon())
        assert bob.join(life("bob"), batches(keys[:2]), soon())
        assert ada.report(life("ada"), Report(1, [keys[2]], [keys[0]]), soon())
        assert ada.report(life("ada"), Report(2, [keys[3]], [keys[2]]), soon())
        assert ada.report(life("ada"), Report(3, [keys[0]], []), soon())
        expected = [["ada", "bob"], ["ada", "bob"], [], ["ada"]]
        assert holders(seen("cyd"), keys) == expected
        assert ada.report(life("ada"), Report(4, [keys[2]] * 2, [keys[1]] * 2), soon())
        assert ada.report(life("ada"), Report(5, [], [keys[2]]), soon())
        assert holders(seen("cyd"), keys) == [["ada", "bob"], ["bob"], [], ["ada"]]

    @promise(
        "directory.3",
        "takes a report that is sent again for the one that it was",
        level="L1",
        clause="Directory.report",
        why="a node that got no answer would undo its later reports, or join for nothing",
    )
    def test_a_report_that_comes_again_changes_nothing(self, seen: Seen) -> None:
        """A repeated last report, and a repeated older one: both are answered with True."""
        ada, keys = seen("ada"), some(3)
        assert ada.join(life("ada"), [], soon())
        first, second = Report(1, keys[:2]), Report(2, [keys[2]], [keys[0]])
        assert ada.report(life("ada"), first, soon())
        assert ada.report(life("ada"), second, soon())
        assert ada.report(life("ada"), second, soon())
        assert ada.report(life("ada"), first, soon())
        assert holders(ada, keys) == [[], ["ada"], ["ada"]]

    @promise(
        "directory.4",
        "has a node join again after a report that never came",
        level="L2",
        clause="Directory.report",
        why="the entries of the lost report would be wrong for ever",
    )
    def test_a_gap_is_answered_and_healed_by_joining_again(self, seen: Seen) -> None:
        """Afterwards only the new snapshot counts."""
        ada, keys = seen("ada"), some(4)
        assert ada.join(life("ada"), batches(keys[:2]), soon())
        assert ada.report(life("ada"), Report(1, [keys[2]]), soon())
        assert not ada.report(life("ada"), Report(3, [keys[3]]), soon())
        assert not ada.heartbeat(life("ada"), 3, soon())
        assert ada.join(life("ada"), batches([keys[1], keys[3]]), soon())
        assert holders(seen("bob"), keys) == [[], ["ada"], [], ["ada"]]
        assert ada.report(life("ada"), Report(1, [keys[0]]), soon())
        assert holders(seen("bob"), keys) == [["ada"], ["ada"], [], ["ada"]]

    @promise(
        "directory.5",
        "keeps namespaces apart",
        level="L5",
        clause="Directory.locate",
        why="peers would be asked for one model's chunks because they have another's",
    )
    def test_equal_digests_of_two_namespaces_are_two_chunks(self, seen: Seen) -> None:
        """Only the one that was reported is located."""
        mine, theirs = some(2), some(2, namespace="other")
        assert seen("ada").join(life("ada"), batches(mine), soon())
        assert holders(seen("bob"), [*theirs, *mine]) == [[], [], ["ada"], ["ada"]]

    @promise(
        "directory.6",
        "takes snapshots and questions of many batches",
        level="L1",
        clause="Directory.join",
        why="a large cache would be known in part, or not at all",
    )
    def test_many_chunks_are_known_one_by_one(self, seen: Seen) -> None:
        """Two and a half batches of chunks, and as many absent ones."""
        keys = some(REPORT_KEYS * 5 // 2)
        absent = some(len(keys), "absent")
        assert seen("ada").join(life("ada"), batches(keys), soon())
        mixed = [key for pair in zip(keys, absent, strict=True) for key in pair]
        assert holders(seen("bob"), mixed) == [["ada"], []] * len(keys)

    @promise(
        "directory.7",
        "refuses a batch that is larger than the port allows",
        level="L4",
        clause="Directory.report",
        why="one message could take any amount of memory",
    )
    def test_a_batch_that_is_too_large_is_refused(self, seen: Seen) -> None:
        """In a report and in a snapshot, with an error of the caller's branch."""
        ada, keys = seen("ada"), some(REPORT_KEYS + 1)
        with pytest.raises(InvalidRequest):
            ada.join(life("ada"), [keys], soon())
        assert ada.join(life("ada"), [], soon())
        with pytest.raises(InvalidRequest):
            ada.report(life("ada"), Report(1, keys[1:], keys[:1]), soon())
        assert ada.report(life("ada"), Report(1, keys[1:]), soon())

    @promise(
        "directory.8",
        "agrees with sets after any sequence of joins, reports and departures",
        level="L1",
        clause="Directory",
        why="entries would be lost, or come back, without an error",
    )
    def test_it_behaves_like_a_set_of_keys_for_each_node(self, seen: Seen) -> None:
        """Each key is held by exactly the nodes that last reported it."""
        keys = some(12)
        generation = 0

        def agree(steps: list[tuple[str, str, set[int], set[int]]]) -> None:
            nonlocal generation
            generation += 1
            held: dict[str, set[int]] = {}
            sequence: dict[str, int] = {}
            for name in NODES:
                seen(name).leave(life(name, max(1, generation - 1)), soon())
            for what, name, added, removed in steps:
                node, member = seen(name), life(name, generation)
                if what == "join" or (what == "report" and name not in held):
                    assert node.join(member, batches([keys[i] for i in sorted(added)], 5), soon())
                    held[name], sequence[name] = set(added), 0
                elif what == "report":
                    sequence[name] += 1
                    lists = [[keys[i] for i in sorted(part)] for part in (added - removed, removed)]
                    assert node.report(member, Report(sequence[name], *lists), soon())
                    held[name] = (held[name] - removed) | (added - removed)
                else:
                    node.leave(member, soon())
                    held.pop(name, None)
            expected = [sorted(n for n in held if i in held[n]) for i in range(len(keys))]
            assert holders(seen("cyd"), keys) == expected

        numbers = st.sets(st.integers(0, len(keys) - 1), max_size=8)
        kinds = st.sampled_from(("join", "report", "report", "leave"))
        steps = st.lists(st.tuples(kinds, st.sampled_from(NODES), numbers, numbers), max_size=10)
        examples("directory.8", lambda chosen: chosen(given(steps)(agree))(), 25)
