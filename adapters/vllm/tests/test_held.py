"""A block is promised to vLLM's offloading only while it is held: read, whole, and in the pool."""

from contextlib import ExitStack
from hashlib import sha256
from types import SimpleNamespace
from unittest.mock import patch

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hexkv.adapters.vllm.held import BLOCK_TOKENS, COPYING, OWNER, HeldBlocks
from hexkv.contracts.chunk_cache.double import HeapChunkCache
from hexkv.contracts.doubles import ManualClock
from hexkv.kernels.blocks import opaque_layout
from hexkv.plugins.compose import build
from hexkv.plugins.config import load
from hexkv.plugins.schema import Calls
from hexkv.ports import (
    NAMESPACE_BYTES,
    PAGE,
    InvalidRequest,
    KeySpace,
    Namespace,
    frame_bytes,
)
from late_blocks import late_copies

BLOCKS = 6
SIZES = ([61, 9000], [4200])
"""Bytes of a block in each tensor of each group. The second's take more than half a slot."""

SECONDS = Calls(lookup=60.0, retrieve=60.0, store=60.0)
LARGE = 1 << 20


SLOT = frame_bytes(sum(SIZES[0]))
"""Bytes of the pool that a block takes."""


def tensors(seed):
    made = torch.Generator().manual_seed(seed)
    return [
        [torch.randint(0, 256, (BLOCKS, n), generator=made, dtype=torch.uint8) for n in sizes]
        for sizes in SIZES
    ]


def namespaces():
    return [
        Namespace("toy", opaque_layout(BLOCK_TOKENS, sizes), extra=(("group", str(i)),))
        for i, sizes in enumerate(SIZES)
    ]


class Rank:
    """Blocks of vLLM, and what is held of them over *engine*."""

    def __init__(self, engine, limit=LARGE, clock=None):
        self.pages = tensors(1)
        self.engine = engine
        groups = dict(enumerate(zip(namespaces(), self.pages, strict=True)))
        self.held = HeldBlocks(engine, groups, limit, SECONDS, clock)

    def store(self, name, group, block):
        copied = self.held.store([(name, group, block)], 0)
        assert self.engine.flush(60)
        return copied

    def load(self, ticket, block):
        copying = self.held.load([(ticket, block)])
        assert copying.done
        assert copying.whole
        return copying.size

    def block(self, group, block):
        return b"".join(bytes(page[block].tolist()) for page in self.pages[group])

    def leases(self, owner=OWNER):
        return self.engine.health().leases.get(owner, 0)


def engine(*tiers, pool="1MiB"):
    """One whose pool overwrites what nobody holds."""
    settings = {"chunk": {"size": BLOCK_TOKENS}, "pool": {"bytes": pool, "poison": True}}
    settings["tiers"] = list(tiers) or [{"store": "memory"}]
    settings["deadlines"] = {"lookup": 60.0, "retrieve": 60.0, "store": 60.0}
    return build(load(None, {}, settings), namespaces()[0])


class Keyed:
    """As much of an engine as is used, over the double of a cache by key."""

    def __init__(self):
        self.chunks = HeapChunkCache()

    def key_space(self, namespace):
        identity = repr(namespace)
        prefix = sha256(identity.encode()).digest()[:NAMESPACE_BYTES]
        return KeySpace(identity, prefix, namespace.layout)

    def flush(self, seconds):
        return True

    def health(self):
        return SimpleNamespace(leases=self.chunks.ledger())

    def clear(self):
        count = len(self.chunks._chunks)
        self.chunks._chunks.clear()
        return SimpleNamespace(complete=True, chunks=count)

    def close(self):
        self.chunks.close()


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


@pytest.mark.parametrize("group", [0, 1])
def test_a_block_that_was_stored_is_held_and_loaded_elsewhere(rank, group):
    before = rank.block(group, 2)
    assert rank.store(b"a", group, 2) == sum(SIZES[group])
    assert rank.store(b"a", group, 2) == 0
    assert rank.held.hold(7, group, b"a")
    assert rank.load(7, 4) == sum(SIZES[group])
    assert rank.block(group, 4) == before


def test_blocks_of_all_groups_are_stored_at_once_and_loaded_at_once(rank):
    before = [rank.block(group, block) for group, block in ((0, 1), (1, 1), (0, 3))]
    rank.store(b"b", 1, 1)
    some = [(b"c", 0, 3), (b"b", 1, 1), (b"a", 0, 1)]
    assert rank.held.store(some, 0) == 2 * sum(SIZES[0])
    assert rank.engine.flush(60)
    for ticket, group, name in ((7, 0, b"a"), (8, 1, b"b"), (9, 0, b"c")):
        assert rank.held.hold(ticket, group, name)
    copying = rank.held.load([(9, 4), (8, 5), (7, 0)])
    assert copying.done
    assert copying.size == 2 * sum(SIZES[0]) + sum(SIZES[1])
    assert [rank.block(0, 0), rank.block(1, 5), rank.block(0, 4)] == before


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
    assert rank.held({"op": "clear", "generation": 1}, memoryview(b"")) == {"chunks": 1}
    with pytest.raises(InvalidRequest):
        rank.held({"op": "hold"}, memoryview(b""))


def test_nothing_from_before_it_was_emptied_comes_back(rank):
    """vLLM hands over what it named in the step before."""
    for name in (b"a", b"b", b"c"):
        rank.held.store([(name, 0, 2)], 0)  # queued when the cache is emptied
    rank.held.clear(1)
    assert rank.held.store([(b"d", 0, 2)], 0) == 0
    assert not any(rank.held.hold(i, 0, name) for i, name in enumerate((b"a", b"b", b"c")))
    assert not rank.held.hold(4, 0, b"d")
    rank.held.store([(b"d", 0, 2)], 1)
    assert rank.engine.flush(60)
    assert rank.held.hold(5, 0, b"d")


