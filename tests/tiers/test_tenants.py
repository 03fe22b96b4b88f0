"""Tenants: one cannot push out, or see, what is another's."""

import random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from depth import examples
from hexkv.adapters.local.disk import DiskStore
from hexkv.contracts.doubles import ManualClock
from hexkv.contracts.doubles.heap_kv import HeapKV
from hexkv.core.policies import POLICIES
from hexkv.core.tiers.index.index import TierIndex
from hexkv.core.tiers.index.tenants import DividedIndex, Tenant
from hexkv.core.tiers.tier import TierPlan
from hexkv.plugins.memory.store import MemoryStore
from hexkv.ports import ChunkKey, Entry, Namespace
from rigging import CHUNK, FRAME, LAYOUT, NAMESPACE, attach, tier

PROMPT = random.Random(4).choices(range(50_000), k=8 * CHUNK)
RED = Namespace("toy", LAYOUT, revision="1", salt="red secret")
BLUE = Namespace("toy", LAYOUT, revision="1", salt="blue secret")
TENANTS = (Tenant("red", "red secret"), Tenant("blue", "blue secret"))


def kv(tokens=PROMPT):
    return HeapKV(LAYOUT, len(tokens)).compute(tokens)


def index(frames):
    return TierIndex(POLICIES["lru"](), frames * FRAME)


def divided(name, store, *, rest, red, blue):
    shares = {"red": index(red), "blue": index(blue)}
    return TierPlan(name, store, DividedIndex(index(rest), shares))


def hit(r, tokens, namespace):
    return r.engine.lookup(tokens, namespace=namespace).hit_tokens // CHUNK


def test_a_tenant_never_pushes_out_another_nor_anybody_else(rig):
    r = rig([divided("memory", MemoryStore(ManualClock()), rest=2, red=3, blue=2)], tenants=TENANTS)
    for namespace in (NAMESPACE, RED, BLUE):
        r.engine.store(PROMPT, kv(), namespace=namespace)
    assert [hit(r, PROMPT, n) for n in (NAMESPACE, RED, BLUE)] == [2, 3, 2]
    for start in range(1, 9):
        other = PROMPT[start:][: 4 * CHUNK]
        r.engine.store(other, kv(other), namespace=BLUE)
    assert [hit(r, PROMPT, n) for n in (NAMESPACE, RED)] == [2, 3]
    assert hit(r, PROMPT, BLUE) == 0
    (memory,) = r.engine.health().tiers
    assert memory.tenants == {"red": 3 * FRAME, "blue": 2 * FRAME}
    assert memory.used_bytes == memory.budget_bytes == 7 * FRAME


def test_a_tenant_sees_nothing_of_another(rig):
    r = rig([divided("memory", MemoryStore(ManualClock()), rest=8, red=8, blue=8)], tenants=TENANTS)
    r.engine.store(PROMPT, kv(), namespace=RED)
    assert [hit(r, PROMPT, n) for n in (NAMESPACE, RED, BLUE)] == [0, 8, 0]
    target = HeapKV(LAYOUT, len(PROMPT))
    assert r.engine.retrieve(PROMPT, target, namespace=BLUE).hit_tokens == 0


def test_quotas_hold_on_disk_and_after_a_restart(rig, tmp_path):
    def start():
        return rig([divided("disk", DiskStore(tmp_path), rest=2, red=3, blue=2)], tenants=TENANTS)

    r = start()
    r.engine.store(PROMPT, kv(), namespace=RED)
    r.engine.store(PROMPT, kv())
    r.engine.close()
    again = start()
    again.engine.flush()
    assert [hit(again, PROMPT, n) for n in (RED, NAMESPACE)] == [3, 2]
    again.engine.store(PROMPT, kv(), namespace=BLUE)
    assert [hit(again, PROMPT, n) for n in (RED, NAMESPACE, BLUE)] == [3, 2, 2]
    frames = [f for f in tmp_path.rglob("[!.]*") if f.is_file() and f.stat().st_size >= FRAME]
    assert len(frames) * FRAME == again.engine.health().tiers[0].used_bytes <= 7 * FRAME


def test_the_pool_takes_room_only_from_what_is_nobodys(rig):
    r = rig(
        [divided("memory", MemoryStore(ManualClock()), rest=4, red=4, blue=4)],
        slots=12,
        tenants=TENANTS,
    )
    r.engine.store(PROMPT, kv(), namespace=RED)
    r.engine.store(PROMPT, kv())
    index = r.tiers["memory"].index
    assert r.pool.reclaim(100 * FRAME)
    assert not r.pool.reclaim(100 * FRAME)
    assert index.used_by()["red"] == 4 * FRAME
    assert hit(r, PROMPT, NAMESPACE) == 0


def test_tiers_without_quotas_are_shared_as_before(rig, tmp_path):
    r = rig([tier("disk", DiskStore(tmp_path), budget=4 * FRAME)], tenants=TENANTS)
    r.engine.store(PROMPT, kv(), namespace=RED)
    r.engine.store(PROMPT, kv(), namespace=BLUE)
    assert [hit(r, PROMPT, n) for n in (RED, BLUE)] == [0, 4]


PREFIXES = {"red": b"r" * 16, "blue": b"b" * 16, "": b"n" * 16}
BUDGETS = {"red": 3, "blue": 2, "": 4}


