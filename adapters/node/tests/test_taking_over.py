"""A node's place is taken by another process: nothing is lost, and nothing is used twice."""

import json
import socket
import sys
from signal import SIGKILL
from subprocess import Popen
from threading import Event

import pytest

from hexkv.adapters.net.rpc import wire as rpc
from hexkv.adapters.net.rpc.barrier import Barrier
from hexkv.adapters.node import wire
from hexkv.adapters.node.server import giving, taking
from hexkv.adapters.node.server.handover import END, TAKE
from hexkv.adapters.node.server.taking import Predecessor
from hexkv.adapters.node.server.verbs import VERBS
from hexkv.adapters.node.wire import HANDSHAKE, Verb
from hexkv.contracts.chunk_cache._base import SIZE, content, now, put, soon, specs
from hexkv.ports import FRAME_VERSION, ConfigError, EngineClosed
from nodes import FRAME, Node, NodeProcess, held, taken_over
from processes import until


def test_a_new_process_goes_on_with_all_that_the_old_one_had(tmp_path):
    """Memory, pins, connections and their leases; and once more with the process after it."""
    some = specs(5)
    with NodeProcess(tmp_path, slots=12, memory=6, disk=False) as node:
        client, other = node.client(), node.client()
        put(client, some[:3])
        client.pin("me", [some[0].key])
        hold = client.hold(some[:2], "held", soon())
        assert hold.wait(soon())
        (filled,) = client.allocate(some[3:4], "half", soon())
        filled.payload[:] = content(some[3])
        link = client._keeper.link
        for _ in range(2):
            node.take_over()
            assert client.match([spec.key for spec in some], soon()) == ["memory"] * 3 + [None] * 2
            assert client.health(soon()).pins == {"me": 1}
            listed = client.in_memory(None, soon())
            assert {spec.key for spec in listed} == {spec.key for spec in some[:3]}
        crowd = []
        while leases := other.allocate(some[4:], "crowd", now()):
            leases[0].payload[:] = b"\xff" * SIZE
            crowd += leases
        assert held(hold) == [content(spec) for spec in some[:2]]
        assert bytes(filled.payload) == content(some[3])
        publishing = client.publish([filled], None, soon())
        assert publishing.wait(soon())
        assert publishing.tiers == {"memory": [True]}
        # What is pinned, and what was leased at the time, is there still; the connection is.
        assert client._keeper.link is link
        assert link.alive
        with client.hold([some[0], some[3]], "again", soon()) as again:
            assert again.wait(soon())
            assert held(again) == [content(some[0]), content(some[3])]
        for lease in (hold, filled, *crowd):
            lease.release()
        for one in (client, other):
            one.close()
        node.at_rest()


@pytest.fixture
def node(tmp_path):
    with Node(tmp_path, slots=12, memory=6, disk=False) as node:
        yield node


@pytest.fixture
def client(node):
    client = node.client()
    put(client, specs(2))
    yield client
    client.close()


def test_a_node_goes_on_if_its_successor_goes_half_way(node, client):
    """At whichever word it stops; who is not answered meanwhile is answered then."""
    some = specs(2)

    def hello(before):
        pass

    def says_nothing_useful(before):
        before._socket.sendall(b"?")

    def takes(before):
        before._socket.sendall(TAKE)
        before._socket.settimeout(60)
        assert before._socket.recv(1)

    def has(before):
        before.take()

    def adopts_something_else(before):
        before.take()
        before._socket.sendall(b"?")
        with pytest.raises(ConfigError, match=r"taken everything back|does not hand over"):
            before.gone(None)

    with client.hold(some, "held", soon()) as hold, socket.socket(socket.AF_UNIX) as newcomer:
        assert hold.wait(soon())
        newcomer.settimeout(60)
        for stop in (hello, says_nothing_useful, takes, has, adopts_something_else):
            if stop is has:
                newcomer.connect(str(node.path))
                until(lambda: node.server._admission.clients)
            with Predecessor(node.path) as before:
                stop(before)
                if stop is has:
                    newcomer.sendall(HANDSHAKE.hello(FRAME_VERSION, 0))
                    newcomer.recv(HANDSHAKE.challenge_bytes)
                    newcomer.sendall(rpc.message(Verb.PING, 1, node.server.generation))
                    # Nobody reads this now, and nobody has lost it.
                    asked = client._keeper.link.ask(Verb.PING, b"", soon())
                    assert not client._keeper.link.wait(asked, now())
                    with pytest.raises(EngineClosed):  # an operator's clear would be undone
                        node.served.clear(None, None, soon())
            assert client.match([spec.key for spec in some], soon()) == ["memory"] * 2
            assert held(hold) == [content(spec) for spec in some]
            put(client, specs(4)[2:])
            if stop is has:
                assert rpc.head(newcomer.recv(rpc.HEAD.size), 4096).request == 1
    assert not node.server.given