def test_a_block_is_kept_as_it_was_when_it_was_handed_over(rank):
    """Its place may be another's a moment later."""
    before = rank.block(0, 2)
    rank.held.store([(b"a", 0, 2)], 0)
    for page in rank.pages[0]:
        page[2] = 0
    assert rank.engine.flush(60)
    assert rank.held.hold(7, 0, b"a")
    rank.load(7, 4)
    assert rank.block(0, 4) == before


def test_blocks_are_ready_when_all_are_held(rank):
    rank.store(b"a", 0, 2)
    assert rank.held.hold(7, 0, b"a")
    assert rank.held.ready([7])
    assert not rank.held.ready([7, 8])
    assert rank.held.ready([])


def test_a_release_frees_no_memory_that_is_being_copied(rank):
    before = rank.block(0, 2)
    rank.store(b"a", 0, 2)
    assert rank.held.hold(7, 0, b"a")
    with late_copies() as copies:
        copying = rank.held.load([(7, 4)])
    rank.held.release([7])
    rank.engine.clear()
    for number in range(3):  # and use the memory again, if it is free
        rank.store(b"%d" % number, 0, 3)
    assert not copying.done
    assert (rank.leases(), rank.leases(COPYING)) == (0, 1)
    copies[0].finish()
    assert copying.done
    assert rank.block(0, 4) == before
    assert rank.leases(COPYING) == 0
    assert rank.engine.health().pool_held_bytes == 0


def test_a_load_of_what_was_released_takes_nothing(simple):
    for name in (b"a", b"b"):
        simple.store(name, 0, 2)
    assert simple.held.hold(7, 0, b"a")
    assert simple.held.hold(8, 0, b"b")
    simple.held.release([8])
    with pytest.raises(KeyError):
        simple.held.load([(7, 3), (8, 4)])
    assert simple.leases(COPYING) == 0


@pytest.mark.parametrize("which", [0, 1])
def test_a_copy_that_fails_is_not_whole_and_leaves_nothing(simple, which, caplog):
    for number, group in enumerate((0, 1)):
        simple.store(b"a", group, 2)
        assert simple.held.hold(number, group, b"a")
    with late_copies() as copies:
        copying = simple.held.load([(0, 3), (1, 3)])
    copies[which].error = RuntimeError("on purpose")
    assert not copying.done  # of the other one
    assert simple.leases(COPYING) == 2
    copies[1 - which].finish()
    assert copying.done
    assert not copying.whole
    assert simple.leases(COPYING) == 0
    assert "on purpose" in caplog.text


def test_a_block_that_vllm_does_not_have_is_not_loaded(simple, caplog):
    simple.store(b"a", 0, 2)
    assert simple.held.hold(7, 0, b"a")
    copying = simple.held.load([(7, BLOCKS)])
    assert copying.done
    assert not copying.whole
    assert simple.leases(COPYING) == 0
    assert "cannot be copied" in caplog.text


def test_closing_gives_back_everything_but_what_is_still_being_copied():
    rank = Rank(Keyed(), clock=ManualClock())
    for number, name in enumerate((b"a", b"b", b"c")):
        rank.store(name, 0, 2)
        assert rank.held.hold(number, 0, name)
    rank.load(0, 3)
    with late_copies() as copies:
        copying = rank.held.load([(1, 4)])
    rank.held.close()
    assert rank.engine.chunks.ledger() == {COPYING: 1}
    copies[0].finish()
    assert copying.done
    rank.held.close()
    assert rank.engine.chunks.ledger() == {}


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["store", "hold", "release", "load", "copied", "clear"]),
            st.integers(0, 3),
            st.integers(0, 1),
        ),
        max_size=30,
    )
)
def test_whatever_happens_held_blocks_are_right_and_counted(steps):
    """Against a model: what each ticket holds, and what is being copied."""
    rank = Rank(Keyed(), limit=3 * SLOT)
    stored, held, under_way = {}, {}, []
    tickets = iter(range(1000))
    with late_copies() as copies:
        for op, number, group in steps:
            name = b"%d" % number
            if op == "store":
                rank.held.store([(name, group, number)], 0)
                stored.setdefault((name, group), rank.block(group, number))
            elif op == "hold":
                ticket = next(tickets)
                room = rank.held.used + frame_bytes(sum(SIZES[group])) <= 3 * SLOT
                assert rank.held.hold(ticket, group, name) is (room and (name, group) in stored)
                if room and (name, group) in stored:
                    held[ticket] = group, stored[name, group]
            elif op == "release" and held:
                ticket = sorted(held)[number % len(held)]
                rank.held.release([ticket])
                del held[ticket]
            elif op == "load" and held:
                ticket = sorted(held)[number % len(held)]
                copying = rank.held.load([(ticket, 4 + group)])
                assert not copying.done
                under_way.append((copying, copies[-1], 4 + group, *held[ticket]))
            elif op == "copied" and under_way:
                copying, copy, block, of, content = under_way.pop(number % len(under_way))
                copy.finish()
                assert copying.done
                assert rank.block(of, block) == content
            elif op == "clear":
                rank.held.clear(0)
                stored.clear()
            assert rank.held.used == sum(PAGE + len(content) for _, content in held.values())
            assert (rank.leases(), rank.leases(COPYING)) == (len(held), len(under_way))
        rank.held.release(held)
        for _, copy, *_ in under_way:
            copy.finish()
    rank.held.close()
    assert rank.engine.chunks.ledger() == {}
