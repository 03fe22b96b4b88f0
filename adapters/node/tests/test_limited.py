"""What is limited in time ends by the node's clock, and nothing of it is read after that."""

import logging
from contextlib import contextmanager
from threading import Event

import pytest

from hexkv.adapters.node.server.taking import Predecessor
from hexkv.adapters.node.server.verbs import TOLD, VERBS
from hexkv.adapters.node.wire import Verb
from hexkv.contracts.chunk_cache._base import LAYOUT, SIZE, TOKENS, content, now, put, soon, specs
from hexkv.contracts.doubles.heap_kv import HeapKV
from hexkv.contracts.kit.cases import each
from hexkv.core.tiers.holds.hold import LocalHold
from hexkv.plugins.threads import step_aside
from hexkv.ports import HoldTerms
from nodes import FRAME, Node
from processes import until

PROMPT = list(range(6 * TOKENS))
OTHER = list(range(900, 900 + 6 * TOKENS))
MINUTE = 60.0


@pytest.fixture
def node(tmp_path):
    """Memory for two chunks, a pool for sixteen, and the rest on a disk."""
    with Node(tmp_path, slots=16, memory=2) as node:
        yield node
        node.at_rest()


@contextmanager
def clients(node, count):
    made = [node.client() for _ in range(count)]
    try:
        yield made
    finally:
        for client in made:
            client.close()


def elapse(node, seconds):
    """Let time pass for a node that reads and writes nothing: no deadline of a tier passes."""
    assert all(tier.drain(soon()) for tier in node.served._stack.tiers)
    node.clock.seconds += seconds


def await_limits(node, count):
    """Wait until the node knows how long *count* holds last: that comes behind their answers."""
    until(lambda: sum(len(it.granted.limits()) for it in node.server._all()) == count)


def prefetched(node):
    return {owner: count for owner, count in node.ledger().items() if "prefetch" in owner}


def overwrite(client):
    """All that the node lends, filled with what no chunk has."""
    crowd = []
    while leases := client.allocate(specs(1, "crowd"), "crowd", now()):
        leases[0].payload[:] = b"\xff" * SIZE
        crowd += leases
    return crowd


def test_engines_that_sleep_hold_nothing_past_the_time_of_their_prefetches(node):
    kv = HeapKV(LAYOUT, len(PROMPT)).compute(PROMPT)
    with node.engine(prefetch={"seconds": MINUTE, "share": 0.5}) as sleeper, node.engine() as other:
        assert other.store(PROMPT, kv).stored_tokens == len(PROMPT)
        sleeper.prefetch("a", PROMPT)
        until(lambda: sum(prefetched(node).values()) == 6)
        await_limits(node, 1)
        elapse(node, MINUTE + 1)
        # Another one finds memory at once, and by the next second all of it is free.
        mine = HeapKV(LAYOUT, len(OTHER)).compute(OTHER)
        assert other.store(OTHER, mine).stored_tokens == len(OTHER)
        window = HeapKV(LAYOUT, len(PROMPT))
        assert other.retrieve(PROMPT, window).hit_tokens == len(PROMPT)
        assert window.agrees(kv, len(PROMPT))
        until(lambda: not prefetched(node))
        # And who wakes, and thinks that it has it still, reads nothing of it.
        window = HeapKV(LAYOUT, len(PROMPT))
        assert sleeper.retrieve(PROMPT, window, lookup_id="a").hit_tokens == len(PROMPT)
        assert window.agrees(kv, len(PROMPT))


def test_who_wakes_after_its_time_learns_that_before_it_reads(node):
    some = specs(4)
    with clients(node, 2) as (sleeper, other):
        put(other, some)
        hold = sleeper.hold(some, "prefetch", soon(), HoldTerms(seconds=MINUTE))
        assert hold.wait(soon())
        assert all(hold.leases)
        await_limits(node, 1)
        elapse(node, MINUTE + 1)
        crowd = overwrite(other)
        assert len(crowd) == 16, "what is past its time goes before anybody is refused"
        assert not hold.keep(soon())
        assert list(hold.leases) == []
        assert sleeper.ledger() == {}
        for lease in crowd:
            lease.release()


def test_what_was_kept_in_time_lasts_until_its_release(node):
    some = specs(3)
    with clients(node, 2) as (client, other):
        put(other, some)
        hold = client.hold(some, "prefetch", soon(), HoldTerms(seconds=MINUTE))
        assert hold.keep(soon())  # whether it has arrived by now or not
        elapse(node, 10 * MINUTE)
        crowd = overwrite(other)
        assert hold.wait(soon())
        assert [bytes(lease.payload) for lease in hold.leases] == [content(one) for one in some]
        for lease in (*crowd, hold):
            lease.release()


def test_what_was_asked_for_without_a_limit_has_none(node):
    """As every client of a former version does: it may be reading."""
    some = specs(3)
    with clients(node, 2) as (client, other):
        put(other, some)
        with client.hold(some, "held", soon()) as hold:
            assert hold.wait(soon())
            assert hold.keep(now())
            elapse(node, 24 * 60 * MINUTE)
            crowd = overwrite(other)
            assert [bytes(lease.payload) for lease in hold.leases] == [content(it) for it in some]
        for lease in crowd:
            lease.release()


