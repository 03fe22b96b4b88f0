"""The policies of the core keep the contract, and the contract tells who would not."""

import random
from collections.abc import Callable, Iterator, Sequence

import pytest

from hexkv.contracts.policy import PolicyContract
from hexkv.core.policies import ARC, FIFO, LFU, LRU, MRU, Adaptive
from hexkv.ports import ChunkKey, Policy


class TestLRU(PolicyContract):
    @pytest.fixture
    def policy(self) -> Policy:
        return LRU()


class TestLFU(PolicyContract):
    @pytest.fixture
    def policy(self) -> Policy:
        return LFU()


class TestFIFO(PolicyContract):
    @pytest.fixture
    def policy(self) -> Policy:
        return FIFO()


class TestMRU(PolicyContract):
    @pytest.fixture
    def policy(self) -> Policy:
        return MRU()


class TestARC(PolicyContract):
    @pytest.fixture
    def policy(self) -> Policy:
        return ARC()


class TestAdaptive(PolicyContract):
    @pytest.fixture
    def policy(self) -> Policy:
        return Adaptive()


class Listed:
    """A correct policy on a plain list, for the broken ones to break."""

    def __init__(self) -> None:
        self.order: list[ChunkKey] = []

    def admit(self, keys: Sequence[ChunkKey], after: ChunkKey | None) -> None:
        self.order.extend(reversed(keys))

    def touch(self, keys: Sequence[ChunkKey]) -> None:
        pass

    def drop(self, key: ChunkKey, *, evicted: bool) -> None:
        self.order.remove(key)

    def victims(self) -> Iterator[ChunkKey]:
        return iter(self.order)


class PrefixFirst(Listed):
    def admit(self, keys, after):
        self.order.extend(keys)


class AdmitsTouched(Listed):
    def touch(self, keys):
        self.order.extend(keys)


class KeepsTheEvicted(Listed):
    def drop(self, key, *, evicted):
        if not evicted:
            super().drop(key, evicted=evicted)


class KeepsTheDeleted(Listed):
    def drop(self, key, *, evicted):
        if evicted:
            super().drop(key, evicted=evicted)


class ForgetsOneOf(Listed):
    def victims(self):
        return iter(self.order[:-1])


class PopsWhatItShows(Listed):
    def victims(self):
        while self.order:
            yield self.order.pop(0)


class TurnsWhenLookedAt(Listed):
    def victims(self):
        seen = list(self.order)
        self.order.reverse()
        return iter(seen)


class SortsForEveryVictim(Listed):
    def victims(self):
        return iter(sorted(self.order))


class ThrowsDice(Listed):
    def admit(self, keys, after):
        for key in keys:
            self.order.insert(random.randint(0, len(self.order)), key)


class NeedsTheParent(Listed):
    def admit(self, keys, after):
        at = 0 if after is None else self.order.index(after)
        self.order[at:at] = reversed(keys)


class KeepsTheCallersList(Listed):
    def __init__(self) -> None:
        super().__init__()
        self.batches: list[Sequence[ChunkKey]] = []

    def admit(self, keys, after):
        self.batches.append(keys)

    def victims(self):
        return (key for batch in self.batches for key in reversed(batch))


class RemembersAllGhosts(LRU):
    __slots__ = ("ghosts",)

    def __init__(self) -> None:
        super().__init__()
        self.ghosts: dict[ChunkKey, int] = {}

    def drop(self, key, *, evicted):
        super().drop(key, evicted=evicted)
        self.ghosts[key] = len(self.ghosts)


CONTRACT = PolicyContract()


def times(promise: Callable[[Policy, int], None]) -> Callable[[Policy], None]:
    return lambda policy: promise(policy, 1)


@pytest.mark.parametrize(
    ("broken", "promise"),
    [
        (object, CONTRACT.test_is_a_policy),
        (PrefixFirst, CONTRACT.test_the_end_of_a_prompt_goes_before_its_beginning),
        (AdmitsTouched, times(CONTRACT.test_victims_are_the_chunks_on_the_tier_each_once)),
        (ForgetsOneOf, times(CONTRACT.test_victims_are_the_chunks_on_the_tier_each_once)),
        (KeepsTheEvicted, times(CONTRACT.test_a_dropped_chunk_is_no_victim)),
        (KeepsTheDeleted, lambda p: CONTRACT.test_a_dropped_chunk_is_no_victim(p, False)),
        (PopsWhatItShows, CONTRACT.test_looking_at_victims_changes_nothing),
        (TurnsWhenLookedAt, CONTRACT.test_looking_at_victims_changes_nothing),
        (SortsForEveryVictim, CONTRACT.test_victims_are_lazy),
        (SortsForEveryVictim, CONTRACT.test_the_cost_of_a_call_does_not_grow_with_the_tier),
        (ThrowsDice, times(CONTRACT.test_the_same_calls_give_the_same_victims)),
        (KeepsTheCallersList, CONTRACT.test_the_callers_lists_stay_the_callers),
        (RemembersAllGhosts, CONTRACT.test_memory_of_evicted_chunks_is_bounded),
    ],
)
def test_a_broken_policy_is_caught_by_the_promise_it_breaks(broken, promise):
    with pytest.raises(AssertionError):
        promise(broken())


def test_a_policy_that_needs_a_parent_on_the_tier_is_caught():
    with pytest.raises(ValueError, match="not in list"):
        CONTRACT.test_a_chunk_may_follow_one_that_is_not_here(NeedsTheParent())
