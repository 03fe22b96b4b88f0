"""Who waits for room in a queue or for a block: first come, first served, the large ones too."""

from logging import getLogger

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hexkv.core.io.breaker import BreakerRules
from hexkv.core.io.rules import LaneRules, Priority, Refused
from hexkv.core.io.scheduler import Lane
from hexkv.core.memory.pool import BlockPool
from hexkv.core.notices import Notices
from hexkv.ports import PAGE, Deadline, PoolExhausted
from simulation.stage import Heap, Tallies
from simulation.world import World

PARTS = 8
CALLERS = st.lists(
    st.tuples(st.integers(1, PARTS + 2), st.floats(0.01, 2.0), st.sampled_from((1, 2))),
    min_size=2,
    max_size=20,
)
"""What each asks for, for how long it has that then, and its priority. They come one by one."""


def lane_of(world, parts=PARTS):
    rules = LaneRules(workers=3, queue_bytes=parts, breaker=BreakerRules())
    notices = Notices(getLogger("hexkv.tests"), "tier disk", world)
    return Lane("disk/read", rules, world, world, Tallies(), notices)


def one_by_one(world, works):
    calls = []
    for work in works:
        calls.append(world.begin(work))
        world.advance(0.001)
    for call in calls:
        world.finish(call)
        assert call.error is None
    world.settle()


@settings(deadline=None)
@given(st.integers(), CALLERS)
def test_room_in_a_queue_is_given_in_the_order_of_coming_within_a_priority(seed, callers):
    world = World(seed)
    lane, order = lane_of(world), []

    def caller(number, size, seconds, priority):
        def work():
            far = Deadline.after(world, 1_000.0)
            with lane.admit(Priority(priority), [size], far) as room:
                order.append((priority, number))

                def spend(go):
                    world.spend(seconds)
                    return go, True

                ticket = lane.submit(Priority(priority), size, spend, None, room)
            assert lane.pending_bytes <= PARTS or lane.pending == 1
            assert ticket.wait(far)

        return work

    one_by_one(world, [caller(i, *each) for i, each in enumerate(callers)])
    for priority in (1, 2):
        mine = [number for rank, number in order if rank == priority]
        assert mine == [i for i, each in enumerate(callers) if each[2] == priority]
    assert (lane.pending, lane.pending_bytes) == (0, 0)


@settings(deadline=None)
@given(st.integers(), CALLERS)
def test_blocks_are_given_in_the_order_of_coming(seed, callers):
    world = World(seed)
    pool = BlockPool(Heap(2 * PARTS * PAGE), PARTS * PAGE, poison=True, executor=world)
    order = []

    def caller(number, size, seconds):
        def work():
            payload = max(0, min(size, PARTS) - 1) * PAGE
            with pool.lease(payload, "t", Deadline.after(world, 1_000.0)):
                order.append(number)
                world.spend(seconds)

        return work

    one_by_one(world, [caller(i, size, seconds) for i, (size, seconds, _) in enumerate(callers)])
    assert order == sorted(order)
    assert pool.ledger() == {}


def test_who_does_not_wait_never_passes_those_who_do():
    world = World(1)
    lane = lane_of(world)
    far, now = Deadline.after(world, 100.0), Deadline(world, 0.0)
    first = lane.admit(Priority.GET, [6], far)
    waiting = world.begin(lambda: lane.admit(Priority.GET, [4, 1, 1], far))
    world.advance(0.0)
    with pytest.raises(Refused, match="queue full"):
        lane.admit(Priority.GET, [1], now)
    with pytest.raises(Refused, match="queue full"):
        lane.submit(Priority.GET, 1, lambda go: (None, None))
    lane.leave(first)
    room = world.finish(waiting).result
    assert (room.count, room.size) == (3, 6), "as much as fits, once the first does"
    assert lane.admit(Priority.GET, [1], now).count == 1

    pool = BlockPool(Heap(2 * PARTS * PAGE), PARTS * PAGE, executor=world)
    held = [pool.lease(5 * PAGE, "t", now), pool.lease(3 * PAGE, "t", now)]
    small = pool.lease(0, "t", now)
    waiting = world.begin(lambda: pool.lease(5 * PAGE, "t", far))
    world.advance(0.0)
    with pytest.raises(PoolExhausted):
        pool.lease(0, "t", now)
    held[0].release()
    assert world.finish(waiting).result
    pool.lease(0, "t", now).release()
    assert small


class Counting(World):
    """Counts how often callers that wait look whether they can go on."""

    looks = 0

    def wait(self, condition, ready, deadline):
        def look():
            self.looks += 1
            return ready()

        return super().wait(condition, look, deadline)


@pytest.mark.parametrize("what", ["room", "block"])
def test_of_many_who_wait_only_who_can_go_on_is_woken(what):
    world, callers = Counting(1), 40
    lane, far = lane_of(world, parts=1), Deadline.after(world, 1_000.0)
    pool = BlockPool(Heap(PAGE), PAGE, executor=world)

    def load():
        def spend(go):
            world.spend(1.0)
            return go, True

        with lane.admit(Priority.GET, [1], far) as room:
            ticket = lane.submit(Priority.GET, 1, spend, None, room)
        assert ticket.wait(far)

    def hold():
        with pool.lease(0, "t", far):
            world.spend(1.0)

    one_by_one(world, [load if what == "room" else hold] * callers)
    assert world.now() < 1_000.0 + 2 * callers
    assert world.looks <= 6 * callers


def test_room_that_nobody_has_any_more_is_free():
    world = World(1)
    lane, now = lane_of(world), Deadline(world, 0.0)
    room = lane.admit(Priority.GET, [PARTS], now)
    with pytest.raises(Refused):
        lane.admit(Priority.GET, [1], now)
    del room
    assert lane.admit(Priority.GET, [1], now).count == 1


def test_a_wait_for_room_in_a_lane_that_ends_nothing_opens_its_breaker_and_frees_the_others():
    world = World(1)
    lane = lane_of(world)
    held = lane.admit(Priority.GET, [PARTS], Deadline(world, 0.0))
    calls = [
        world.begin(lambda s=s: lane.admit(Priority.GET, [1], Deadline.after(world, s)))
        for s in (5.0, 50.0)
    ]
    for call, why in zip(calls, ("queue full", "tier off"), strict=True):
        assert str(world.finish(call).error) == why
        assert call.ended - call.began == 5.0
    assert lane.breaker.state == "open"
    assert held.count == 1


def test_a_short_wait_for_room_is_one_failure_of_several():
    world = World(1)
    lane = lane_of(world)
    held = lane.admit(Priority.GET, [PARTS], Deadline(world, 0.0))
    for opened in (False, False, False, False, True):
        soon = Deadline.after(world, 0.1)
        call = world.begin(lambda soon=soon: lane.admit(Priority.GET, [1], soon, final=False))
        assert str(world.finish(call).error) == "queue full"
        assert (lane.breaker.state == "open") is opened
    assert held.count == 1


def test_closing_a_lane_frees_those_who_wait_for_room():
    world = World(1)
    lane = lane_of(world)
    held = lane.admit(Priority.GET, [PARTS], Deadline(world, 0.0))
    call = world.begin(lambda: lane.admit(Priority.GET, [1], Deadline.after(world, 50.0)))
    world.advance(1.0)
    lane.close()
    assert str(world.finish(call).error) == "closed"
    assert call.ended - call.began == 1.0
    assert held.count == 1