def test_a_node_that_knows_no_limits_is_believed_to_hold_nothing(node, monkeypatch):
    """A successor of a former version may have been handed less than its client knows of."""
    monkeypatch.delitem(TOLD, Verb.LASTS)
    monkeypatch.delitem(VERBS, Verb.KEEP)
    kv = HeapKV(LAYOUT, len(PROMPT)).compute(PROMPT)
    with node.engine() as engine:
        assert engine.store(PROMPT, kv).stored_tokens == len(PROMPT)
        engine.prefetch("a", PROMPT)
        until(lambda: prefetched(node))
        window = HeapKV(LAYOUT, len(PROMPT))
        assert engine.retrieve(PROMPT, window, lookup_id="a").hit_tokens == len(PROMPT)
        assert window.agrees(kv, len(PROMPT))
        until(lambda: not prefetched(node))


def test_limits_go_over_to_the_process_that_takes_a_node_over(tmp_path):
    some = specs(2)
    with Node(tmp_path, slots=16, memory=2) as node, clients(node, 1) as (client,):
        put(client, some)
        limited = client.hold(some, "limited", soon(), HoldTerms(seconds=MINUTE))
        kept = client.hold(some, "kept", soon(), HoldTerms(seconds=MINUTE))
        assert limited.wait(soon())
        assert kept.wait(soon())
        assert kept.keep(soon())
        await_limits(node, 1)
        elapse(node, MINUTE / 2)
        with Predecessor(node.path) as before:
            state = before.take()
            with node.cache(before.region, before.stores) as served:
                inherited = before.adopt(served, state)
                before.gone(served)
                with node.succeeded(served, before.listening, inherited) as heir:
                    until(lambda: heir.server.leased_bytes == 4 * FRAME)
                    elapse(heir, MINUTE / 2)
                    until(lambda: heir.server.leased_bytes == 2 * FRAME)
                    assert not limited.keep(soon())
                    assert [bytes(it.payload) for it in kept.leases] == [content(it) for it in some]
                    kept.release()
                    client.close()


def test_a_hold_past_its_time_is_answered_though_it_is_still_being_read(node, monkeypatch):
    some = specs(4)
    with clients(node, 2) as (client, other):
        put(other, some)
        reading, going_on = slow_holds(monkeypatch)
        hold = client.hold(some, "prefetch", soon(), HoldTerms(seconds=MINUTE / 2))
        assert reading.wait(60)
        await_limits(node, 1)
        elapse(node, MINUTE / 2 + 1)
        until(lambda: not node.server.leased_bytes)
        going_on.set()
        assert hold.wait(soon())
        assert list(hold.leases) == [None] * 4
        assert client.connected
        hold.release()


def test_a_hold_that_is_given_up_while_the_node_reads_is_no_failure(node, monkeypatch, caplog):
    some = specs(4)
    with caplog.at_level(logging.WARNING, "hexkv"), clients(node, 2) as (client, other):
        put(other, some)
        reading, going_on = slow_holds(monkeypatch)
        hold = client.hold(some, "given up", soon())
        assert reading.wait(60)
        hold.release()
        until(lambda: not node.server.leased_bytes)
        going_on.set()
        with client.hold(some, "again", soon()) as again:
            assert again.wait(soon())
            assert all(again.leases)
        assert caplog.records == []


def slow_holds(monkeypatch):
    """The node's waits for reads begin, which sets the first event, and end after the second.

    However fast the disk is: before the first no read is over.
    """
    reading, going_on = Event(), Event()
    wait = LocalHold.wait

    def slow(self, deadline):
        if deadline.remaining():
            step_aside()  # as a wait does that is not over at once
            reading.set()
            assert going_on.wait(60)
        return wait(self, deadline) and reading.is_set()

    monkeypatch.setattr(LocalHold, "wait", slow)
    return reading, going_on


@each("by_layers, prompt", [(False, PROMPT), (True, OTHER)])
def test_chunks_stored_after_a_prefetch_are_hits_of_its_retrieve(node, by_layers, prompt):
    with node.engine() as one, node.engine() as other:
        kv, half = HeapKV(LAYOUT, len(prompt)).compute(prompt), prompt[: 2 * TOKENS]
        one.store(half, HeapKV(LAYOUT, len(half)).compute(half))
        other.prefetch("a", prompt)
        one.store(prompt, kv)
        target = HeapKV(LAYOUT, len(prompt))
        if by_layers:
            with other.retrieve_layers(prompt, target, lookup_id="a") as layers:
                assert len(list(layers)) == LAYOUT.layers
                got = layers.result()
        else:
            got = other.retrieve(prompt, target, lookup_id="a")
        assert (got.hit_tokens, got.misses) == (len(prompt), {})
        assert target.agrees(kv, len(PROMPT))
