"""Each policy against a model that is too simple to be wrong, and too slow to be used."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice

from hypothesis import given
from hypothesis import strategies as st

from hexkv.contracts.kit.cases import each
from hexkv.core.policies import ARC, FIFO, LFU, LRU, MRU, POLICIES
from hexkv.ports import ChunkKey, Policy

A = ChunkKey(b"A")


@dataclass
class Model:
    """Chunks from worst to best in one list; every call is O(n)."""

    order: list[ChunkKey] = field(default_factory=list)

    def admit(self, keys: Sequence[ChunkKey], after: ChunkKey | None) -> None:
        self.order += reversed(keys)

    def touch(self, keys: Sequence[ChunkKey]) -> None:
        pass

    def drop(self, key: ChunkKey, evicted: bool = False) -> None:
        self.order.remove(key)


class ModelFIFO(Model):
    pass


class ModelLRU(Model):
    def admit(self, keys, after):
        at = self.order.index(after) if after in self.order else len(self.order)
        self.order[at:at] = reversed(keys)

    def touch(self, keys):
        for key in reversed(keys):
            self.order.remove(key)
            self.order.append(key)


class ModelMRU(Model):
    def admit(self, keys, after):
        self.order[:0] = reversed(keys)

    def touch(self, keys):
        for key in keys:
            self.order.remove(key)
            self.order.insert(0, key)


class ModelLFU(ModelLRU):
    """LRU, stably sorted by count."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: dict[ChunkKey, int] = {}

    def admit(self, keys, after):
        # A parent that was used more often stands further up: its child starts at the
        # top of those used once.
        super().admit(keys, after if self.counts.get(after) == 1 else None)
        self.counts.update(dict.fromkeys(keys, 1))
        self._sort()

    def touch(self, keys):
        for key in reversed(keys):
            super().touch([key])
            self.counts[key] += 1
            self._sort()

    def drop(self, key, evicted=False):
        super().drop(key)
        del self.counts[key]

    def _sort(self) -> None:
        self.order.sort(key=self.counts.__getitem__)


class ModelARC(Model):
    """Four lists, oldest first, as in the paper."""

    def __init__(self) -> None:
        self.once: list[ChunkKey] = []
        self.again: list[ChunkKey] = []
        self.once_ghosts: list[ChunkKey] = []
        self.again_ghosts: list[ChunkKey] = []
        self.target = 0.0
        self.most = 0

    @property
    def order(self):
        once, again, victims = list(self.once), list(self.again), []
        while once or again:
            first = once if once and (len(once) > self.target or not again) else again
            victims.append(first.pop(0))
        return victims

    def admit(self, keys, after):
        for key in keys:
            ghosts = len(self.once_ghosts), len(self.again_ghosts)
            into = self.again
            if key in self.once_ghosts:
                self.target = min(self.most, self.target + max(1, ghosts[1] / ghosts[0]))
                self.once_ghosts.remove(key)
            elif key in self.again_ghosts:
                self.target = max(0, self.target - max(1, ghosts[0] / ghosts[1]))
                self.again_ghosts.remove(key)
            else:
                into = self.once
            into.insert(into.index(after) if after in into else len(into), key)
            after = key
        self.most = max(self.most, len(self.once + self.again))

    def touch(self, keys):
        for key in reversed(keys):
            (self.once if key in self.once else self.again).remove(key)
            self.again.append(key)

    def drop(self, key, evicted=False):
        at, ghosts = (
            (self.once, self.once_ghosts) if key in self.once else (self.again, self.again_ghosts)
        )
        at.remove(key)
        if evicted:
            ghosts.append(key)
            del self.once_ghosts[: max(0, len(self.once + self.once_ghosts) - self.most)]
            over = max(0, len(self.once_ghosts + self.again_ghosts) - self.most)
            from_once = max(0, over - len(self.again_ghosts))
            del self.again_ghosts[: over - from_once]
            del self.once_ghosts[:from_once]


PAIRS = [
    (LRU, ModelLRU),
    (LFU, ModelLFU),
    (FIFO, ModelFIFO),
    (MRU, ModelMRU),
    (ARC, ModelARC),
]

keys = st.integers(0, 11).map(lambda n: ChunkKey(b"%02d" % n))
batches = st.lists(keys, min_size=1, max_size=5, unique=True)
calls = st.one_of(
    st.tuples(st.just("admit"), batches, st.none() | keys),
    st.tuples(st.just("touch"), batches, st.none()),
    st.tuples(st.just("drop"), batches, st.none()),
    st.tuples(st.just("evict"), st.just([]), st.none()),
)


@each(("policy_class", "model_class"), PAIRS)
@given(trace=st.lists(calls, max_size=40))
def test_a_policy_orders_victims_as_its_model_does(policy_class, model_class, trace):
    policy: Policy = policy_class()
    model: Model = model_class()
    for what, batch, after in trace:
        here = [key for key in batch if key in model.order]
        if what == "admit":
            new = [key for key in batch if key not in model.order]
            policy.admit(new, after)
            model.admit(new, after)
        elif what == "touch":
            policy.touch(here)
            model.touch(here)
        elif what == "drop":
            for key in here:
                policy.drop(key, evicted=False)
                model.drop(key)
        elif model.order:
            victim = next(policy.victims())
            policy.drop(victim, evicted=True)
            model.drop(victim, evicted=True)
        assert list(policy.victims()) == model.order


prompts = st.lists(st.integers(0, 1), min_size=1, max_size=5).map(
    lambda path: [ChunkKey(bytes(path[: end + 1])) for end in range(len(path))]
)


@each("policy_class", [LRU, LFU])
@given(
    requests=st.lists(
        st.tuples(prompts, st.integers(1, 4), st.sampled_from(["before", "after"])), max_size=20
    ),
    budget=st.integers(1, 12),
)
def test_a_parent_outlives_its_children(policy_class, requests, budget):
    """Keys are paths in a tree: a parent's key is its child's without the last byte."""
    policy = policy_class()
    resident: set[ChunkKey] = set()
    for prompt, batch, touched in requests:
        here = [key for key in prompt if key in resident]
        new = prompt[len(here) :]
        assert here == prompt[: len(here)], "a gap in a prompt: a parent went first"
        if touched == "before":
            policy.touch(here)
        for start in range(0, len(new), batch):
            part = new[start : start + batch]
            before = len(here) + start
            policy.admit(part, prompt[before - 1] if before else None)
        if touched == "after":
            policy.touch(here)
        resident.update(new)
        victims = list(policy.victims())
        for at, key in enumerate(victims):
            assert ChunkKey(key[:-1]) not in victims[:at]
        for victim in victims[: max(0, len(victims) - budget)]:
            policy.drop(victim, evicted=True)
            resident.remove(victim)


def test_every_policy_has_the_name_a_configuration_uses():
    assert {name: type(build()) for name, build in POLICIES.items()} == {
        "lru": LRU,
        "lfu": LFU,
        "fifo": FIFO,
        "mru": MRU,
        "arc": ARC,
    }


def test_building_a_policy_twice_gives_two():
    for build in POLICIES.values():
        one, other = build(), build()
        one.admit([A], None)
        assert list(other.victims()) == []


def test_what_is_admitted_again_is_a_victim_once():
    """Against the port, by a caller that was not told to drop it: it would go round for ever."""
    policy = LRU()
    policy.admit(["a", "b", "c"], None)
    policy.admit(["b", "d"], "b")
    assert list(islice(policy.victims(), 9)) == ["c", "a", "d", "b"]
