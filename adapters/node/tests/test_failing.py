"""A node or a client that fails costs a deadline, and nothing is left over."""

import random
import socket
import sys
import time
from subprocess import PIPE, Popen
from threading import Event

import pytest

from hexkv.adapters.local.disk import DiskStore
from hexkv.adapters.node.server.limits import ClientLimits
from hexkv.adapters.node.server.session import NodeSession
from hexkv.adapters.node.server.verbs import VERBS
from hexkv.adapters.node.wire import HANDSHAKE, Verb
from hexkv.contracts.chunk_cache._base import LAYOUT, TOKENS, content, put, soon, specs
from hexkv.contracts.doubles.heap_kv import HeapKV
from hexkv.plugins.clock import SystemClock
from hexkv.ports import FRAME_VERSION, Deadline, Reason
from nodes import FRAME, Node, NodeProcess
from processes import until

PROMPT = list(range(6 * TOKENS))


def within(seconds):
    return Deadline.after(SystemClock(), seconds)


def test_a_node_that_comes_back_is_another_one(tmp_path, caplog):
    """Leases of its former life can be read, and nothing of them is published in the new one."""
    some = specs(3)
    with Node(tmp_path) as node:
        client = node.client()
        put(client, some[:2])
        hold = client.hold(some[:2], "held", soon())
        assert hold.wait(soon())
        (old,) = client.allocate(some[2:], "old", soon())
        old.payload[:] = content(some[2])
        other = node.client()  # which reads answers to its holds, and uses none before the end
        empty, late = (other.hold(part, "late", soon()) for part in (some[2:], some[:2]))
        both = empty._answer, late._answer
        until(lambda: other.match([some[0].key], soon()) and all(one.final for one in both))
        generation = node.server.generation
        node.stop()
        assert client.match([some[0].key], soon()) == [None]
        with client.hold(some, "lost", soon()) as lost:
            assert lost.wait(soon())
            assert list(lost.reasons) == [Reason.TIER_OFF] * 3
        assert client.allocate(some, "none", soon()) == []
        node.start()
        until(lambda: client.connected and other.connected)
        assert node.server.generation != generation
        publishing = client.publish([old], None, soon())
        assert publishing.wait(soon())
        assert publishing.tiers == {}
        assert client.match([spec.key for spec in some], soon()) == ["disk", "disk", None]
        put(client, some[2:])
        for kept in hold, late:
            assert kept.done
            assert [bytes(lease.payload) for lease in kept.leases] == [content(c) for c in some[:2]]
        late.release()
        other.close()
        assert (empty.done, empty.leases, empty.reasons) == (True, [None], [Reason.ABSENT])
        assert bytes(old.payload) == content(some[2])
        old.release()
        hold.release()
        assert client.ledger() == {}
        client.close()
        node.at_rest()
        lines = [line for line in caplog.messages if line.startswith(f"node {node.path}: ")]
    ends = "does not answer: connection: ", "is back after"
    for end in ends:  # of each client, however often it was tried, and whatever failed
        assert sum(end in line for line in lines) == 2
    assert len(lines) == 4


@pytest.mark.thorough
def test_a_client_that_ends_while_a_node_that_ends_lets_it_in_keeps_no_place(tmp_path, monkeypatch):
    dismissed, dismiss, lets_in = Event(), NodeSession.dismiss, Event()

    def breaks(*_):
        lets_in.set()
        assert dismissed.wait(60)
        raise BrokenPipeError

    def noted(session, why):
        dismiss(session, why)
        dismissed.set()

    monkeypatch.setattr(socket, "send_fds", breaks)
    monkeypatch.setattr(NodeSession, "dismiss", noted)
    with Node(tmp_path, disk=False, limits=ClientLimits(FRAME, patience=0.5)) as node:
        with socket.socket(socket.AF_UNIX) as sock:
            sock.connect(str(node.path))
            sock.sendall(HANDSHAKE.hello(FRAME_VERSION, 0))
            assert lets_in.wait(60)
        node.stop()
        assert node.server.clients == 0
        node.start()


@pytest.fixture
def hanging(monkeypatch):
    """``hanging(*verbs)``: from now on they are not answered, until the event it gives is set."""

    def begin(*verbs):
        going_on = Event()

        def hang(verb):
            def wait(session, asked):
                assert going_on.wait(60)
                verb(session, asked)

            return wait

        for verb in verbs:
            monkeypatch.setitem(VERBS, verb, hang(VERBS[verb]))
        return going_on

    return begin


