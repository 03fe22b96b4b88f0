"""One seed's play: its engine, its callers, and what must hold after each of their steps."""

from random import Random

from hexkv.contracts.faults import Seeded
from simulation.pins import Pins
from simulation.prompts import FRAME, PROMPTS
from simulation.stage import Settings, Stage

KEPT = "memory store"
"""In whose name the memory tier leases."""

SLACK = 0.5
"""Seconds that device copies may take beyond a call's deadline."""

CALLERS = 3
"""Who have no answer yet while others ask."""


class Violation(AssertionError):
    """Something that must never happen has happened."""


class Play:
    """A deterministic sequence of steps for one seed."""

    def __init__(self, seed):
        self.trace = []
        self.rng = rng = Random(seed)
        self.stage = Stage(seed, Settings.drawn(rng))
        self.stage.evicted = lambda tier, key, evicted: self.pins.left(tier, key, evicted)
        self.pins = Pins(lambda: self.stage.world.now())
        self.troubled = {}
        self.going = []
        self._gentle = rng.random() < 0.3  # copies take no time: fewer interleavings, faster

    def note(self, text):
        self.trace.append(f"{self.stage.world.now():10.3f} {text}")

    def prompt(self):
        """A prompt of somebody: tokens and tenant."""
        (tenant,) = self.rng.choices((0, 1, 2), (82, 8, 10))
        return self.rng.choice(PROMPTS), tenant

    def pause(self):
        """What a device copy takes."""
        if not self._gentle:
            self.stage.world.spend(self.rng.choice((0.0, 0.0, 0.001)))

    def call(self, name, limit, work, *, alone=False):
        """Have a caller of its own do *work*; now and then go on before it has an answer."""
        self.note(name)
        world = self.stage.world
        call = world.begin(work)
        if not alone and len(self.going) < CALLERS and self.rng.random() < 0.25:
            self.going.append((name, limit, call))
            world.advance(self.rng.random() * 0.02)
            return None
        world.finish(call, limit + SLACK)
        self.judge(name, limit, call)
        return call

    def judge(self, name, limit, call):
        """A call must have ended in time, and without an exception."""
        if not call.done:
            raise Violation(f"{name} did not end within {limit} s")
        if call.error is not None:
            raise call.error
        took = call.ended - call.began
        if took > limit + SLACK:
            raise Violation(f"{name} took {took:.3f} s, more than {limit} s")

    def await_calls(self):
        """Let every caller finish."""
        calls, self.going = self.going, []
        world = self.stage.world
        for name, limit, call in calls:
            world.finish(call, max(0.0, call.began + limit + SLACK - world.now()))
            self.judge(name, limit, call)

    def check(self):
        """What must hold after every step."""
        stage = self.stage
        now = stage.world.now()
        going, self.going = self.going, []
        for name, limit, call in going:
            if call.done or now > call.began + limit + SLACK:
                self.judge(name, limit, call)
            else:
                self.going.append((name, limit, call))
        if self.pins.broken:
            raise Violation(self.pins.broken[0])
        if stage.world.broken:
            raise Violation(stage.world.broken[0])
        for place in stage.settings.places:
            if place.indexed and place.medium.most > place.budget:
                raise Violation(
                    f"{place.name} held {place.medium.most // FRAME} frames, "
                    f"its budget is {place.budget // FRAME}"
                )
        for tier in stage.tiers:
            for lane in tier.lanes:
                most = tier.rules.lane.queue_bytes
                sizes = lane.moving()
                if sum(sizes) > most and len(sizes) > 1:
                    raise Violation(f"{lane.name} queues {sizes} of {most} bytes")
        if not self.going and stage.resting:
            self.check_rest()

    def check_rest(self):
        """What must hold while nothing is under way."""
        stage = self.stage
        if stage.telemetry.unbalanced():
            raise Violation(f"hits and misses are not lookups: {stage.telemetry.counts}")
        for place in stage.settings.places:
            place.check_quota()
        health = stage.engine.health()
        if health.state != "open":
            return
        leases = dict(health.leases)
        for owner, count in self.leased().items():
            if leases.pop(owner, 0) != count:
                raise Violation(f"{owner} has {count} leases: {health.leases}")
        held = len(stage.tiers[0].index)
        if leases.pop(KEPT, 0) != held or (leases and not health.prefetches):
            raise Violation(f"leases at rest: {health.leases}; memory keeps {held}")
        expected = self.pins.count()
        if any(health.pins.get(owner, 0) < count for owner, count in expected.items()):
            raise Violation(f"pins are {dict(health.pins)}, not {expected}")
        if any(owner.startswith("call-") for owner in health.pins):
            raise Violation(f"pins of calls that are over: {health.pins}")

    def leased(self):
        """Leases beside those of calls and tiers, by owner."""
        return {}

    def leave_room(self, blocks):
        """Who leases beside calls and tiers leaves them so many blocks of the pool."""

    def leave(self):
        """Who leases something goes, before the engine is closed."""

    def well(self, place):
        """Nothing is wrong with a place any more."""
        self.troubled.pop(place.name, None)
        place.store.plan = Seeded(self.rng.getrandbits(32), seconds=place.seconds)
        place.store.full = False
        place.store.restart()
        place.store.release()
        self.stage.world.release_held()

    def reset(self):
        """What a new engine knows nothing of."""
        self.troubled.clear()
        self.pins = Pins(lambda: self.stage.world.now())
