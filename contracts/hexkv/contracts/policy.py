"""The contract of eviction policies."""

from __future__ import annotations

import copy
import gc
import random
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from math import inf

import pytest

from hexkv.contracts.kit.cases import each
from hexkv.contracts.kit.limits import step
from hexkv.contracts.kit.promise import promise
from hexkv.contracts.kit.whole import Whole
from hexkv.ports import KEY_BYTES, ChunkKey, Policy

SMALL, LARGE = 1_000, 32_000
"""Chunks on a small and on a large tier: work for all of them shows as a factor of 32."""

MANY = 5_000
"""Enough chunks for a policy to overlook some, or to stop at a round number."""

TURNS, MOST_TURNS = 5, 20
"""How often each is timed: more often if it seems to take too long."""


class PolicyContract(Whole):
    """Subclass this and give it a ``policy`` fixture.

    The fixture gives a policy of an empty tier that :func:`copy.deepcopy` can double.
    """

    @pytest.fixture
    def policy(self) -> Policy:
        """A new policy, of a tier that holds nothing yet."""
        raise NotImplementedError("give the subclass a `policy` fixture")

    @promise(
        "policy.1",
        "has every method of the port",
        level="L0",
        clause="Policy",
        why="the tier cannot be built, or fails at its first eviction",
        hint="subclass nothing: have admit, touch, drop and victims",
    )
    def test_is_a_policy(self, policy: Policy) -> None:
        """It has every method of the port."""
        assert isinstance(policy, Policy)

    @promise(
        "policy.2",
        "bears empty calls, and has no victims when nothing is there",
        level="L0",
        clause="Policy.victims",
        why="a tier that was just cleared would evict what it does not hold",
    )
    def test_an_empty_tier_has_no_victims(self, policy: Policy) -> None:
        """Calls with no chunks are allowed and have no effect."""
        policy.admit([], None)
        policy.touch([])
        assert list(policy.victims()) == []

    @promise(
        "policy.3",
        "names the chunks that are on the tier as victims, each once",
        clause="Policy.victims",
        why="a chunk that it forgot fills the budget for ever; one named twice is freed twice",
    )
    @each("seed", range(5))
    def test_victims_are_the_chunks_on_the_tier_each_once(self, policy: Policy, seed: int) -> None:
        """After any history: none twice, none omitted, none that has left."""
        large, policy = copy.deepcopy(policy), copy.deepcopy(policy)
        for resident in _replay(policy, seed):
            victims = list(policy.victims())
            assert len(victims) == len(set(victims)), "a chunk is its victim twice"
            assert set(victims) == resident
        if not seed:
            _names_thousands(large)

    @promise(
        "policy.4",
        "stays as it is when its victims are read",
        clause="Policy.victims",
        why="a write that is refused in the end would have changed who goes next",
        hint="victims() reads; only admit, touch and drop write",
    )
    def test_looking_at_victims_changes_nothing(self, policy: Policy) -> None:
        """Iterating over all or some of them does not change the later order."""
        watched = copy.deepcopy(policy)
        for _ in zip(_replay(policy, 7), _replay(watched, 7), strict=True):
            list(islice(watched.victims(), 3))
            assert list(watched.victims()) == list(watched.victims())
        assert list(watched.victims()) == list(policy.victims())

    @promise(
        "policy.5",
        "names the first victim without making a list of all",
        level="L6",
        clause="Policy.victims",
        why="every eviction of a large tier would copy the whole index under its lock",
        hint="yield, and begin at the end that goes first",
    )
    def test_victims_are_lazy(self, policy: Policy) -> None:
        """The first victim takes no memory for all the others."""
        policy.admit(_keys(LARGE), None)
        tracemalloc.start()
        try:
            next(policy.victims())
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < LARGE, f"{peak} bytes for the first of {LARGE} victims"

    @promise(
        "policy.6",
        "forgets as a victim what has left, however it left",
        clause="Policy.drop",
        why="the tier would evict what it does not hold, and make no room",
    )
    @each("evicted", [True, False])
    def test_a_dropped_chunk_is_no_victim(self, policy: Policy, evicted: bool) -> None:
        """For any way of leaving, and any position in the order."""
        policy = copy.deepcopy(policy)
        keys = _keys(30)
        policy.admit(keys, None)
        policy.touch(keys[:10])
        left = set(keys)
        for key in random.Random(1).sample(keys, len(keys)):  # noqa: S311 - any order will do
            policy.drop(key, evicted=evicted)
            left.remove(key)
            assert set(policy.victims()) == left

    @promise(
        "policy.7",
        "takes again what it has let go of",
        clause="Policy.admit",
        why="a prompt that comes back after its eviction would never be cached again",
    )
    @each("evicted", [True, False])
    def test_a_dropped_chunk_may_come_back(self, policy: Policy, evicted: bool) -> None:
        """A tier may store a chunk again after dropping it, any number of times."""
        policy = copy.deepcopy(policy)
        keys = _keys(8)
        for _ in range(3):
            policy.admit(keys, None)
            policy.touch(keys)
            for key in list(policy.victims()):
                policy.drop(key, evicted=evicted)
        policy.admit(keys, None)
        assert sorted(policy.victims()) == sorted(keys)

    @promise(
        "policy.8",
        "lets the end of a prompt go before its beginning",
        clause="Policy.victims",
        why="chunks whose beginning is gone are dead weight: a hit is an unbroken prefix",
        hint="order what arrives in one call from its end",
    )
    def test_the_end_of_a_prompt_goes_before_its_beginning(self, policy: Policy) -> None:
        """A chunk is useless without those before it, so they must not go first."""
        keys = _keys(10)
        policy.admit(keys, None)
        assert list(policy.victims()) == keys[::-1]

    @promise(
        "policy.9",
        "takes a chunk whose parent is not on the tier",
        clause="Policy.admit",
        why="tiers evict, so a parent may have left; the write would fail",
    )
    def test_a_chunk_may_follow_one_that_is_not_here(self, policy: Policy) -> None:
        """Its parent may have left, or never have been on this tier."""
        left, *keys = _keys(4)
        policy.admit([left], None)
        policy.drop(left, evicted=True)
        policy.admit(keys[:2], left)
        policy.admit(keys[2:], ChunkKey(b"\xff" * KEY_BYTES))
        assert sorted(policy.victims()) == sorted(keys)

    @promise(
        "policy.10",
        "keeps and changes none of the caller's lists",
        clause="Policy.admit",
        why="the index reuses them, and the order of eviction would change by itself",
        hint="copy the keys",
    )
    def test_the_callers_lists_stay_the_callers(self, policy: Policy) -> None:
        """The policy does not keep or change them."""
        keys = _keys(5)
        given = list(keys)
        policy.admit(given, None)
        policy.touch(given)
        assert given == keys, "the policy changed the list it was given"
        given.clear()
        assert sorted(policy.victims()) == sorted(keys)

    @promise(
        "policy.11",
        "has the same victims after the same calls",
        clause="Policy.victims",
        why="no trace could be replayed, and no eviction explained",
        hint="no clock, no random numbers, no id()",
    )
    @each("seed", range(5))
    def test_the_same_calls_give_the_same_victims(self, policy: Policy, seed: int) -> None:
        """No randomness, no clock, no identity of objects: a trace can be replayed."""
        policy, twin = copy.deepcopy(policy), copy.deepcopy(policy)
        for _ in zip(_replay(policy, seed), _replay(twin, seed), strict=True):
            assert list(policy.victims()) == list(twin.victims())

    @promise(
        "policy.12",
        "bounds what it remembers of evicted chunks",
        level="L6",
        clause="Policy.drop",
        why="a tier that runs for months would run out of memory",
        hint="as many ghosts as residents, at most",
    )
    def test_memory_of_evicted_chunks_is_bounded(self, policy: Policy) -> None:
        """A tier that runs for months must not remember every chunk it ever held."""
        held, rounds = 64, 8_000
        policy.admit(_keys(held), None)

        def churn(first: int) -> None:
            for n in range(first, first + rounds):
                policy.admit([_key(n)], None)
                policy.drop(next(policy.victims()), evicted=True)

        churn(held)
        tracemalloc.start()
        try:
            churn(held + rounds)
            gc.collect()  # unreferenced garbage does not count as kept
            kept, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert kept < rounds * 20, f"{kept} bytes kept after {rounds} evictions"

    @pytest.mark.thorough
    @promise(
        "policy.13",
        "takes no longer for a call when the tier is larger",
        level="L6",
        clause="Policy",
        why="the index waits for it under its lock: every request of a large tier would",
        hint="no sorting and no search: linked lists, dictionaries",
    )
    def test_the_cost_of_a_call_does_not_grow_with_the_tier(self, policy: Policy) -> None:
        """A tier may hold a hundred thousand chunks, and its index waits for the policy."""
        large = copy.deepcopy(policy)
        policy.admit(_keys(SMALL), None)
        large.admit(_keys(LARGE), None)
        touching = _touch(policy, SMALL), _touch(large, LARGE)
        evicting = _replace(policy, SMALL), _replace(large, LARGE)
        for what, (few, many) in {"touching": touching, "evicting": evicting}.items():
            growth = _growth(few, many, below=10)
            assert growth < 10, (
                f"{what} takes {growth:.0f} times as long among {LARGE} chunks as among {SMALL}"
            )