def test_a_node_that_hangs_costs_one_deadline_until_it_says_something(tmp_path, hanging):
    key = specs(1)[0].key
    with Node(tmp_path) as node:
        client = node.client()
        put(client, specs(1))
        going_on = hanging(Verb.MATCH, Verb.PING)
        assert client.match([key], within(0.2)) == [None]
        assert not client.connected
        assert client.match([key], soon()) == [None]  # at once, though it had a minute
        going_on.set()
        until(lambda: client.connected)
        assert client.match([key], soon()) == ["memory"]
        client.close()
        node.at_rest()


def test_a_client_with_little_time_costs_others_neither_a_hit_nor_a_tier(tmp_path, monkeypatch):
    some, going_on, read = specs(6), Event(), DiskStore.read

    def slowly(self, keys, sink, deadline):
        assert going_on.wait(60)
        return read(self, keys, sink, deadline)

    with Node(tmp_path, memory=2) as node:
        hasty, other = node.client(), node.client()
        put(other, some)
        found = other.match([spec.key for spec in some], soon())
        some = [spec for spec, tier in zip(some, found, strict=True) if tier == "disk"]
        monkeypatch.setattr(DiskStore, "read", slowly)
        for _ in range(6):
            with hasty.hold(some, "hasty", within(0.01)) as hold:
                until(lambda hold=hold: hold.done)
                assert Reason.TIER_OFF not in hold.reasons
        assert {tier.reading for tier in node.served.health().tiers} == {"closed"}
        going_on.set()
        with other.hold(some, "other", soon()) as hold:
            assert hold.wait(soon())
            assert set(hold.reasons) == {None}
        hasty.close()
        other.close()
        node.at_rest()


@pytest.mark.thorough
def test_a_store_by_layers_waits_for_a_node_that_answers_slowly(tmp_path, monkeypatch):
    """It does not wait for memory, and does for the answer whether there is any."""
    given_up, allocate = Event(), VERBS[Verb.ALLOCATE]

    def slowly(session, asked):
        given_up.wait(0.2)
        allocate(session, asked)

    monkeypatch.setitem(VERBS, Verb.ALLOCATE, slowly)
    with Node(tmp_path) as node:
        with node.engine() as engine:
            kv = HeapKV(LAYOUT, len(PROMPT)).compute(PROMPT)
            with engine.store_layers(PROMPT, kv) as storing:
                for layer in range(LAYOUT.layers):
                    storing.layer_done(layer)
                report = storing.result()
            given_up.set()
            assert (report.stored_tokens, report.drops) == (len(PROMPT), {})
        node.at_rest()


def test_announcements_that_are_answered_late_keep_others_from_nothing(tmp_path, hanging):
    """They have a second, whatever a busy machine's deadlines are."""
    key = specs(1)[0].key
    with Node(tmp_path) as node:
        client = node.client()
        put(client, specs(1))
        going_on = hanging(Verb.MATCH, Verb.PING, Verb.WITHDRAW, Verb.UNPIN)
        assert client.withdraw("prompt", within(0.2)) == 0
        assert client.connected
        assert client.withdraw("another", soon()) == 0  # at once: each would wait in vain
        assert client.unpin("pin") == 0
        assert client.connected
        going_on.set()
        assert client.match([key], soon()) == ["memory"]
        client.close()
        node.at_rest()


def test_to_look_for_an_answer_before_its_time_is_over_says_nothing_about_the_node(
    tmp_path, hanging
):
    with Node(tmp_path) as node:
        client = node.client()
        put(client, specs(1))
        going_on = hanging(Verb.HOLD, Verb.PING)
        with client.hold(specs(1), "prefetch", soon()) as hold:
            for _ in range(5):
                assert not hold.known(within(0.03))
            assert client.connected
            going_on.set()
            assert hold.wait(soon())
            assert list(hold.reasons) == [None]
        client.close()
        node.at_rest()


@pytest.mark.thorough
def test_a_stopped_node_costs_one_deadline_and_a_killed_one_is_found_again(tmp_path):
    with NodeProcess(tmp_path, memory=16) as node:
        quick = dict.fromkeys(("lookup", "retrieve", "store"), 0.5)
        with node.engine(deadlines=quick) as engine:
            kv = HeapKV(LAYOUT, len(PROMPT)).compute(PROMPT)
            assert engine.store(PROMPT, kv).stored_tokens == len(PROMPT)
            assert engine.flush(60)
            node.freeze()
            start = time.monotonic()
            assert engine.lookup(PROMPT).hit_tokens == 0
            assert engine.lookup(PROMPT).hit_tokens == 0
            assert engine.retrieve(PROMPT, HeapKV(LAYOUT, len(PROMPT))).hit_tokens == 0
            assert engine.store(PROMPT, kv).dropped_tokens == len(PROMPT)
            assert time.monotonic() - start < 30  # one deadline of a busy machine, not four
            node.thaw()
            until(lambda: engine.lookup(PROMPT).hit_tokens == len(PROMPT))
            for _ in range(5):
                node.kill()
                assert engine.lookup(PROMPT).hit_tokens == 0
                node.start()
                window = HeapKV(LAYOUT, len(PROMPT))
                until(lambda: engine.lookup(PROMPT).hit_tokens == len(PROMPT))
                assert engine.retrieve(PROMPT, window).hit_tokens == len(PROMPT)
                assert window.agrees(kv, len(PROMPT))
        node.at_rest()