def test_what_cannot_be_gone_on_with_is_not_used_until_those_who_had_it_are_gone(
    node, client, monkeypatch
):
    """A request that does not end, and clients of another version: they connect anew."""
    monkeypatch.setattr(giving, "REST", 0.2)
    some = specs(6)
    stuck, going_on = Event(), Event()

    def hang(session, asked):
        stuck.set()
        assert going_on.wait(60)

    monkeypatch.setitem(VERBS, Verb.FLUSH, hang)
    late = node.client()
    mine, theirs = client.hold(some[:2], "mine", soon()), late.hold(some[:2], "theirs", soon())
    (half,) = late.allocate(some[5:], "half", soon())
    half.payload[:] = content(some[5])
    assert mine.wait(soon())
    assert theirs.wait(soon())
    link = late._keeper.link
    link.ask(Verb.FLUSH, b"", soon())
    until(stuck.is_set)
    monkeypatch.setattr(taking, "VERSION", 77)
    old = client._keeper.link
    with taken_over(node) as heir:
        monkeypatch.undo()
        until(lambda: not (link.alive or old.alive))
        until(lambda: client.connected and late.connected)
        put(client, some[2:5])
        crowd = []
        while leases := client.allocate(some[5:], "crowd", now()):
            leases[0].payload[:] = b"\xff" * SIZE
            crowd += leases
        assert held(mine) == held(theirs) == [content(spec) for spec in some[:2]]
        assert bytes(half.payload) == content(some[5])
        for lease in (mine, theirs, half, *crowd):
            lease.release()
        going_on.set()
        node.stop()  # the last that could write to it
        until(lambda: heir.ledger() == {})
        put(client, some[2:])
        assert client.match([spec.key for spec in some[2:]], soon()) == ["memory"] * 4
        late.close()
        client.close()
        heir.at_rest()


def test_what_was_sent_and_not_read_is_answered_by_the_successor(node, client):
    """Half a message, too; and what is worth least goes first there as it would have here."""
    some = specs(6)
    put(client, some[2:5])
    client.match([some[1].key], soon())
    with client.hold([some[0]], "use", soon()) as hold:
        assert hold.wait(soon())
    ranked = node.served._stack.tiers[0].index.ranked()
    assert ranked[0] != some[0].key
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(60)
    sock.connect(str(node.path))
    sock.sendall(HANDSHAKE.hello(FRAME_VERSION, 0))
    sock.recv(HANDSHAKE.challenge_bytes)
    body = wire.pack_keys([some[0].key, some[5].key])
    asked = rpc.message(Verb.MATCH, 1, node.server.generation, body, seconds=60.0)
    sock.sendall(asked + asked[:31])
    assert rpc.head(sock.recv(rpc.HEAD.size), 4096).request == 1
    assert sock.recv(99)
    until(lambda: any(session.ahead for session in node.server._sessions))
    with taken_over(node) as heir:
        assert heir.served._stack.tiers[0].index.ranked() == ranked
        sock.sendall(asked[31:])
        head = rpc.head(sock.recv(rpc.HEAD.size), 4096)
        assert (head.request, head.status) == (1, rpc.Status.DONE)
        assert wire.read_words(wire.Reader(sock.recv(99)), 2) == ["memory", None]
        sock.close()
        client.close()
        heir.at_rest()
        node.stop()


