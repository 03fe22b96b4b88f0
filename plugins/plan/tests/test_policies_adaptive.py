"""The adaptive policy on workloads that it was not made for, and the parts it is made of."""

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from depth import covering, thorough
from hexkv.core.policies import ARC, FIFO, LFU, LRU, MRU, Adaptive
from hexkv.core.policies.adaptive._ages import BINS, EDGES, EPOCH, bin_of
from hexkv.core.policies.adaptive._ghosts import Run, Runs
from hexkv.core.policies.adaptive._reuse_distance import Gaps
from hexkv.core.policies.adaptive._shelves import Shelves
from hexkv.plan.replay import replay
from hexkv.plan.workloads import WORKLOADS, footprint, synthetic
from hexkv.ports import ChunkKey

SEED = 7


@pytest.mark.parametrize("many", [1500, *thorough(2500)])
@pytest.mark.parametrize(("share", "name"), covering([0.05, 0.3], WORKLOADS))
def test_adaptive_never_finds_noticeably_less_than_lru(name, share, many):
    """By more than a hundredth, that is; two of a thousand tokens are noise in a short trace."""
    requests = synthetic(name, many, SEED)
    chunks = int(footprint(requests) * share)
    found = replay(requests, Adaptive, chunks).hit_rate
    assert found >= 0.99 * replay(requests, LRU, chunks).hit_rate - 0.002


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "share", "near"),
    [("assistants", 0.05, 0.95), ("scans", 0.08, 0.9), ("loops", 0.6, 0.9), ("mixed", 0.05, 1.0)],
)
def test_adaptive_is_near_the_best_where_lru_is_not(name, share, near):
    requests = synthetic(name, 4000, SEED)
    chunks = int(footprint(requests) * share)
    others = (replay(requests, policy, chunks).hit_rate for policy in (LRU, LFU, FIFO, MRU, ARC))
    assert replay(requests, Adaptive, chunks).hit_rate >= near * max(others)


def test_a_copy_goes_on_as_the_original_does():
    policy = Adaptive()
    requests = synthetic("chats", 400, SEED)
    replay(requests, lambda: policy, 500)
    twin = copy.deepcopy(policy)
    keys = [ChunkKey(bytes([n]) * 48) for n in range(40)]
    for one in (policy, twin):
        one.admit(keys, None)
        one.touch(keys[:20])
    assert list(policy.victims()) == list(twin.victims())


@given(age=st.integers(0, 1 << 28))
def test_an_age_lies_between_the_edges_of_its_bin(age):
    at = bin_of(age)
    assert EDGES[at] <= age
    assert age < EDGES[at + 1] or at == BINS - 1


def play(gaps, gap, requests=2000):
    """Each request brings one chunk, which is met again after *gap* ticks; -1: never."""
    for now in range(0, requests * 16, 16):
        gaps.advance(now, 1000)
        for _ in range(16):
            gaps.enter(0)
        if 0 <= gap <= now:
            gaps.met(0, gap, 16)


def test_what_is_met_again_is_worth_something_until_then():
    gaps = Gaps(2)
    play(gaps, 4000)
    assert gaps.worth(0, 0) < gaps.worth(0, 2000) < gaps.worth(0, 3900)
    assert gaps.worth(0, 3900) > 10 * gaps.worth(0, 12_000)


def test_before_anything_is_seen_the_older_chunk_is_worth_less():
    gaps = Gaps(2)
    worths = [gaps.worth(1, age) for age in (100, 1000, 10_000, 1 << 20)]
    assert worths == sorted(worths, reverse=True)
    assert gaps.worth(0, 1 << 40) == 0


def test_a_class_never_seen_is_taken_for_the_one_before_it():
    gaps = Gaps(2)
    play(gaps, 4000)
    assert gaps.worth(1, 2000) == pytest.approx(gaps.worth(0, 2000), rel=0.2)


def test_a_run_is_remembered_whole_once():
    runs = Runs()
    for time in (640, 640, 1280):
        runs.add(0xABCD1234, time, 3, 2)
    assert runs.take(0xABCE1234) is None
    assert runs.take(0xABCD1234) == Run(chunks=3, time=1280, hits=3, turn=2)
    assert runs.take(0xABCD1234) is None


def test_runs_are_found_after_the_table_grew():
    runs = Runs()
    names = [n * 0x9E3779B1 % 2**32 for n in range(1, 2000)]
    for name in names:
        runs.add(name, 64, 1, 1)
    before = sum(copy.deepcopy(runs).take(name) is not None for name in names)
    runs.fit(200_000)
    assert sum(runs.take(name) is not None for name in names) == before > 1900


class Younger(Gaps):
    """The younger, the better."""

    def worth(self, kind, age):
        return -age


@given(
    steps=st.lists(st.tuples(st.integers(0, 1), st.integers(0, 5 * EPOCH)), max_size=60),
    removed=st.sets(st.integers(0, 59)),
)
def test_shelves_keep_each_class_in_the_order_it_came(steps, removed):
    shelves, gaps, now = Shelves(2), Younger(2), 0
    rows = {0: [], 1: []}
    for kind, wait in steps:
        now += wait
        shelves.advance(now, gaps, 0)
        slot = shelves.grow()
        shelves.put(slot, kind, now)
        rows[kind].append(slot)
    for number in removed:
        slot = shelves.first + number
        for row in rows.values():
            if slot in row:
                row.remove(slot)
                shelves.remove(slot)
    everything = list(shelves.worst_first())
    assert sorted(everything) == sorted(rows[0] + rows[1])
    shelves.advance(now + EPOCH, gaps, 0)
    for row in rows.values():
        assert [slot for slot in shelves.worst_first() if slot in row] == row
