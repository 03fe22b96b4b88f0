"""Engines share a node: what is there, who has what of it, and who may."""

import os
import socket
import stat
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Barrier

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hexkv.adapters.net.address import Address
from hexkv.adapters.net.errors import BadMessage
from hexkv.adapters.net.rpc.wire import HEAD
from hexkv.adapters.net.server.client_check import Allowed
from hexkv.adapters.net.server.listening import Listener
from hexkv.adapters.node import groups, wire
from hexkv.adapters.node.client import holds
from hexkv.adapters.node.client.link import NodeLink
from hexkv.adapters.node.server.limits import ClientLimits
from hexkv.adapters.node.server.verbs import VERBS
from hexkv.adapters.node.wire import HANDSHAKE, Verb
from hexkv.contracts.chunk_cache._base import LAYOUT, SIZE, TOKENS, content, now, put, soon, specs
from hexkv.contracts.doubles.heap_kv import HeapKV
from hexkv.core.tiers.read import reading
from hexkv.ports import (
    FRAME_VERSION,
    MAGIC,
    PAGE,
    ConfigError,
    DType,
    InvalidRequest,
    KVLayout,
    Namespace,
    Selection,
)
from nodes import FRAME, Node
from processes import until

PROMPT = list(range(5 * TOKENS))


@pytest.fixture
def node(tmp_path):
    with Node(tmp_path) as node:
        yield node
        node.at_rest()


def test_one_engine_hits_what_another_one_stored_also_when_that_is_gone(node):
    for section in ({"pool": {"bytes": 1 << 20}}, {"tiers": [{"store": "memory"}]}):
        with pytest.raises(ConfigError, match=f"{next(iter(section))} .*is the node's to say"):
            node.engine(**section)
    with node.engine() as first:
        kv = HeapKV(LAYOUT, len(PROMPT)).compute(PROMPT)
        assert first.store(PROMPT, kv).stored_tokens == len(PROMPT)
    with node.engine() as second:
        assert second.lookup(PROMPT).tiers == {"memory": len(PROMPT)}
        window = HeapKV(LAYOUT, len(PROMPT))
        got = second.retrieve(PROMPT, window)
        assert (got.hit_tokens, got.tiers) == (len(PROMPT), {"memory": len(PROMPT)})
        assert window.agrees(kv, len(PROMPT))
        assert second.health().leases == {"memory store": 5}


def test_the_end_of_a_connection_gives_back_everything_and_publishes_nothing(node):
    some = specs(4)
    client, other = node.client(), node.client()
    put(other, some[:2])
    hold = client.hold(some[:2], "held", soon())
    assert hold.wait(soon())
    share = hold.leases[0].share("longer")
    filled = client.allocate(some[2:], "half", soon())
    filled[0].payload[:] = content(some[2])
    client.pin("me", [some[0].key])
    assert set(client.ledger()) == {"held", "longer", "half"}
    until(lambda: node.server.leased_bytes == 4 * FRAME)
    client.close()
    # What this process still looks at is not for others yet.
    assert node.server.clients == 2
    assert bytes(share.payload) == content(some[0])
    hold.release()
    for lease in filled:
        lease.release()
    assert node.server.clients == 2
    share.release()
    until(lambda: node.server.clients == 1)
    assert list(other.match([spec.key for spec in some], soon())) == ["memory"] * 2 + [None] * 2
    assert other.health(soon()).pins == {}
    assert not node.served.health().pins
    other.close()


def test_no_queue_of_a_node_takes_all_of_its_pool(tmp_path):
    """Its pool is one slot, of chunks of any size; a queue without anything in it takes each."""
    with Node(tmp_path, slots=12) as node:
        memory, disk = node.served._stack.tiers
        assert [lane.queue_bytes for lane in disk.lanes] == [3 * FRAME] * 2
        assert not memory.lanes
        assert all(lane.takes(12 * FRAME) for lane in disk.lanes)


