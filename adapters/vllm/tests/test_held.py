"""A block is promised to vLLM's offloading only while it is held: read, whole, and in the pool."""

from contextlib import ExitStack
from unittest.mock import patch

import pytest

from engines.vllm.held_ranks import SIZES, SLOT, Keyed, Rank, engine
from hexkv.adapters.vllm.worker.held import COPYING
from hexkv.ports import PAGE, InvalidRequest, frame_bytes


@pytest.fixture
def disk(tmp_path):
    return {"store": "disk", "settings": {"root": str(tmp_path / "cache")}}


@pytest.fixture
def rank(disk):
    rank = Rank(engine(disk))
    yield rank
    rank.held.close()


@pytest.fixture
def simple():
    rank = Rank(Keyed())
    yield rank
    rank.held.close()


def test_what_is_held_is_in_the_ledger_until_it_is_released(rank):
    for number, name in enumerate((b"a", b"b", b"c")):
        rank.store(name, 0, number)
        assert rank.held.hold(number, 0, name)
    assert not rank.held.hold(9, 0, b"absent")
    assert rank.leases() == 3
    assert rank.held.used == 3 * SLOT <= rank.engine.health().pool_held_bytes
    rank.load(1, 4)
    rank.held.release([0, 1, 2])
    assert (rank.leases(), rank.leases(COPYING), rank.held.used) == (0, 0, 0)
    assert rank.engine.health().pool_held_bytes == 0


def test_what_is_held_of_a_tier_in_memory_takes_no_memory_more():
    rank = Rank(engine())
    rank.store(b"a", 0, 2)
    before = rank.engine.health().pool_held_bytes
    assert rank.held.hold(7, 0, b"a")
    assert rank.engine.health().pool_held_bytes == before
    rank.held.close()


def test_what_is_held_survives_the_tiers(rank):
    before = rank.block(0, 2)
    rank.store(b"a", 0, 2)
    assert rank.held.hold(7, 0, b"a")
    rank.engine.clear()
    assert not rank.held.hold(8, 0, b"a")
    rank.load(7, 4)
    assert rank.block(0, 4) == before


def test_a_crowded_pool_still_stores_what_is_new(disk):
    """Holds take a part of the pool, and the tier in memory gives way to everything else."""
    rank = Rank(engine({"store": "memory"}, disk, pool="256KiB"), limit=8 * SLOT)
    names = [b"%d" % number for number in range(24)]
    with ExitStack() as closing:
        closing.callback(rank.held.close)
        for name in names:
            assert rank.store(name, 0, 2) == sum(SIZES[0])
        found = [rank.held.hold(number, 0, name) for number, name in enumerate(names)]
        assert sum(found) == 8
        assert rank.store(b"new", 0, 2) == sum(SIZES[0])
        rank.held.release(range(24))
        assert rank.held.hold(99, 0, names[-1])


def test_groups_share_no_names(rank):
    rank.store(b"a", 0, 2)
    assert not rank.held.hold(7, 1, b"a")


def test_a_group_that_vllm_does_not_have_is_refused(rank):
    with pytest.raises(InvalidRequest, match="no group 2"):
        rank.held.hold(7, 2, b"a")
    with pytest.raises(InvalidRequest, match="no group 2"):
        rank.held.store([(b"a", 2, 0)], 0)


def test_a_damaged_block_is_not_promised(rank, tmp_path):
    rank.store(b"a", 0, 2)
    (frame,) = (p for p in (tmp_path / "cache").rglob("*") if p.stat().st_size == SLOT)
    with frame.open("r+b") as file:
        file.seek(PAGE + 10)
        file.write(b"damage")
    assert not rank.held.hold(7, 0, b"a")
    with pytest.raises(KeyError):
        rank.held.load([(7, 4)])
    assert (rank.leases(), rank.held.used) == (0, 0)