def _names_thousands(policy: Policy) -> None:
    """Thousands of the first victims may be pinned: then those behind them are evicted."""
    keys = _keys(MANY)
    for start in range(0, MANY, 50):
        policy.admit(keys[start : start + 50], None)
        policy.touch(keys[start : start + 25])
    left = set(keys)
    victims = list(policy.victims())
    assert len(victims) == MANY, f"{len(victims)} victims of {MANY} chunks"
    assert set(victims) == left
    for key in victims[: MANY // 2 : -3]:
        policy.drop(key, evicted=True)
        left.remove(key)
    rest = list(policy.victims())
    assert len(rest) == len(left), f"{len(rest)} victims of {len(left)} chunks"
    assert set(rest) == left


def _growth(few: Callable[[], None], many: Callable[[], None], below: float) -> float:
    """How many times as long as *few* *many* takes; it is expected to be *below*.

    In processor time, on which other processes act only through the caches that they use. That
    only adds time, so the minimum is taken, and a ratio above *below* is measured again.
    """
    least = [inf, inf]
    growth = inf
    for turn in range(MOST_TURNS):
        for which, work in enumerate((few, many)):
            step()
            start = time.thread_time()
            work()
            least[which] = min(least[which], time.thread_time() - start)
        growth = least[1] / least[0]
        if turn + 1 >= TURNS and growth < below:
            break
    return growth


def _touch(policy: Policy, count: int) -> Callable[[], None]:
    keys = [_key(n) for n in range(0, count, count // 200)]

    def work() -> None:
        for key in keys:
            policy.touch([key])

    return work


def _replace(policy: Policy, count: int) -> Callable[[], None]:
    fresh = map(_key, range(count, count + 1_000_000))

    def work() -> None:
        for key in islice(fresh, 200):
            policy.drop(next(policy.victims()), evicted=True)
            policy.admit([key], None)

    return work


def _key(n: int) -> ChunkKey:
    return ChunkKey(n.to_bytes(KEY_BYTES, "big"))


def _keys(count: int) -> list[ChunkKey]:
    return [_key(n) for n in range(count)]


def _replay(policy: Policy, seed: int) -> Iterator[set[ChunkKey]]:
    """Play requests over a small tier; after each, give the chunks that are on it.

    Prompts share prefixes, as conversations do. Every key is a new object.
    """
    dice = random.Random(seed)  # noqa: S311 - a trace, not a secret
    resident: set[ChunkKey] = set()
    for _ in range(120):
        talk, turns = dice.randrange(6), dice.randint(1, 8)
        prompt = [_key(0), *(_key(100 * talk + turn) for turn in range(1, turns))]
        here = [key for key in prompt if key in resident]
        new = [key for key in prompt if key not in resident]
        policy.touch(here)
        for run, after in _runs(prompt, new):
            policy.admit(run, after)
        resident.update(new)
        while len(resident) > 20:
            victim = next(policy.victims())
            policy.drop(victim, evicted=True)
            resident.discard(victim)
        if resident and dice.random() < 0.1:
            lost = dice.choice(sorted(resident))
            policy.drop(lost, evicted=False)
            resident.discard(lost)
        yield set(resident)


def _runs(
    prompt: Sequence[ChunkKey], new: Sequence[ChunkKey]
) -> Iterator[tuple[list[ChunkKey], ChunkKey | None]]:
    """The unbroken stretches of *new* chunks in *prompt*, each with the chunk before it."""
    run: list[ChunkKey] = []
    after: ChunkKey | None = None
    for before, key in zip([None, *prompt[:-1]], prompt, strict=True):
        if key in new:
            after = after if run else before
            run.append(key)
        elif run:
            yield run, after
            run = []
    if run:
        yield run, after
