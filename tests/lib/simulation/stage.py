"""One engine over media that outlive it: built anew after every crash, from one seed's settings."""

from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from random import Random

from hexkv.contracts.faults import Seeded
from hexkv.core.engine.engine import CacheEngine, Deadlines
from hexkv.core.frames.codec import CRC32, FrameCodec
from hexkv.core.io.rules import LaneRules
from hexkv.core.keys.chunking import PrefixChunker
from hexkv.core.memory.pipelining import Pipelining
from hexkv.core.memory.pool import BlockPool
from hexkv.core.policies import POLICIES
from hexkv.core.requests.pipeline import Pipeline
from hexkv.core.requests.prefetch import PrefetchRules
from hexkv.core.tiers.cache import TierStack
from hexkv.core.tiers.index.index import TierIndex
from hexkv.core.tiers.index.indexes import Unindexed
from hexkv.core.tiers.index.tenants import DividedIndex, Tenant
from hexkv.core.tiers.local import LocalChunks
from hexkv.core.tiers.rules import TierRules, Writes
from hexkv.core.tiers.runtime import TierRuntime
from hexkv.core.tiers.stores.bandwidth import ComputeRate
from hexkv.core.tiers.tier import TierPlan
from hexkv.operate.opening import administer
from hexkv.plugins.memory.store import MemoryStore
from hexkv.ports import CounterName
from rigging import attach
from simulation.locks import OfGreenlets
from simulation.medium import ListingStore, LossyStore, Medium, MediumStore
from simulation.prompts import CHUNK, FRAME, NAMESPACES, SALT
from simulation.world import Process, World

MEMORY = "memory"
LEAST = 6
"""Frames that a place holds at least of what is no tenant's."""

DEADLINES = Deadlines()
_CODEC = FrameCodec(CRC32)


class Heap:
    """The pool's region."""

    address = 0

    def __init__(self, size):
        self.buffer = memoryview(bytearray(size))

    def close(self):
        self.buffer = memoryview(b"")


class Tallies:
    """Telemetry that only counts."""

    def __init__(self):
        self.counts = Counter()

    def count(self, counter, amount, *, tier="", reason=""):
        self.counts[counter] += amount

    def observe(self, histogram, seconds, *, tier=""):
        pass

    def unbalanced(self):
        counts = self.counts
        return counts[CounterName.LOOKUPS] - counts[CounterName.HITS] - counts[CounterName.MISSES]


class Witness:
    """A policy that tells what is on its tier, and what was evicted."""

    def __init__(self, policy, tell, here):
        self.here = here
        self._policy = policy
        self._tell = tell
        self.touch = policy.touch
        self.victims = policy.victims

    def admit(self, keys, after):
        self.here.update(keys)
        self._policy.admit(keys, after)

    def drop(self, key, *, evicted):
        self.here.discard(key)
        self._policy.drop(key, evicted=evicted)
        self._tell(key, evicted)


class Noting(TierRuntime):
    """Its lanes tell of each task that moves bytes how many, until it has ended."""

    __slots__ = ()

    def lane(self, name, rules, notices):
        lane = super().lane(name, rules, notices)
        submit, tasks = lane.submit, []

        def noted(priority, size, work, deadline=None, room=None):
            ticket = submit(priority, size, work, deadline, room)
            if size:
                tasks.append((ticket, size))
            return ticket

        def moving():
            tasks[:] = [task for task in tasks if not task[0].done]
            return [size for _, size in tasks]

        lane.submit, lane.moving = noted, moving
        return lane