def test_no_more_is_held_than_the_limit(disk):
    rank = Rank(engine(disk), limit=2 * SLOT)
    rank.store(b"a", 0, 2)
    assert [rank.held.hold(i, 0, b"a") for i in range(3)] == [True, True, False]
    rank.held.release([0, 0, 99])
    assert rank.held.hold(3, 0, b"a")
    assert not rank.held.hold(4, 0, b"a")
    rank.held.close()


def test_what_is_held_counts_as_much_as_it_takes_of_the_pool(disk):
    """A whole slot, where a block is larger than half of one."""
    small = frame_bytes(sum(SIZES[1]))
    assert small < SLOT
    rank = Rank(engine(disk), limit=SLOT + small)
    rank.store(b"a", 1, 2)
    assert rank.held.hold(7, 1, b"a")
    assert rank.held.used == rank.engine.health().pool_held_bytes == SLOT
    assert not rank.held.hold(8, 1, b"a")
    assert (rank.held.used, rank.leases()) == (SLOT, 1)
    rank.held.close()


def test_a_ticket_holds_one_block_however_often_it_is_asked_for(rank):
    rank.store(b"a", 0, 2)
    assert rank.held.hold(7, 0, b"a")
    assert rank.held.hold(7, 0, b"a")
    assert rank.leases() == 1
    rank.held.release([7])
    assert (rank.leases(), rank.held.used) == (0, 0)


def test_a_block_that_was_released_before_it_was_there_takes_no_room(disk):
    rank = Rank(engine(disk), limit=SLOT)
    rank.store(b"a", 0, 2)
    rank.held.release([7])
    assert not rank.held.hold(7, 0, b"a")
    assert rank.leases() == 0
    assert rank.held.hold(8, 0, b"a")
    rank.held.close()


def test_what_is_read_and_not_wanted_is_given_back(simple):
    simple.store(b"a", 0, 2)
    simple.held.release([7])
    assert not simple.held.hold(7, 0, b"a")
    assert (simple.leases(), simple.held.used) == (0, 0)


def test_beyond_the_limit_nothing_is_read():
    rank = Rank(Keyed(), limit=SLOT)
    rank.store(b"a", 0, 2)
    assert rank.held.hold(7, 0, b"a")
    with patch.object(rank.engine.chunks, "hold", side_effect=AssertionError("it was read")):
        assert not rank.held.hold(8, 0, b"a")
    rank.held.close()


def test_the_scheduler_asks_in_messages(rank):
    rank.store(b"a", 1, 2)
    ask = {"op": "hold", "ticket": 7, "group": 1}
    assert rank.held(ask, memoryview(b"a")) == {"held": True}
    assert rank.held(ask | {"ticket": 8}, memoryview(b"b")) == {"held": False}
    assert rank.held({"op": "release", "tickets": [7, 8]}, memoryview(b"")) == {}
    assert rank.held({"op": "give_up", "tickets": [9]}, memoryview(b"")) == {}
    assert rank.held.gave_up(9)
    clear = {"op": "clear", "generation": 1}
    assert rank.held(clear | {"tiers": []}, memoryview(b"")) == {"chunks": 0, "left": {}}
    assert rank.held(clear | {"tiers": ["disk"]}, memoryview(b"")) == {"chunks": 1, "left": {}}
    left = {"gone": "no tier 'gone'; there are disk"}
    assert rank.held(clear | {"tiers": ["gone"]}, memoryview(b"")) == {"chunks": 0, "left": left}
    assert rank.held({"op": "weights"}, memoryview(b"")) == {"weights": "weights-1"}
    with pytest.raises(InvalidRequest):
        rank.held({"op": "hold"}, memoryview(b""))


def test_blocks_are_ready_when_all_are_held(rank):
    rank.store(b"a", 0, 2)
    assert rank.held.hold(7, 0, b"a")
    assert rank.held.ready([7])
    assert not rank.held.ready([7, 8])
    assert rank.held.ready([])
