"""Any sequence of calls on a tier's index, beside a plain model of the store it stands for."""

from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    rule,
)

from depth import examples
from hexkv.core.policies import POLICIES
from hexkv.core.tiers.index.index import TierIndex
from hexkv.ports import ChunkKey, Entry, Policy

KEYS = [ChunkKey(b"%02d" % n) for n in range(14)]

batches = st.lists(st.sampled_from(KEYS), min_size=1, max_size=6)
sizes = st.integers(1, 30)
owners = st.sampled_from(["one", "two", "three"])


@dataclass(eq=False)
class Writing:
    """One reservation under way."""

    victims: list[ChunkKey]
    """Those not deleted yet."""
    keys: dict[ChunkKey, int]


class IndexMachine(RuleBasedStateMachine):
    """The caller: deletes, writes and fails in any order that the index allows.

    The model: what is on the store; which of that is leaving; what is being written; pins.
    """

    reservations = Bundle("reservations")

    @initialize(
        policy=st.sampled_from(sorted(POLICIES)),
        budget=st.integers(0, 80),
        left=st.dictionaries(st.sampled_from(KEYS), st.tuples(sizes, st.floats(0, 9)), max_size=6),
    )
    def start(self, policy: str, budget: int, left: dict[ChunkKey, tuple[int, float]]) -> None:
        self.policy: Policy = POLICIES[policy]()
        self.budget = budget
        self.index = TierIndex(self.policy, budget)
        self.store = {key: size for key, (size, _) in left.items()}
        self.leaving: set[ChunkKey] = set()
        self.written: list[Writing] = []
        self.pins: dict[str, set[ChunkKey]] = {}
        entries = [Entry(key, size, stored) for key, (size, stored) in left.items()]
        victims = self.index.restore(entries)
        self.leave(victims)
        self.delete(victims)

    @property
    def resident(self) -> set[ChunkKey]:
        return set(self.store) - self.leaving

    @property
    def pinned(self) -> set[ChunkKey]:
        return set().union(*self.pins.values())

    def leave(self, keys: list[ChunkKey]) -> None:
        assert set(keys) <= self.resident
        assert len(keys) == len(set(keys))
        self.leaving.update(keys)

    def delete(self, keys: list[ChunkKey]) -> None:
        for key in keys:
            del self.store[key]
            self.leaving.remove(key)
        self.index.deleted(keys)

    @rule(
        target=reservations,
        batch=batches,
        size=st.lists(sizes, min_size=len(KEYS), max_size=len(KEYS)),
        after=st.none() | st.sampled_from(KEYS),
    )
    def reserve(self, batch: list[ChunkKey], size: list[int], after: ChunkKey | None) -> Writing:
        size_of = dict(zip(KEYS, size, strict=True))
        known = self.resident
        moving = self.leaving.union(*(writing.keys for writing in self.written))
        reservation = self.index.reserve(batch, [size_of[key] for key in batch], after)
        assert not set(reservation.victims) & {*self.pinned, *batch, after}
        self.leave(reservation.victims)
        assert not set(reservation.keys) & (known | moving)
        assert not set(reservation.refused) & (known | moving)
        assert set(reservation.busy) <= moving | set(reservation.keys)
        decided = [*reservation.keys, *reservation.busy, *reservation.refused]
        assert len(decided) == sum(key not in known for key in batch)
        granted = {key: size_of[key] for key in reservation.keys}
        made = Writing(reservation.victims, granted)
        self.written.append(made)
        return made

    @rule(writing=reservations)
    def delete_victims(self, writing: Writing) -> None:
        self.delete(writing.victims)
        writing.victims = []

    @rule(writing=consumes(reservations), good=st.sets(st.sampled_from(KEYS)))
    def write(self, writing: Writing, good: set[ChunkKey]) -> None:
        self.delete_victims(writing)
        for key, size in writing.keys.items():
            if key in good:
                self.store[key] = size
        self.index.commit([key for key in writing.keys if key in good])
        self.index.abort([key for key in writing.keys if key not in good])
        self.written.remove(writing)

    @rule(writing=reservations)
    def give_up_before_deleting(self, writing: Writing) -> None:
        self.index.abort(list(writing.keys))
        writing.keys = {}

    @rule(size=st.integers(0, 60), at_once=st.booleans())
    def evict(self, size: int, at_once: bool) -> None:
        open_to_it = sum(self.store[key] for key in self.resident - self.pinned)
        victims = self.index.evict(size)
        assert not set(victims) & self.pinned
        assert sum(self.store[key] for key in victims) >= min(size, open_to_it)
        self.leave(victims)
        self.part_with(victims, at_once)

    @rule(batch=batches, force=st.booleans(), at_once=st.booleans())
    def discard(self, batch: list[ChunkKey], force: bool, at_once: bool) -> None:
        expected = self.resident & set(batch)
        if not force:
            expected -= self.pinned
        gone = self.index.discard(batch, force=force)
        assert set(gone) == expected
        self.leave(gone)
        for owned in self.pins.values():
            owned -= expected
        self.part_with(gone, at_once)

    def part_with(self, keys: list[ChunkKey], at_once: bool) -> None:
        if at_once:
            self.delete(keys)
        else:
            self.written.append(Writing(keys, {}))

    @rule(batch=batches)
    def touch(self, batch: list[ChunkKey]) -> None:
        self.index.touch(batch)

    @rule(owner=owners, batch=batches)
    def pin(self, owner: str, batch: list[ChunkKey]) -> None:
        here = self.resident & set(batch)
        assert self.index.pin(owner, batch) == len(here)
        self.pins.setdefault(owner, set()).update(here)

    @rule(owner=owners)
    def unpin(self, owner: str) -> None:
        assert self.index.unpin(owner) == len(self.pins.pop(owner, set()))

    @invariant()
    def the_index_tells_what_the_store_holds(self) -> None:
        assert set(self.index.keys()) == self.resident
        assert len(self.index) == len(self.resident)
        assert self.index.contains(KEYS) == [key in self.resident for key in KEYS]
        assert [self.index.size(key) for key in KEYS] == [
            self.store[key] if key in self.resident else None for key in KEYS
        ]
        assert set(self.policy.victims()) == self.resident

    @invariant()
    def bytes_add_up_and_stay_within_the_budget(self) -> None:
        on_store = sum(self.store.values())
        used = sum(self.store[key] for key in self.resident)
        for writing in self.written:
            going = sum(self.store[key] for key in writing.victims)
            used += max(going, sum(writing.keys.values()))
        assert self.index.used == used
        assert on_store <= used <= self.budget

    @invariant()
    def pins_are_counted_by_owner(self) -> None:
        assert self.index.pinned == {
            owner: len(owned) for owner, owned in self.pins.items() if owned
        }

    def teardown(self) -> None:
        if not hasattr(self, "index"):
            return
        for writing in self.written:
            self.delete(writing.victims)
            self.index.abort(list(writing.keys))
        for owner in list(self.pins):
            self.unpin(owner)
        assert self.index.used == sum(self.store.values())
        self.delete_everything()
        assert self.index.used == 0

    def delete_everything(self) -> None:
        everything = self.index.evict(self.budget + 1)
        self.leave(everything)
        assert not self.resident
        self.delete(everything)


IndexMachine.TestCase.settings = settings(
    max_examples=examples(30), stateful_step_count=30, deadline=None
)
TestAnySequenceOfCalls = IndexMachine.TestCase