def test_a_client_leases_no_more_than_its_bound(tmp_path):
    with Node(tmp_path, limits=ClientLimits(3 * FRAME)) as node:
        greedy, other = node.client(), node.client()
        some = specs(6)
        leases = greedy.allocate(some, "greedy", soon())
        assert len(leases) == 3
        assert greedy.allocate(some, "greedy", soon()) == []
        assert len(other.allocate(some[:2], "other", soon())) == 2
        leases[0].release()
        assert len(greedy.allocate(some, "greedy", soon())) == 1
        other.close()
        put(greedy, [])
        for lease in leases:
            lease.release()
        greedy._ledger.sweep("greedy")
        put(greedy, some)
        with greedy.hold(some, "greedy", soon()) as hold:
            assert hold.wait(soon())
            assert [lease is not None for lease in hold.leases] == [True] * 3 + [False] * 3
            assert [reason for reason in hold.reasons if reason] == ["refused"] * 3
        greedy.close()


def test_requests_of_which_nothing_comes_leave_nothing_on_either_side(node, monkeypatch):
    """Those that mean nothing, and those that nobody waits for and the node never answers."""
    client = node.client()
    link = client._keeper.link
    (session,) = node.server._sessions
    huge = specs(1)[0]._replace(tokens=1 << 31)
    monkeypatch.setattr(client, "fits", lambda size: True)
    for _ in range(9):
        assert client.allocate([huge], "huge", soon()) == []
        with client.hold([huge], "huge", soon()) as hold:
            assert hold.wait(soon())
            assert hold.reasons[0] is not None
    monkeypatch.setitem(VERBS, Verb.PING, lambda session, asked: None)
    for _ in range(9):
        link.ask(Verb.PING, b"", soon())
    assert client.match([specs(1)[0].key], soon()) == [None]
    assert (len(session.granted), len(link._answers)) == (0, 0)
    client.close()


def test_a_request_that_waits_or_decodes_keeps_no_other_waiting(tmp_path, monkeypatch):
    pytest.importorskip("hexkv.adapters.lossless")
    layout = KVLayout.attention(DType.FLOAT16, layers=4, heads=4, key_width=64)
    words = [1] * TOKENS
    with Node(tmp_path, disk=False) as node, ThreadPoolExecutor() as others:
        with node.engine(Namespace("large", layout)) as engine:
            engine.store(words, HeapKV(layout, TOKENS))  # zeros, which get smaller
            done = node.served.admin.compress(Selection(everything=True), "memory", "zstd")
            assert done.chunks == 1
            decode = reading.open_into

            def decoded(*wanted):
                answers = others.submit(engine.lookup, words)
                assert answers.result(60).hit_tokens == TOKENS
                return decode(*wanted)

            monkeypatch.setattr(reading, "open_into", decoded)
            assert engine.retrieve(words, HeapKV(layout, TOKENS)).hit_tokens == TOKENS
        client, other = node.client(), node.client()
        full = other.allocate(specs(99), "other", soon())
        waits = others.submit(client.allocate, specs(1), "waits", soon())
        sessions = node.server._sessions
        until(lambda: any(session._under_way for session in sessions))
        assert client.match([specs(1)[0].key], soon()) == [None]
        assert not waits.done()
        for lease in full:
            lease.release()
        (late,) = waits.result(60)
        late.release()
        client.close()
        other.close()
        node.at_rest()


def test_a_lease_that_was_released_is_not_shared_though_its_block_is_still_in_sight(node):
    client = node.client()
    put(client, specs(1))
    with client.hold(specs(1), "held", soon()) as hold:
        assert hold.wait(soon())
        (lease,) = hold.leases
        client._ledger.release([("held", lease.token, lease.block)])  # by another thread, just now
        with pytest.raises(InvalidRequest, match="released"):
            lease.share("late")
    client.close()