class Shares(RuleBasedStateMachine):
    """Whatever is reserved, written, evicted or deleted: each share keeps its budget."""

    def __init__(self):
        super().__init__()
        shares = {"red": TierIndex(POLICIES["lru"](), 3), "blue": TierIndex(POLICIES["lru"](), 2)}
        self.index = DividedIndex(TierIndex(POLICIES["lru"](), 4), shares)
        self.held = set()
        self.pinned = set()
        self.assigned = {""}
        self.reserved = []

    def key(self, tenant, number):
        return ChunkKey(PREFIXES[tenant] + number.to_bytes(32, "little"))

    def share(self, tenant):
        """Whose share a tenant's chunks are in: before it is met, in the one that is nobody's."""
        return tenant if tenant in self.assigned else ""

    def go(self, gone):
        self.held -= set(gone)
        self.pinned -= set(gone)
        self.index.deleted(gone)

    @rule(tenant=st.sampled_from(["red", "blue"]))
    def meet(self, tenant):
        if tenant not in self.assigned:
            gone = self.index.assign(PREFIXES[tenant], tenant)
            assert not self.pinned & set(gone)
            self.go(gone)
            self.assigned.add(tenant)

    @rule(
        tenant=st.sampled_from(["red", "blue", ""]),
        numbers=st.sets(st.integers(0, 8)),
        ok=st.booleans(),
        at_once=st.booleans(),
    )
    def write(self, tenant, numbers, ok, at_once):
        keys = [self.key(tenant, n) for n in sorted(numbers)]
        plan = self.index.reserve(keys, [1] * len(keys))
        alike = {PREFIXES[t] for t in PREFIXES if self.share(t) == self.share(tenant)}
        others = {k for k in self.held if k[:16] not in alike}
        assert not (others | self.pinned) & set(plan.victims)
        self.go(plan.victims)
        self.reserved.append(plan)
        if at_once:
            self.finish(ok)

    @precondition(lambda self: self.reserved)
    @rule(ok=st.booleans())
    def finish(self, ok):
        """A write ends, for which room was taken before others came, or its tenant was met."""
        plan = self.reserved.pop(0)
        if ok:
            gone = self.index.commit(plan.keys)
            self.held |= set(plan.keys)
            assert not self.pinned & set(gone)
            self.go(gone)
        else:
            self.index.abort(plan.keys)

    @rule(tenants=st.lists(st.sampled_from(["red", "blue", ""]), max_size=6))
    def delete(self, tenants):
        self.go(self.index.discard([self.key(t, n) for n, t in enumerate(tenants)]))

    @rule(tenant=st.sampled_from(["red", "blue"]), number=st.integers(0, 1))
    def pin(self, tenant, number):
        """No more than any share has room for."""
        key = self.key(tenant, number)
        assert self.index.pin("somebody", [key]) == (key in self.held)
        self.pinned |= {key} & self.held

    @invariant()
    def adds_up(self):
        assert set(self.index.keys()) == self.held
        assert set(self.index.pinned_by("somebody")) == self.pinned
        assert self.index.used == len(self.held) + sum(len(plan.keys) for plan in self.reserved)
        assert len(self.index) == len(self.held)
        assert all(used <= BUDGETS[name] for name, used in self.index.used_by().items())
        assert self.index.contains(sorted(self.held)) == [True] * len(self.held)


Shares.TestCase.settings = settings(
    max_examples=examples(15), stateful_step_count=30, deadline=None
)
TestShares = Shares.TestCase


def test_what_was_restored_becomes_its_tenants_when_the_tenant_is_met():
    shares = {"red": TierIndex(POLICIES["lru"](), 2)}
    index = DividedIndex(TierIndex(POLICIES["lru"](), 10), shares)
    red = [ChunkKey(b"r" * 16 + bytes([n]) * 32) for n in range(4)]
    other = [ChunkKey(b"n" * 16 + bytes([n]) * 32) for n in range(3)]
    assert index.restore([Entry(key, 1, n) for n, key in enumerate([*red, *other])]) == []
    gone = index.assign(b"r" * 16, "red")
    assert len(gone) == 2
    index.deleted(gone)
    assert index.used_by() == {"red": 2}
    assert (index.used, len(index)) == (5, 5)
    assert index.contains(other) == [True] * 3


def test_a_write_begun_before_its_tenant_was_met_keeps_within_the_share():
    index = DividedIndex(TierIndex(POLICIES["lru"](), 4), {"red": TierIndex(POLICIES["lru"](), 3)})
    red = [ChunkKey(b"r" * 16 + bytes([n]) * 32) for n in range(4)]
    early = index.reserve(red[:1], [1])
    assert index.assign(b"r" * 16, "red") == []
    later = index.reserve(red[1:], [1, 1, 1])
    assert index.commit(later.keys) == []
    (gone,) = index.commit(early.keys)
    index.deleted([gone])
    assert gone in red
    assert index.used_by() == {"red": 3}


def test_a_tier_that_joins_later_keeps_the_shares_of_tenants_met_before(rig, tmp_path):
    r = rig([tier("memory", MemoryStore(ManualClock()))], tenants=TENANTS)
    r.engine.store(PROMPT, kv(), namespace=RED)
    attach(r.engine, divided("disk", DiskStore(tmp_path), rest=2, red=3, blue=2))
    r.engine.clear(tiers=["memory"])
    r.engine.store(PROMPT, kv(), namespace=RED)
    assert r.engine.health().tiers[1].tenants == {"red": 3 * FRAME, "blue": 0}
