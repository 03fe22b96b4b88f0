"""The whole stack under seeded faults in virtual time, and that the simulation sees what breaks it.

``make simulate`` plays many more seeds; ``make simulate SEED=7`` plays one again.
"""

from collections import defaultdict
from threading import Condition

import pytest

from depth import thorough
from hexkv.adapters.node.server.granted import Granted
from hexkv.contracts.faults import Fault, Seeded
from hexkv.core.frames.opening import Opening
from hexkv.core.io.breaker import Breaker
from hexkv.core.io.scheduler import Lane
from hexkv.core.keys.hashing import NamespaceHasher
from hexkv.core.keys.prompts import ChunkHasher
from hexkv.core.memory.pool import BlockLease, BlockPool
from hexkv.core.memory.slots import Slots
from hexkv.core.tiers.evicting import background_deadline
from hexkv.core.tiers.index.index import TierIndex
from hexkv.core.tiers.index.tenants import DividedIndex
from hexkv.core.tiers.read.pending_reads import Fetch
from hexkv.core.tiers.stores.calls import StoreCalls
from hexkv.core.tiers.tier import Tier
from hexkv.core.tiers.write.writing import Writer
from hexkv.peers.serving.inheritance import Inheritance
from hexkv.ports import CorruptFrame, CounterName, Stored
from simulation.play import Play, Violation
from simulation.prompts import CHUNK, PROMPTS, Window, keys
from simulation.requests import check_report
from simulation.seeds import fails, run
from simulation.stage import Tallies

SEEDS = 100
STEPS = 200


@pytest.mark.parametrize("first", [0, *thorough(*range(10, SEEDS, 10))])
def test_whatever_befalls_the_tiers_every_promise_holds(first):
    for seed in range(first, first + 10):
        wrong = fails(seed, STEPS)
        assert wrong is None, f"{wrong}\nagain: make simulate SEED={seed} STEPS={STEPS}"


@pytest.mark.parametrize("first", [0, *thorough(*range(5, SEEDS, 5))])
def test_clients_die_and_nodes_change_hands_and_every_promise_holds(first):
    for seed in range(first, first + 5):
        wrong = fails(seed, STEPS, kind="node")
        assert wrong is None, f"{wrong}\nagain: make simulate SEED={seed} STEPS={STEPS}"


def test_a_seed_plays_the_same_every_time():
    traces = []
    for _ in range(2):
        play = Play(5)
        run(play, STEPS)
        traces.append((play.trace, play.stage.telemetry.counts))
    assert traces[0] == traces[1]