def test_threads_that_wait_for_one_hold_take_its_leases_once(node, monkeypatch):
    """A second set of leases, dropped, would give back the blocks of the first."""
    client, both, wanted = node.client(), Barrier(2), specs(3)
    put(client, wanted)
    link_wait = NodeLink.wait

    def wait(link, *answer, **options):
        there = link_wait(link, *answer, **options)
        both.wait(60)
        return there

    hold = client.hold(wanted, "held", soon())
    with monkeypatch.context() as patched, ThreadPoolExecutor() as threads:
        patched.setattr(NodeLink, "wait", wait)
        waits = [threads.submit(hold.wait, soon()) for _ in range(2)]
        assert [wait.result(60) for wait in waits] == [True, True]
    assert client.ledger() == {"held": 3}
    assert client.match([spec.key for spec in wanted], soon()) == ["memory"] * 3
    assert sum(node.ledger().values()) == 3
    hold.release()
    client.close()


def test_a_hold_whose_answer_was_interrupted_has_no_leases(node, monkeypatch):
    client, wanted = node.client(), specs(3)
    put(client, wanted)
    taken = holds.taken

    def interrupted(*answer):
        taken(*answer)
        raise KeyboardInterrupt

    with client.hold(wanted, "held", soon()) as hold:
        with monkeypatch.context() as patched, suppress(KeyboardInterrupt):
            patched.setattr(holds, "taken", interrupted)
            hold.wait(soon())
        assert hold.wait(soon())
        assert (list(hold.leases), client.ledger()) == ([None] * 3, {})
    client.close()


def test_a_header_that_a_client_left_is_void(tmp_path):
    """The node writes headers itself, so what is on the disk under a key says that key."""
    with Node(tmp_path, memory=1) as node:
        client = node.client()
        chunk, other = specs(2)
        put(client, [other])
        node.served.chunks.flush(soon())
        with client.hold([other], "thief", soon()) as hold:
            assert hold.wait(soon())
            sealed = bytes(hold.leases[0].frame)
        (lease,) = client.allocate([chunk], "thief", soon())
        lease.frame[:] = sealed
        lease.frame[:8] = MAGIC
        with lease:
            publishing = client.publish([lease], None, soon())
            assert publishing.wait(soon())
        node.served.clear(None, ["memory"], soon())
        with client.hold([chunk], "reader", soon()) as hold:
            assert hold.wait(soon())
            assert hold.leases[0] is not None
            assert hold.origins == ["disk"]
            assert bytes(hold.leases[0].payload) == sealed[PAGE : PAGE + SIZE]
        with pytest.raises(InvalidRequest):
            client.publish([lease], None, soon())
        client.close()


def test_only_who_may_comes_in_and_one_node_has_a_path(tmp_path, node):
    assert stat.S_IMODE(node.path.stat().st_mode) == 0o600
    with pytest.raises(ConfigError, match="another process"):
        Listener(Address(path=str(node.path)))
    with Node(tmp_path / "other", disk=False, clients=1) as full:
        first, second = full.client(), full.client()
        assert (first.connected, second.connected) == (True, False)
        assert second.match([specs(1)[0].key], soon()) == [None]
        first.close()
        until(lambda: second.connected)  # a place came free, and it was tried again
        second.close()

    class Nobody(Allowed):
        def lets_in(self, uid, gid):
            assert (uid, gid) == (os.geteuid(), os.getegid())
            return False

    with Node(tmp_path / "closed", disk=False, allowed=Nobody()) as closed:
        client = closed.client()
        assert not client.connected
        client.close()
    assert Allowed(frozenset({7})).lets_in(7, 0)
    assert Allowed(gids=frozenset({8})).lets_in(0x7FFF, 8)
    assert not Allowed().lets_in(0x7FFF, 0x7FFF)