CLIENT = """
import random, sys
from hexkv.adapters.node.client.client import NodeClient
from hexkv.contracts.chunk_cache._base import content, soon, specs
from hexkv.plugins.clock import SystemClock
from pathlib import Path
client = NodeClient(Path(sys.argv[1]), SystemClock())
chance = random.Random(int(sys.argv[2]))
print("up", flush=True)
some = specs(12)
while True:
    part = chance.sample(some, 3)
    leases = client.allocate(part, "put", soon())
    for lease, spec in zip(leases, part):
        lease.payload[:] = content(spec)
    if chance.random() < 0.7:
        client.publish(leases, None, soon())
    hold = client.hold(part, "get", soon())
    hold.wait(soon())
    client.pin("pin", [part[0].key])
    for lease in [*leases, *hold.leases]:
        if lease is not None and chance.random() < 0.8:
            lease.release()
    if chance.random() < 0.8:
        hold.release()
    if chance.random() < 0.05:
        client.sweep("put"), client.sweep("get")
"""


@pytest.mark.thorough
@pytest.mark.parametrize("kills", [40])
def test_clients_that_are_killed_leave_nothing_and_spoil_nothing(tmp_path, kills):
    """While others read: never a wrong byte."""
    chance, some = random.Random(7), specs(12)
    with Node(tmp_path, slots=64) as node:
        reader = node.client()
        running = []
        wrong = read = 0
        for number in range(kills):
            command = [sys.executable, "-c", CLIENT, str(node.path), str(number)]
            running.append(Popen(command, stdout=PIPE))
            if len(running) < 4:
                continue
            victim = running.pop(chance.randrange(len(running)))
            assert victim.stdout.readline() == b"up\n"
            for _ in range(chance.randrange(1, 30)):
                with reader.hold(some, "reader", soon()) as hold:
                    assert hold.wait(soon())
                    for lease, spec in zip(hold.leases, some, strict=True):
                        if lease is not None:
                            read += 1
                            wrong += bytes(lease.payload) != content(spec)
            victim.kill()
            victim.wait()
            victim.stdout.close()
        for victim in running:
            victim.kill()
            victim.wait()
            victim.stdout.close()
        assert wrong == 0
        assert read > kills
        reader.close()
        node.at_rest()
        assert not node.served.health().pins
        leased = node.served.health()
        assert leased.leases.get("memory store", 0) * FRAME == leased.tiers[0].used_bytes


def test_a_node_that_comes_back_with_less_memory_than_a_chunk_takes_is_missed(tmp_path):
    """The engine was built for the chunks of the former one; no call of it raises for that."""
    with Node(tmp_path) as node:
        with node.engine() as engine:
            kv = HeapKV(LAYOUT, len(PROMPT)).compute(PROMPT)
            assert engine.store(PROMPT, kv).stored_tokens == len(PROMPT)
            client = engine._chunks
            node.stop()
            node._overrides["pool"]["bytes"] = FRAME - 4096
            node.start()
            until(lambda: client.connected and not client.fits(FRAME))
            target = HeapKV(LAYOUT, len(PROMPT))
            got = engine.retrieve(PROMPT, target)
            assert (got.hit_tokens, got.misses[Reason.REFUSED]) == (0, 1)
            other = PROMPT[::-1]
            assert engine.store(other, HeapKV(LAYOUT, len(other)).compute(other)).stored_tokens == 0
            with engine.retrieve_layers(PROMPT, target) as layers:
                assert list(layers) == list(range(LAYOUT.layers))
            assert layers.result().hit_tokens == 0
            with engine.store_layers(other, HeapKV(LAYOUT, len(other)).compute(other)) as storing:
                for layer in range(LAYOUT.layers):
                    storing.layer_done(layer)
                assert storing.result().stored_tokens == 0
            assert engine.prefetch("one", PROMPT) in (0, None)
            engine.cancel("one")
            node._overrides["pool"]["bytes"] = 32 * FRAME
            node.stop()
            node.start()
            until(lambda: client.connected and client.fits(FRAME))
            assert engine.retrieve(PROMPT, target).hit_tokens == len(PROMPT)  # from the disk
            assert target.agrees(kv, len(PROMPT))
        node.at_rest()
