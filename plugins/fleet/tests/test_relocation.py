"""Moves between nodes never lose a chunk, whoever else moves, stores, evicts or dies meanwhile."""

from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
)

from hexkv.fleet import draining, relocation
from hexkv.fleet.relocation import Ask, spread
from hexkv.ports import ClaimState, WorkReport
from peers.moving_nodes import KEYS, NODES, Movers, MovingNode, play


class Moves(RuleBasedStateMachine):
    """Clients, movers and faults, one ask of one mover at a time."""

    def __init__(self):
        super().__init__()
        self.movers = Movers()

    @rule(node=st.sampled_from(NODES), keys=st.sets(st.sampled_from(KEYS), min_size=1))
    def a_client_stores(self, node, keys):
        self.movers.store(node, keys)

    @rule(
        way=st.permutations(NODES),
        keys=st.sets(st.sampled_from(KEYS), min_size=1),
        delete=st.booleans(),
    )
    @precondition(lambda self: len(self.movers.running) < 4)
    def a_mover_begins(self, way, keys, delete):
        self.movers.begin(way[0], way[1], sorted(keys), delete=delete)

    @rule(pick=st.randoms(use_true_random=False), steps=st.integers(1, 4))
    @precondition(lambda self: self.movers.running)
    def a_mover_goes_on(self, pick, steps):
        mover = pick.choice(self.movers.running)
        for _ in range(steps):
            self.movers.step(mover)

    @rule(pick=st.randoms(use_true_random=False))
    @precondition(lambda self: self.movers.running)
    def a_mover_dies(self, pick):
        self.movers.running.remove(pick.choice(self.movers.running))

    @rule(node=st.sampled_from(NODES), key=st.sampled_from(KEYS))
    def a_node_evicts(self, node, key):
        self.movers.evict(node, key)

    @rule(node=st.sampled_from(NODES))
    def a_node_dies_and_starts_anew(self, node):
        self.movers.kill(node)

    @rule(node=st.sampled_from(NODES))
    def a_node_is_cut_off_or_is_back(self, node):
        self.movers.cut.symmetric_difference_update([node])

    @rule(node=st.sampled_from(NODES))
    def answers_of_a_node_are_lost_or_come_again(self, node):
        self.movers.deaf.symmetric_difference_update([node])

    @rule(seconds=st.sampled_from([1.0, 50.0, 100.0, 300.0]))
    def time_passes(self, seconds):
        self.movers.clock.advance(seconds)

    @invariant()
    def no_chunk_is_lost(self):
        self.movers.check()


TestMoves = Moves.TestCase
TestMoves.settings = settings(stateful_step_count=60)


WAYS = st.tuples(st.permutations(NODES), st.permutations(NODES))
HOLDERS = st.sets(st.sampled_from(NODES), min_size=1)


@given(ways=WAYS, holders=HOLDERS, turns=st.lists(st.booleans()))
def test_two_moves_of_the_same_chunks_end_with_exactly_one_copy(ways, holders, turns):
    """Where nothing else goes wrong; a chunk that neither of them was to move stays, too."""
    movers = Movers()
    for node in holders:
        movers.store(node, KEYS)
    both = [movers.begin(origin, goal, KEYS, delete=True) for origin, goal, _ in ways]
    for first in turns:
        movers.step(both[not first])
    movers.finish()
    movers.check()
    for one in both:
        got = one.got
        assert sorted([*got.done, *got.absent, *got.busy, *got.failed]) == sorted(KEYS)
        assert not got.failed
    if len(holders) == 1:
        assert [movers.copies(key) for key in KEYS] == [1] * len(KEYS)
    # Whoever found chunks taken comes again, and finds what is left to be done.
    for way, one in zip(ways, both, strict=True):
        again = movers.begin(way[0], way[1], one.got.busy, delete=True)
        movers.finish()
        assert not again.got.busy
    movers.check()
    assert not any(node.pins or len(node.claims) for node in movers.nodes.values())


@given(keys=st.integers(0, 40), size=st.integers(1, 9), rooms=st.lists(st.integers(0, 90)))
def test_chunks_are_spread_where_there_is_room_and_none_is_forgotten(keys, size, rooms):
    wanted = list(range(keys))
    found = spread(wanted, size, {f"node{n}": room for n, room in enumerate(rooms)})
    placed = [key for some in found.to.values() for key in some]
    assert sorted([*placed, *found.unplaced]) == wanted
    for name, some in found.to.items():
        assert 0 < len(some) * size <= rooms[int(name.removeprefix("node"))]
    assert len(placed) == min(keys, sum(room // size for room in rooms))


def unclaimed(patch):
    """Nobody says that a chunk is on its way in."""
    real = MovingNode.claim

    def claim(self, token, keys, seconds, leaving=False, read=False):
        if leaving:
            return real(self, token, keys, seconds, leaving, read)
        return [ClaimState.HERE if key in self.chunks else ClaimState.ABSENT for key in keys]

    patch.setattr(MovingNode, "claim", claim)


def unrenewed(patch):
    """The claim at the goal is as old as the move, and the one at the origin lasts for longer."""
    real = relocation._Moving._claim

    def claim(self, node, *, read=False):
        if node in self.claimed:
            there = yield from self._ask(node, "holds", tuple(self.todo))
            return {key: tier is not None for key, tier in zip(self.todo, there, strict=True)}
        return (yield from real(self, node, read=read))

    patch.setattr(relocation._Moving, "_claim", claim)
    patch.setattr(relocation, "OUT_SECONDS", 600.0)


def unfenced(patch):
    """Whoever asks has chunks deleted."""

    def give_up(self, token, keys):
        self.chunks -= set(keys)
        return WorkReport(len(keys), len(keys))

    patch.setattr(MovingNode, "give_up", give_up)


def unpinned(patch):
    """What arrived may be evicted at once."""
    patch.setattr(MovingNode, "pinned", lambda self, key: False)


def by_hearsay(patch):
    """What was to be fetched counts as there."""
    real = MovingNode.claim

    def claim(self, token, keys, seconds, leaving=False, read=False):
        states = real(self, token, keys, seconds, leaving, read)
        return [
            ClaimState.HERE if read and state is ClaimState.ABSENT else state for state in states
        ]

    patch.setattr(MovingNode, "claim", claim)


def counting_on_each_other(patch):
    """A drain counts on nodes that are drained, too."""
    patch.setattr(MovingNode, "status", lambda self: SimpleNamespace(frozen=False))


def counting_on_what_others_count_on(patch):
    """A drain does not ask whether a move counts on the chunk where it is."""

    def nobody(node, keys, token):
        yield Ask(node, "release", (token,))
        return set()

    patch.setattr(draining, "_counted_on", nobody)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "plant",
    [
        unclaimed,
        unrenewed,
        unfenced,
        unpinned,
        by_hearsay,
        counting_on_each_other,
        counting_on_what_others_count_on,
    ],
    ids=lambda it: it.__name__,
)
def test_a_planted_bug_loses_a_chunk(plant, monkeypatch):
    plant(monkeypatch)

    def many():
        for seed in range(3000):
            play(seed, 300)

    with pytest.raises(AssertionError, match="nowhere"):
        many()


@pytest.mark.thorough
def test_no_chunk_is_lost_in_many_more_steps():
    for seed in range(300):
        play(seed, 1000)
