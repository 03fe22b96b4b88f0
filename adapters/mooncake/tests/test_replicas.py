"""Chunks that are kept on several nodes, and what becomes of them when one goes."""

from contextlib import ExitStack

import pytest

from hexkv.contracts.doubles import ListSink, chunk_key
from hexkv.contracts.kit.waiting import promptly
from hexkv.ports import Failed, Hit, Item, Miss, Stored, StoreUnreachable
from processes import PATIENCE, until
from servers.mooncake_servers import Master, Node, soon, until_stored

pytestmark = pytest.mark.thorough

TTL = 6.0
"""Seconds of silence after which these masters forget a node; by default it is ten.

More than a busy machine keeps a node that lives from saying so.
"""

FRAMES = {chunk_key(f"chunk {i}"): bytes([i]) * (50_000 + i) for i in range(8)}


@pytest.fixture
def cluster(secluded, tmp_path):
    """A master, and nodes by the number."""
    with ExitStack() as running:
        master = running.enter_context(Master(tmp_path, f"--client_ttl={TTL:.0f}"))

        def cluster(nodes):
            return master, [running.enter_context(Node(tmp_path, master)) for _ in range(nodes)]

        yield cluster


def nodes_of_each(store, prefix):
    """On which nodes each chunk is."""
    names = [prefix + key.hex() for key in FRAMES]
    with store._connection.client(PATIENCE) as client:
        found = client.batch_get_replica_desc(names)
    return [
        {replica.get_memory_descriptor().buffer_descriptor.transport_endpoint for replica in one}
        for one in map(found.get, names)
    ]


def read_once(store):
    """How many of the chunks are there, none of them with a wrong byte; no others' outcomes."""
    sink = ListSink()
    outcomes = store.read(list(FRAMES), sink, soon())
    for i, (outcome, frame) in enumerate(zip(outcomes, FRAMES.values(), strict=True)):
        if outcome == Hit(len(frame)):
            right = sink.data(i) == frame
            assert right, "a hit, with bytes that nobody put there"
        elif outcome != Miss():
            assert isinstance(outcome, Failed)
            assert isinstance(outcome.error, StoreUnreachable)
    return sum(isinstance(outcome, Hit) for outcome in outcomes)


def test_what_is_on_two_nodes_outlives_one(cluster, open_store, prefix):
    master, nodes = cluster(2)
    store = open_store(master.address, replicas=2)
    until_stored(store, FRAMES)
    both, *others = nodes_of_each(store, prefix)
    assert len(both) == 2
    assert others == [both] * len(others)
    nodes[0].kill()
    # The library reads the replica that the master names first. While that is one on the
    # dead node the chunk fails, or is missed in the moment in which the master finds out.
    promptly(lambda: until(lambda: read_once(store) == len(FRAMES)), TTL + 10.0)
    assert list(store.contains(list(FRAMES), soon())) == [True] * len(FRAMES)
    until(lambda: all(len(left) == 1 for left in nodes_of_each(store, prefix)))
    assert read_once(store) == len(FRAMES)


def test_what_is_on_one_node_goes_with_it(cluster, open_store, prefix):
    master, nodes = cluster(2)
    store = open_store(master.address)
    until_stored(store, FRAMES)
    places = [place for (place,) in nodes_of_each(store, prefix)]
    (doomed,) = (node for node in nodes if node.has(places[0]))  # the master draws lots
    doomed.kill()
    left = len(FRAMES) - places.count(places[0])
    until(lambda: sum(store.contains(list(FRAMES), soon())) == read_once(store) == left)


def test_a_write_to_a_node_that_died_is_stored_whole_or_not_at_all(cluster, open_store):
    master, nodes = cluster(2)
    store = open_store(master.address, replicas=2)
    until_stored(store, {chunk_key("before"): b"frame"})
    nodes[0].kill()
    items = [Item(key, memoryview(frame)) for key, frame in FRAMES.items()]

    def stored():
        outcomes = store.write(items, soon())
        found = store.contains(list(FRAMES), soon())
        for outcome, is_there in zip(outcomes, found, strict=True):
            assert isinstance(outcome, Stored) or not is_there
        read_once(store)
        return all(isinstance(outcome, Stored) for outcome in outcomes)

    until(stored)
    assert read_once(store) == len(FRAMES)


def test_more_replicas_than_nodes_are_as_many_as_there_are_nodes(cluster, open_store, prefix):
    master, _ = cluster(2)
    store = open_store(master.address, replicas=5)
    until_stored(store, FRAMES)
    assert [len(found) for found in nodes_of_each(store, prefix)] == [2] * len(FRAMES)
    assert read_once(store) == len(FRAMES)
