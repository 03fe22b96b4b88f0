"""Chunks that are computed at one node and waited for at another."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from threading import Event, Semaphore

import pytest

from hexkv.adapters.node.server import announced
from hexkv.contracts.chunk_cache._base import now, put, soon
from hexkv.peers.pushing.pushing import WANT
from hexkv.ports import SHARED_OWNER, CounterName
from nodes import FRAME, NodeProcess
from peers.peering import eventually
from peers.pushing import DECODE, PREFILL, chunks, holds, nodes

HOLD = f"{SHARED_OWNER}{'7' * 32} 0"


@pytest.fixture
def pair(tmp_path):
    """Two nodes, and a client of each."""
    with nodes(tmp_path) as (prefill, decode), ExitStack() as opened:
        clients = [opened.enter_context(closing(node.client())) for node in (prefill, decode)]
        yield prefill, decode, *clients
        opened.close()
        for node in (prefill, decode):
            node.at_rest()
            eventually(lambda node=node: not len(node.served.announced))


def waited(client, keys):
    """Once none of some chunks is expected any more."""
    left = list(keys)
    while left:
        flags = client.expect(left, "decode", soon())
        left = [key for key, is_coming in zip(left, flags, strict=True) if is_coming]


def test_a_decoder_waits_for_what_a_client_of_another_node_computes(pair):
    _, _, prefill, decode = pair
    some = chunks(4)
    keys = [chunk.key for chunk in some]
    put(prefill, some[:1])
    assert list(decode.seek(keys, "decode", "", soon())) == [False] * 4, "nobody computes them"
    prefill.announce("request", "prefill", keys[1:], 60.0, soon())
    assert list(decode.seek(keys[1:], "decode", "", soon())) == [True] * 3
    assert list(decode.seek(keys, "decode", PREFILL, soon())) == [True] * 4, "and what it has"
    assert list(decode.expect(keys[1:], "decode", now())) == [True] * 3
    put(prefill, some[1:3])
    waited(decode, keys[:3])
    assert holds(decode, some) == 3
    prefill.withdraw("request", soon())
    waited(decode, keys)
    assert holds(decode, some) == 3


def test_what_is_computed_for_a_decoder_is_pushed_to_its_node_and_kept_there(pair):
    pusher, node, prefill, decode = pair
    some = chunks(4)
    keys = [chunk.key for chunk in some]
    put(prefill, some[:1])
    prefill.announce("request", "prefill", keys, 60.0, soon())
    assert prefill.push_to(DECODE, keys, HOLD, 60.0, soon()) == PREFILL
    assert prefill.push_to("nobody", keys, HOLD, 60.0, soon()) == PREFILL
    for chunk in some[1:]:
        eventually(lambda chunk=chunk: any(decode.expect([chunk.key], "decode", now())))
        put(prefill, [chunk])
    eventually(lambda: holds(decode, some) == 4)
    eventually(lambda: node.served.stack.tiers[0].index.pinned.get(HOLD) == 4)
    sent = pusher.served.telemetry
    eventually(lambda: sent.total(CounterName.LENT_BYTES) == 4 * FRAME)
    put(decode, chunks(12, "later"))
    assert holds(decode, some) == 4, "they are not evicted"
    assert decode.unpin(HOLD)


def test_a_decoder_that_asks_before_its_node_was_told_waits(pair, monkeypatch):
    """A short prompt is computed sooner than one node tells the other one of it."""
    pusher, _, prefill, decode = pair
    some, told = chunks(3), Event()
    keys = [chunk.key for chunk in some]
    pushing = pusher.served.pushing
    tell = pushing._announce
    monkeypatch.setattr(pushing, "_announce", lambda *said: told.wait(60.0) and tell(*said))
    prefill.push_to(DECODE, keys, HOLD, 60.0, soon())
    put(prefill, some)
    try:
        assert list(decode.seek(keys, "decode", "", soon())) == [True] * 3
        waited(decode, keys)
        assert holds(decode, some) == 3
    finally:
        told.set()
    eventually(lambda: not pushing._offering)
    assert list(decode.seek(keys, "decode", "", soon())) == [False] * 3, "they are there"


def test_a_decoder_waits_for_what_its_node_was_told_of_and_asks_for_yet(pair, monkeypatch):
    _, node, prefill, decode = pair
    some, asks = chunks(3), Event()
    keys = [chunk.key for chunk in some]
    followed = node.served.pushing._followed
    want = followed._want
    monkeypatch.setattr(followed, "_want", lambda *said: asks.wait(60.0) and want(*said))
    put(prefill, some)
    prefill.push_to(DECODE, keys, HOLD, 60.0, soon())
    try:
        eventually(lambda: all(decode.expect(keys, "decode", now())))
    finally:
        asks.set()
    waited(decode, keys)
    assert holds(decode, some) == 3


def test_what_comes_before_its_search_ends_is_found(pair, monkeypatch):
    """A decoder that heard of nothing would compute what is there."""
    _, node, prefill, decode = pair
    some = chunks(3)
    keys = [chunk.key for chunk in some]
    followed = node.served.pushing._followed
    want = followed._want

    def until_here(*said):
        flags = want(*said)
        eventually(lambda: all(followed._have(keys)))
        return flags

    monkeypatch.setattr(followed, "_want", until_here)
    put(prefill, some)
    assert list(decode.seek(keys, "decode", PREFILL, soon())) == [True] * 3
    waited(decode, keys)
    assert holds(decode, some) == 3


def test_a_peer_that_answers_late_is_waited_for_until_the_askers_deadline(pair, monkeypatch):
    """A node has not all the time that its client has: it is asked again."""
    pusher, _, prefill, decode = pair
    some, asked, answers = chunks(3), Semaphore(0), Event()
    keys = [chunk.key for chunk in some]
    monkeypatch.setattr(announced, "_LONGEST_SEARCH", 0.05)
    questions = pusher.served.pushing._peers._answers
    want = questions[WANT]

    def late(*said):
        asked.release()
        assert answers.wait(60.0)
        return want(*said)

    monkeypatch.setitem(questions, WANT, late)
    prefill.announce("request", "prefill", keys, 60.0, soon())
    with ThreadPoolExecutor(1) as waits:
        found = waits.submit(decode.seek, keys, "decode", PREFILL, soon())
        try:
            assert all(asked.acquire(timeout=60.0) for _ in range(2)), "it is asked once more"
        finally:
            answers.set()
        assert list(found.result()) == [True] * 3
    prefill.withdraw("request", soon())
    waited(decode, keys)


def test_two_nodes_do_not_wait_for_each_other(pair):
    """What a node waits for itself does not count as what its clients compute."""
    node, _, prefill, decode = pair
    keys = [chunk.key for chunk in chunks(3)]
    prefill.announce("request", "prefill", keys, 60.0, soon())
    assert list(decode.seek(keys, "decode", PREFILL, soon())) == [True] * 3
    node.served.announced.published(keys[:1])  # it is said to be here, and is not
    assert list(prefill.seek(keys[:1], "prefill", DECODE, soon())) == [False]
    waited(decode, keys[:1])
    assert list(decode.expect(keys, "decode", now())) == [False, True, True]
    prefill.withdraw("request", soon())
    waited(decode, keys)


@pytest.mark.thorough
@pytest.mark.parametrize("end", ["client", "node", "hangs"])
def test_nobody_waits_for_who_is_gone(tmp_path, end):
    with nodes(tmp_path, NodeProcess) as (node, other), ExitStack() as opened:
        prefill, decode = (opened.enter_context(closing(n.client())) for n in (node, other))
        some = chunks(3)
        keys = [chunk.key for chunk in some]
        prefill.announce("request", "prefill", keys, 600.0, soon())
        assert list(decode.seek(keys, "decode", PREFILL, soon())) == [True] * 3
        put(prefill, some[:1])
        waited(decode, keys[:1])
        {"client": prefill.close, "node": node.kill, "hangs": node.freeze}[end]()
        waited(decode, keys)
        assert holds(decode, some) == 1
        if end == "node":
            node.start()
        other.at_rest()