@pytest.mark.thorough
@settings(max_examples=500)
@given(data=st.data())
def test_a_body_that_is_none_is_malformed_and_nothing_else(data):
    """Every reader of bodies: of noise, and of good bodies that were cut or changed."""
    some = specs(3)
    wanted = wire.Wanted("owner", [s.key for s in some], [0] * 3, [TOKENS] * 3, [-1, 0, 16])
    chunks = wire.Chunks(bytes([wire.State.HERE] * 2), [PAGE] * 2, [FRAME] * 2, ["memory"] * 2)
    good = {
        wire.read_wanted: wire.pack_wanted(wanted),
        wire.read_space: wire.pack_space(1, wire.Space("{}", LAYOUT, "raw")),
        wire.read_release: wire.pack_release([(1, 2), (3, wire.ALL)]),
        (lambda body: wire.read_chunks(body, 2)): wire.pack_chunks(chunks),
        (lambda body: wire.read_chunks(body, 2)): wire.pack_chunks(
            chunks._replace(serdes=[None, "int8/1"])
        ),
        wire.read_encoded: wire.pack_encoded(1, ["int8/1", "fp8/1"]),
        groups.read_layers: groups.pack_layers(groups.LayerGroups(1, 2, [range(1), range(1, 3)])),
        groups.read_brought: groups.pack_brought(groups.Brought(1, 2, "corrupt")),
    }
    assert wire.read_wanted(good[wire.read_wanted]) == wanted._replace(
        spaces=(0, 0, 0), tokens=(TOKENS,) * 3, positions=(-1, 0, 16)
    )
    for read, body in good.items():
        read(body)
        cut = data.draw(st.integers(0, len(body)))
        noise = data.draw(st.binary(max_size=24))
        for wrong in (noise, body[:cut], body[:cut] + noise + body[cut + len(noise) :]):
            with suppress(BadMessage):
                read(wrong)
    layers = wire.pack_space(1, wire.Space("{}", LAYOUT, "raw"))
    with pytest.raises(BadMessage):  # before anything is as large
        wire.read_space(layers.replace(b"[[2,", b"[[999999999999,"))


def raw(node):
    """A connection that says what it likes, after the greeting."""
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(30)
    sock.connect(str(node.path))
    sock.sendall(HANDSHAKE.hello(FRAME_VERSION, 0))
    sock.recv(HANDSHAKE.challenge_bytes)
    return sock


@pytest.mark.thorough
@settings(max_examples=200, deadline=None)
@given(noise=st.binary(min_size=HEAD.size, max_size=200), generation=st.booleans())
def test_who_sends_nonsense_is_not_answered_and_nobody_else_notices(shared, noise, generation):
    node, client, held = shared
    sock = raw(node)
    if generation:
        noise = noise[:16] + node.server.generation.to_bytes(8, "little") + noise[24:]
    sock.sendall(noise)
    sock.shutdown(socket.SHUT_WR)
    with suppress(ConnectionResetError):  # closed before all of it was read
        while sock.recv(4096):
            pass
    sock.close()
    assert client.match([specs(1)[0].key], soon()) == ["memory"]
    assert bytes(held.leases[0].payload) == content(specs(1)[0])


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    with Node(tmp_path_factory.mktemp("node")) as node:
        client = node.client()
        put(client, specs(1))
        with client.hold(specs(1), "held", soon()) as held:
            assert held.wait(soon())
            yield node, client, held
        client.close()
        node.at_rest()


def test_what_a_client_leases_stays_its_own_until_its_socket_is_closed(tmp_path):
    """Also when it is not answered any more: it may be copying."""
    with Node(tmp_path, slots=4, memory=1, disk=False) as node:
        liar, other = node.client(), node.client()
        some = specs(6)
        put(other, some[:1])
        hold = liar.hold(some[:1], "liar", soon())
        assert hold.wait(soon())
        link = liar._keeper.link
        link._send(bytes(HEAD.size), soon())
        until(lambda: not link.alive)
        for number in range(1, 6):  # all the rest of the memory, several times over
            put(other, [some[number]])
        crowd = []
        while leases := other.allocate([some[5]], "crowd", now()):
            leases[0].payload[:] = b"\xff" * SIZE
            crowd += leases
        assert bytes(hold.leases[0].payload) == content(some[0])
        hold.release()
        until(lambda: node.server.clients <= 2)
        for client in (liar, other):
            client.close()
        for lease in crowd:
            lease.release()
        node.at_rest()