@dataclass
class Place:
    """A tier with I/O, as this seed has it in every life of the engine."""

    name: str
    medium: Medium
    indexed: bool
    policy: str
    budget: int
    rules: TierRules
    seconds: tuple[float, float]
    """Least and greatest duration of a call when nothing is wrong."""

    divided: bool = False
    """Whether a tenant has a quota of it, another one in every life."""

    quota: int = 0
    store: LossyStore | None = None
    bare: MediumStore | None = None
    index: TierIndex | DividedIndex | None = None
    attached: bool = True

    def redraw(self, rng):
        """What a new configuration gives it, also less than an earlier one has filled."""
        self.medium.most = 0
        if self.indexed:
            self.budget = rng.randrange(LEAST, 30) * FRAME
            # The rest is enough for what must not be lost.
            self.quota = rng.randrange(0, self.budget // FRAME - LEAST + 1) * FRAME

    def check_quota(self):
        """At rest a tenant has no more than its quota, but for what could not be deleted."""
        if not isinstance(self.index, DividedIndex):
            return
        (share,) = self.index._shares.values()
        if share.staying > self.quota:
            raise AssertionError(f"{self.name} keeps {share.staying} bytes of {self.quota}")


@dataclass
class Settings:
    """What a seed decides once."""

    slots: int
    memory_frames: int
    workers: int
    promotes: bool
    places: list = field(default_factory=list)
    compute_rate: float | None = None
    """Tokens per second that a model computes: more than some of the places bring."""

    redraws: bool = False
    """Whether each life has budgets and quotas of its own."""

    @classmethod
    def drawn(cls, rng):
        settings = cls(
            slots=rng.randrange(16, 33),
            memory_frames=rng.randrange(2, 12),
            workers=rng.randrange(1, 4),
            promotes=rng.random() < 0.8,
            redraws=True,
        )
        disk = settings._place("disk", rng, indexed=True, seconds=(0.0005, 0.01))
        remote = settings._place("remote", rng, indexed=rng.random() < 0.3, seconds=(0.001, 0.2))
        settings.places = rng.choice([[disk], [disk, remote], [disk, remote], [remote]])
        settings.compute_rate = rng.choice((None, None, 30.0, 1000.0))
        return settings

    def _place(self, name, rng, *, indexed, seconds):
        budget = rng.randrange(6, 30) * FRAME
        writes = Writes.EVICTED if rng.random() < 0.15 else Writes.ALL
        # All lanes together leave half of the pool: what hangs there must not hold up the others.
        lane = LaneRules(self.workers, queue_bytes=self.slots // 8 * FRAME)
        rules = TierRules(writes, True, self.promotes, rng.randrange(3), lane=lane)
        capacity = None if indexed else budget
        policy = rng.choice(sorted(POLICIES)) if indexed else ""
        divided = indexed and rng.random() < 0.6
        return Place(name, Medium(capacity), indexed, policy, budget, rules, seconds, divided)


class Stage:
    """The engine of the moment, and everything that a test may do to what is around it."""

    def __init__(self, seed, settings):
        self.settings = settings
        self.world = World(seed)
        self.evicted = lambda tier, key, evicted: None
        """Told of each key that a tier lets go of."""

        self.lives = 0
        self._rng = Random(seed)
        self.witnesses = {}
        self.start()

    def start(self, heap=None, process=None):
        """A new engine over what the media hold, and over the memory of another one."""
        settings = self.settings
        self.lives += 1
        for place in settings.places if settings.redraws else ():
            place.redraw(self._rng)
        self.telemetry = Tallies()
        self.heap = heap or Heap(settings.slots * FRAME)
        self.process = process or Process(self.world)
        self.pool = BlockPool(self.heap, FRAME, poison=True, executor=self.process)
        runtime = Noting(
            pool=self.pool,
            codec=_CODEC,
            clock=self.world,
            executor=self.process,
            telemetry=self.telemetry,
            computing=ComputeRate(settings.compute_rate),
        )
        self.memory = MemoryStore(self.world)
        most = Pipelining.of(self.pool).keepable(self.pool)
        budget = min(settings.memory_frames * FRAME, most)
        memory = TierPlan(
            MEMORY,
            self.memory,
            TierIndex(self._witness(MEMORY, "lru", set()), budget),
            TierRules(promotes=settings.promotes),
        )
        self.stack = TierStack([memory, *map(self.plan, settings.places)], runtime)
        self.tiers = list(self.stack.tiers)
        tenants = [Tenant("a", SALT)]
        self.engine = CacheEngine(
            NAMESPACES[0],
            Pipeline(
                LocalChunks(self.stack, patience=DEADLINES.lookup),
                runtime,
                PrefetchRules(seconds=20.0),
            ),
            PrefixChunker(CHUNK),
            deadlines=DEADLINES,
            tenants=tenants,
            administer=partial(administer, None, self.stack, DEADLINES, tenants),
        )
        self.engine._door._callers = OfGreenlets()
        self.engine._calls._dropped.detach()  # dropped without close() as by a process that dies

    def plan(self, place):
        """Of a new tier on a place's medium."""
        bare = (ListingStore if place.indexed else MediumStore)(place.medium, self.world)
        plan = Seeded(self._rng.getrandbits(32), seconds=place.seconds)
        place.bare = bare
        place.store = LossyStore(bare, plan, spend=self.world.work, hold=self.world.hold)
        place.attached = True
        here = set()

        def index(budget):
            return TierIndex(self._witness(place.name, place.policy, here), budget)

        place.index = Unindexed()
        if place.divided:
            rest = index(place.budget - place.quota)
            place.index = DividedIndex(rest, {"a": index(place.quota)})
        elif place.indexed:
            place.index = index(place.budget)
        return TierPlan(place.name, place.store, place.index, place.rules)

    def attach(self, plan):
        """Add a tier to the engine that runs."""
        attach(self.engine, plan)
        self.tiers.extend(tier for tier in self.stack.tiers if tier not in self.tiers)

    @property
    def resting(self):
        """Whether no tier of this life, detached ones included, has any I/O under way."""
        lanes = [lane for tier in self.tiers for lane in tier.lanes]
        return not any(lane.pending for lane in lanes)

    def crash(self):
        """The process dies at this moment, and another one starts."""
        for place in self.settings.places:
            place.bare.dead = True
        now = self.world.now()
        self.world.end()
        self.world = World(self._rng.getrandbits(32), now)
        self.start()

    def _witness(self, tier, policy, here):
        def tell(key, evicted):
            self.evicted(tier, key, evicted)

        witness = Witness(POLICIES[policy](), tell, here)
        self.witnesses[tier] = witness
        return witness