def test_a_report_is_held_to_all_but_what_a_store_lost_while_it_lied():
    play = Play(0)
    stage, place = play.stage, play.stage.settings.places[0]

    def check_stored(tokens):
        window = Window(tokens, 0, play.pause)
        report = stage.world.do(lambda: stage.engine.store(tokens, window))
        assert report.tiers[place.name] == 3 * CHUNK
        place.store.plan = Seeded(0)
        place.medium.frames.clear()
        check_report(play, stage, report, keys(tokens, 0))

    one, other = [tokens for tokens in PROMPTS if len(tokens) // CHUNK == 3][:2]
    place.store.plan = Seeded(0, {Fault.LOST: 1.0})
    check_stored(one)
    with pytest.raises(Violation):
        check_stored(other)


def unverified(patch):
    """Frames are believed to be whole."""
    real = Opening.end

    def believe(self, key):
        try:
            return real(self, key)
        except CorruptFrame:
            return self._codec.page(self._frame).header

    patch.setattr(Opening, "end", believe)


def under_any_key(patch):
    """A whole frame is taken for whichever chunk was asked for."""
    real = Opening.end
    patch.setattr(Opening, "end", lambda self, key: real(self, None))


def unlimited(patch):
    """The index makes no room."""
    real = TierIndex.reserve

    def reserve(self, keys, sizes, after=None):
        budget, self.budget = self.budget, None
        try:
            return real(self, keys, sizes, after)
        finally:
            self.budget = budget

    patch.setattr(TierIndex, "reserve", reserve)


def kept_leases(patch):
    """A read that has ended keeps its blocks."""
    patch.setattr(Fetch, "end", lambda self: None)
    patch.setattr(BlockLease, "__del__", lambda self: None)


def no_breaker(patch):
    """A tier that does not answer is asked again and again."""
    patch.setattr(Breaker, "failed", lambda self, *, at_once=False: False)


def stuck_breaker(patch):
    """A breaker that opened stays so."""
    patch.setattr(Breaker, "succeeded", lambda self: None)


def early_hits(patch):
    """A chunk counts as arrived before it was loaded."""
    whole = defaultdict(lambda: None)  # of each chunk, why it is not
    patch.setattr(Fetch, "why", property(lambda self: whole, lambda self, why: None), raising=False)


def early_release(patch):
    """Blocks go back to the pool at the deadline, whatever still reads into them."""
    real = Fetch.leave

    def leave(self):
        real(self)
        if not self._ended:
            for block in self._blocks:
                block.release()
            self._blocks = []

    patch.setattr(Fetch, "leave", leave)


def unpinned(patch):
    """Pins are counted, and do not keep anything."""
    patch.setattr(TierIndex, "_evictable", lambda self, spared: self._policy.victims())


def forgotten_deletes(patch):
    """What a store failed to delete is taken for gone."""
    real = Tier.delete

    def delete(self, keys, deadline):
        real(self, keys, deadline)
        if self.index.decides:
            self.index.deleted(keys)
        self.deleting.undeleted.clear()
        return True

    patch.setattr(Tier, "delete", delete)


def deleting_callers(patch):
    """What a tenant has above its quota is deleted by its first caller."""
    patch.setattr(
        Writer,
        "evict_soon",
        lambda self, tier, victims: self.evict(tier, victims, background_deadline(self._runtime)),
    )


def naming_under_a_lock(patch):
    """Whose a namespace is, and what goes because of it, is settled under the lock of all names."""
    deleting_callers(patch)
    real = ChunkHasher.keyer

    def keyer(self, namespace):
        with self._lock:
            if namespace not in self._keyers:
                self._met(
                    namespace, NamespaceHasher(namespace, self._algorithm, self._chunker).prefix
                )
        return real(self, namespace)

    patch.setattr(ChunkHasher, "keyer", keyer)


def uncounted_victims(patch):
    """What waits to be deleted takes no room."""
    real = Tier.put_off

    def put_off(self, keys):
        real(self, keys)
        self.index.deleted(keys)

    patch.setattr(Tier, "put_off", put_off)


def unlimited_shares(patch):
    """A share has its budget whatever the others still hold of the tier."""
    patch.setattr(DividedIndex, "_room", lambda self, index, size, victims: None)


def untrimmed_shares(patch):
    """A tenant keeps all that an earlier life has left, whatever the quota is now."""
    real = DividedIndex.assign

    def assign(self, prefix, tenant):
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(TierIndex, "trim", lambda self, limit: [])
            return real(self, prefix, tenant)

    patch.setattr(DividedIndex, "assign", assign)


def wishful_writes(patch):
    """A write counts as stored whatever the store said."""
    real = StoreCalls.write
    patch.setattr(
        StoreCalls,
        "write",
        lambda self, items, deadline: [
            Stored(len(item.frame))
            for item, _ in zip(items, real(self, items, deadline), strict=True)
        ],
    )


def unnotified(patch):
    """Nobody is told that a task has ended."""
    patch.setattr(Condition, "notify_all", lambda self: None)


def patient(patch):
    """A caller waits for a task until it ends."""

    def wait(self, ticket, deadline):
        far = type(deadline)(deadline.clock, deadline.clock.now() + 10_000)
        with self._lock:
            return self._await(ticket, far)

    patch.setattr(Lane, "wait", wait)


def impatient(patch):
    """Nobody waits for room in a queue."""
    real = Lane.admit

    def admit(self, priority, sizes, deadline, *, final=True):
        return real(self, priority, sizes, type(deadline)(deadline.clock, 0.0), final=final)

    patch.setattr(Lane, "admit", admit)


def miscounted(patch):
    """Hits are counted once too often."""
    real = Tallies.count

    def count(self, counter, amount, *, tier="", reason=""):
        real(self, counter, amount + (counter is CounterName.HITS), tier=tier, reason=reason)

    patch.setattr(Tallies, "count", count)


@pytest.mark.parametrize(
    "plant",
    [
        unverified,
        kept_leases,
        *thorough(
            under_any_key,
            unlimited,
            no_breaker,
            stuck_breaker,
            early_hits,
            early_release,
            unpinned,
            forgotten_deletes,
            deleting_callers,
            naming_under_a_lock,
            uncounted_victims,
            unlimited_shares,
            untrimmed_shares,
            wishful_writes,
            unnotified,
            patient,
            impatient,
            miscounted,
        ),
    ],
    ids=lambda plant: plant.__name__,
)
def test_a_planted_bug_is_found_within_a_few_seeds(plant, monkeypatch):
    plant(monkeypatch)
    assert any(fails(seed, STEPS) for seed in range(200)), plant.__doc__


def unfreed(patch):
    """What a client leased that is gone stays leased."""
    patch.setattr(Granted, "close", lambda self: None)


def twice_free(patch):
    """What another process had leased is free for all."""
    patch.setattr(Slots, "derive", lambda self, blocks: None)


def still_writing(patch):
    """A node that hands its memory over goes on to write into what comes free of it."""
    real = BlockPool.freeze

    def freeze(self):
        found = real(self)
        self._ledger.poison = True
        for owner, held in list(self._ledger.held.items()):
            self._ledger._end([(owner, token) for token in list(held)])
        return found

    patch.setattr(BlockPool, "freeze", freeze)


def forgets_clients(patch):
    """The successor does not know what clients lease, and lends it again."""
    patch.setattr(Granted, "restore", lambda self, rows: [row[2].release() for row in rows])


def unpinned_by_heirs(patch):
    """The successor does not take pins over."""
    patch.setattr(Inheritance, "pin", lambda self, pins: None)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "plant",
    [unfreed, twice_free, still_writing, forgets_clients, unpinned_by_heirs],
    ids=lambda plant: plant.__name__,
)
def test_a_planted_bug_of_a_node_is_found_within_a_few_seeds(plant, monkeypatch):
    plant(monkeypatch)
    assert any(fails(seed, STEPS, kind="node") for seed in range(200)), plant.__doc__