@pytest.mark.thorough
def test_a_client_that_is_let_in_as_a_hand_over_begins_goes_over(node, monkeypatch):
    lower = Barrier.lower
    newcomer = socket.socket(socket.AF_UNIX)
    newcomer.settimeout(60)
    newcomer.connect(str(node.path))
    until(lambda: node.server._admission.clients)

    def ping():
        newcomer.sendall(rpc.message(Verb.PING, 1, node.server.generation))
        return rpc.head(newcomer.recv(rpc.HEAD.size), 4096).request

    def later(barrier):
        newcomer.sendall(HANDSHAKE.hello(FRAME_VERSION, 0))
        newcomer.recv(HANDSHAKE.challenge_bytes)
        assert ping() == 1
        lower(barrier)

    monkeypatch.setattr(Barrier, "lower", later)
    with newcomer, taken_over(node):
        assert ping() == 1
        node.stop()


def test_a_node_that_does_not_fit_is_ended_and_the_new_one_starts_empty(tmp_path):
    with NodeProcess(tmp_path, slots=12, memory=6) as node:
        client = node.client()
        put(client, specs(1))
        node.file.write_text(
            json.dumps(node.configured(tmp_path, slots=16, memory=6, frame=FRAME, disk=True))
        )
        node.take_over()
        assert (
            f"its pool has {12 * FRAME:,} bytes, this one is to have {16 * FRAME:,}" in node.said()
        )
        until(lambda: client.connected)
        assert client.match([specs(1)[0].key], soon()) == ["disk"]
        client.close()
        node.at_rest()


def test_versions_that_do_not_fit_are_said(node, monkeypatch):
    for name, said in (("HANDOVER_VERSION", "hands over by version"), ("FRAME_VERSION", "frames")):
        with monkeypatch.context() as patch:
            patch.setattr(taking, name, 77)
            with Predecessor(node.path) as before:
                assert said in before.unfit
    with Predecessor(node.path) as before:
        before._socket.sendall(END)
        until(lambda: node.server._stopping)


class Dying(NodeProcess):
    """A node that is killed at one point of a hand-over, and not before."""

    def __init__(self, root, at):
        super().__init__(root, slots=12, memory=6)
        self._at = at

    def begin(self, *options):
        if options:  # the successor, which does not die
            return super().begin(*options)
        module, name = self._at
        code = (
            "import os, sys\n"
            f"from hexkv.adapters.node.server import {module}\n"
            f"{module}.{name} = lambda *_: os.kill(os.getpid(), 9)\n"
            "from hexkv.plugins.__main__ import main\n"
            "sys.exit(main())\n"
        )
        with (self.folder / "log").open("a") as log:
            return Popen(
                [sys.executable, "-c", code, "node", *self.arguments()], stdout=log, stderr=log
            )


@pytest.mark.parametrize(
    "at",
    [
        pytest.param(("server", "receive"), id="before it is taken", marks=pytest.mark.thorough),
        pytest.param(
            ("giving", "send_descriptors"), id="in the middle", marks=pytest.mark.thorough
        ),
        pytest.param(("giving", "receive"), id="before the last word"),
    ],
)
def test_a_node_whose_predecessor_dies_amid_a_hand_over_starts_as_if_there_were_none(tmp_path, at):
    some = specs(2)
    with Dying(tmp_path, at) as node:
        client = node.client()
        put(client, some)
        assert client.flush(soon())
        old = node.process
        node.start("--take-over")
        assert old.wait(60) == -SIGKILL
        assert "the one that ran there has ended" in node.said()
        until(lambda: client.connected)
        assert client.match([spec.key for spec in some], soon()) == ["disk"] * 2
        with client.hold(some, "held", soon()) as hold:
            assert hold.wait(soon())
            assert held(hold) == [content(spec) for spec in some]
        client.close()
        node.at_rest()
