"""What tests of the whole stack share: a small layout, prompts, and engines over real stores."""

import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from threading import Event

from configured import settle
from hexkv.contracts.doubles import ManualClock, RecordingEvents, RecordingTelemetry
from hexkv.core.engine.engine import CacheEngine, Deadlines
from hexkv.core.frames.codec import CRC32, FrameCodec
from hexkv.core.keys.chunking import PrefixChunker
from hexkv.core.memory.pool import BlockPool
from hexkv.core.policies import POLICIES
from hexkv.core.requests.pipeline import Pipeline
from hexkv.core.requests.prefetch import PrefetchRules
from hexkv.core.tiers.cache import TierStack
from hexkv.core.tiers.index.index import TierIndex
from hexkv.core.tiers.local import LocalChunks
from hexkv.core.tiers.rules import TierRules
from hexkv.core.tiers.runtime import TierRuntime
from hexkv.core.tiers.stores.bandwidth import ComputeRate
from hexkv.core.tiers.tier import TierPlan
from hexkv.operate.opening import administer
from hexkv.plugins.clock import SystemClock
from hexkv.plugins.threads import Threads
from hexkv.ports import DType, KVLayout, Namespace, Selection, frame_bytes

CHUNK = 16
LAYOUT = KVLayout.attention(DType.FLOAT16, layers=3, heads=2, key_width=8, value_width=4)
FRAME = frame_bytes(LAYOUT.chunk_bytes(CHUNK))
MEMORY = "memory store"
"""In whose name the memory tier leases."""
NAMESPACE = Namespace("toy", LAYOUT, revision="1")
ALL = Selection(everything=True)
PATIENCE = 60.0
"""Seconds after which what a worker does counts as hanging."""


def tier(name, store, budget=1 << 30, policy="lru", **rules):
    """What a tier over *store* is to be made of."""
    return TierPlan(name, store, TierIndex(POLICIES[policy](), budget), TierRules(**rules))


def chosen(engine, tokens, namespace=None):
    """A selection of the chunks of a prompt; of all chunks for None."""
    if tokens is None:
        return ALL
    return Selection(keys=tuple(engine.chunk_keys(tokens, namespace=namespace)))


def attach(engine, plan, position=None):
    """Add the tier of *plan* while the engine runs."""
    engine.admin.open_tier = lambda given: given["plan"]
    engine.admin.attach({"plan": plan}, position)


class ByTheClock(Threads):
    """Threads whose callers wait by the clock of the test, which moves only when it is told to.

    By real time a machine that stands still for a second would let deadlines pass.
    """

    def wait(self, condition, ready, deadline):
        end = time.monotonic() + PATIENCE
        while not ready():
            if deadline.expired or time.monotonic() > end:
                return False
            condition.wait(0.01)  # nobody notifies when the clock moves
        return True


class Heap:
    """A region of exactly so many bytes."""

    address = 0

    def __init__(self, size):
        self.buffer = memoryview(bytearray(size))

    def close(self):
        self.buffer = memoryview(b"")


@dataclass
class Rig:
    """An engine, and what its tests look into."""

    engine: CacheEngine
    pool: BlockPool
    telemetry: RecordingTelemetry
    events: RecordingEvents
    clock: ManualClock
    tiers: dict = field(default_factory=dict)

    def at_rest(self):
        """Whether nothing is leased or pinned but what the memory tier keeps."""
        settle(self.engine)
        health = self.engine.health()
        return all(owner.endswith(" store") for owner in health.leases) and not health.pins

    def given_back(self):
        """Whether nothing is leased, once reads have ended that nobody waits for any more."""
        end, pause = time.monotonic() + PATIENCE, Event()
        while self.pool.ledger() and time.monotonic() < end:
            pause.wait(0.001)
        return self.pool.ledger() == {}


@contextmanager
def rigging():
    """Builds engines over the given tiers; closes them and checks that nothing leaked."""
    with ExitStack() as opened:

        def build(  # noqa: PLR0913
            tiers,
            *,
            slots=64,
            chunker=None,
            namespace=NAMESPACE,
            clock=None,
            serdes=None,
            frame=FRAME,
            compute_rate=None,
            telemetry=None,
            deadlines=Deadlines(),  # noqa: B008 - frozen
            prefetch=PrefetchRules(),  # noqa: B008 - frozen
            **options,
        ):
            clock = clock or ManualClock()
            threads = Threads() if isinstance(clock, SystemClock) else ByTheClock()
            pool = BlockPool(Heap(slots * frame), frame, poison=True, executor=threads)
            telemetry, events = telemetry or RecordingTelemetry(), RecordingEvents()
            codec = FrameCodec(CRC32)
            runtime = TierRuntime(
                pool=pool,
                codec=codec,
                clock=clock,
                executor=threads,
                telemetry=telemetry,
                events=(events,),
                serdes=serdes or {},
                computing=ComputeRate(compute_rate),
            )
            stack = TierStack(tiers, runtime)
            chunks = LocalChunks(stack, patience=deadlines.lookup)
            requests = Pipeline(chunks, runtime, prefetch)
            engine = CacheEngine(
                namespace,
                requests,
                chunker or PrefixChunker(CHUNK),
                deadlines=deadlines,
                administer=partial(administer, None, stack, deadlines, options.get("tenants", ())),
                **options,
            )
            made = {tier.name: tier for tier in stack.tiers}
            rig = Rig(engine, pool, telemetry, events, clock, made)

            def end():
                engine.close()
                assert rig.given_back(), pool.ledger()

            opened.callback(end)
            return rig

        yield build
