"""Virtual time: the executor's port on one thread, where every wait lets somebody else go on.

Workers and callers are greenlets. Only one runs at a time, and it gives way only where a
real thread would block: when it waits for a condition, when a store spends time, when a
store hangs. What happens at the same moment happens in a seeded order, so each seed is one
interleaving, and the same one every time.
"""

import heapq
import itertools
import traceback
from collections import deque
from math import inf
from random import Random

from greenlet import GreenletExit, getcurrent, greenlet

from simulation.locks import holds_one


class Stuck(AssertionError):
    """Somebody waits for what will never happen."""


class _Sleep:
    """One greenlet that has given way, until something wakes it."""

    __slots__ = ("awake", "sleeper", "world")

    def __init__(self, world, sleeper):
        self.world = world
        self.sleeper = sleeper
        self.awake = False

    def release(self):
        """What ``Condition.notify`` calls of everybody who waits on it."""
        self.world._at(self.world.now(), self)


class _Lane:
    def __init__(self, workers):
        self.workers = workers
        self.idle = []
        self.steps = deque()
        self.lives = []


class Process:
    """The executor of one of several processes in a world: its lanes are its own."""

    def __init__(self, world):
        self._world = world
        self._opened = {}
        self.wait = world.wait

    def open(self, lane, workers):
        self._opened.setdefault(lane, (self, lane))
        self._world.open(self._opened[lane], workers)

    def run(self, lane, step):
        self._world.run((self, lane), step)

    def close(self, lane):
        self._world.close((self, lane))

    def end(self):
        """Its workers stop where they are, whatever hangs."""
        for lane in list(self._opened):
            self._world.kill((self, lane))


class Call:
    """A caller's work under way in a greenlet of its own."""

    def __init__(self, work, now):
        self.work = work
        self.began = now
        self.ended = None
        self.result = None
        self.error = None

    @property
    def done(self):
        return self.ended is not None


class World:
    """A clock, an executor, and the loop that runs them."""

    def __init__(self, seed, start=1_000.0):
        self._rng = Random(seed)
        self._time = start
        self._hub = getcurrent()
        self._events = []
        self._numbers = itertools.count()
        self._lanes = {}
        self._killed = {}
        """Lanes that were closed, whose workers may still be at something."""

        self._living = {}
        self._held = []
        self.broken = []
        """Waits with a lock in hand, and callers at a worker's task: they hold up others."""

        self._callers = set()

    # The clock.

    def now(self):
        return self._time

    def wall(self):
        return 1_700_000_000.0 + self._time

    # The executor.

    def open(self, lane, workers):
        self._lanes.setdefault(lane, _Lane(workers))

    def run(self, lane, step):
        found = self._lanes.get(lane)
        if found is None:
            return
        found.steps.append(step)
        if found.idle:
            found.idle.pop().release()
        elif found.workers:
            found.workers -= 1
            found.lives.append(self._start(lambda: self._work(found)))

    def wait(self, condition, ready, deadline):
        while not ready():
            if deadline.expired:
                return False
            sleep = _Sleep(self, getcurrent())
            # As a real waiter would: whoever forgets to notify is found out.
            condition._waiters.append(sleep)
            self._at(deadline.at, sleep)
            held = condition._release_save()  # nor does it keep the lock while it sleeps
            self._give_way()
            condition._acquire_restore(held)
            if sleep in condition._waiters:
                condition._waiters.remove(sleep)
        return True

    def close(self, lane):
        found = self._lanes.pop(lane, None)
        if found is not None:
            self._killed[lane] = found

    def kill(self, lane):
        """End the workers of a lane, as when their process dies."""
        found = self._killed.get(lane) or self._lanes.get(lane)
        self._lanes.pop(lane, None)
        for life in found.lives if found else ():
            if life in self._living:
                life.throw(GreenletExit)

    # What stores do instead of sleeping.

    def spend(self, seconds):
        sleep = _Sleep(self, getcurrent())
        self._at(self._time + seconds, sleep)
        self._give_way()

    def work(self, seconds):
        """Likewise, where only a worker may: a caller would wait for as long as a store takes."""
        self._only_workers()
        self.spend(seconds)

    def hold(self, event):
        self._only_workers()
        while not event.is_set():
            self._held.append(_Sleep(self, getcurrent()))
            self._give_way()

    # What a test does.

    def release_held(self):
        """Let whoever hangs look again."""
        held, self._held = self._held, []
        for sleep in held:
            sleep.release()

    def begin(self, work):
        """Start *work* as a caller of its own."""
        call = Call(work, self._time)

        def run():
            try:
                call.result = call.work()
            except Exception as error:  # noqa: BLE001 - the test judges it
                call.error = error
            call.ended = self._time

        self._callers.add(self._start(run))
        return call

    def finish(self, call, within=inf):
        """Run the world until *call* is done, or *within* seconds have passed."""
        limit = self._time + within
        while not call.done:
            if not self._next(limit):
                break
        if not call.done and within == inf:
            raise Stuck("nothing will ever wake the caller")
        return call

    def do(self, work):
        """The result of *work*, done by a caller of its own."""
        call = self.finish(self.begin(work))
        if call.error is not None:
            raise call.error
        return call.result

    def advance(self, seconds):
        """Let time pass, and with it everything that is due."""
        limit = self._time + seconds
        while self._next(limit):
            pass
        self._time = limit

    def settle(self):
        """Run until nothing is due any more but what hangs."""
        while self._next(inf):
            pass

    def end(self):
        """Kill everybody, as when the process dies."""
        self._events.clear()
        self._held.clear()
        self._lanes.clear()
        for life in list(self._living):
            life.throw(GreenletExit)

    def _start(self, work):
        def live():
            try:
                work()
            finally:
                self._living.pop(life, None)
                self._callers.discard(life)

        life = greenlet(live, self._hub)
        self._living[life] = None
        self._at(self._time, _Sleep(self, life))
        return life

    def _work(self, lane):
        while True:
            while lane.steps:
                completion = lane.steps.popleft()()
                if completion is not None:
                    completion()
            lane.idle.append(_Sleep(self, getcurrent()))
            self._give_way()

    def _at(self, moment, sleep):
        if moment < inf:
            number = next(self._numbers)
            heapq.heappush(self._events, (moment, self._rng.random(), number, sleep))

    def _give_way(self):
        if getcurrent() is self._hub:
            raise Stuck("only callers and workers may wait")
        if holds_one():
            self._break("somebody waits with a lock in hand")
        self._hub.switch()

    def _only_workers(self):
        if getcurrent() in self._callers:
            self._break("a caller does what a lane is for")

    def _break(self, what):
        self.broken.append(f"{what}:\n" + "".join(traceback.format_stack(limit=14)))

    def _next(self, limit):
        """Run what is due first, if that is not after *limit*."""
        while self._events:
            moment, _, _, sleep = self._events[0]
            if sleep.awake:
                heapq.heappop(self._events)
                continue
            if moment > limit:
                return False
            heapq.heappop(self._events)
            self._time = max(self._time, moment)
            sleep.awake = True
            sleep.sleeper.switch()
            return True
        return False
