"""A cluster of three: every chunk on its node, and what happens when nodes move or die."""

import pytest
from redis.crc import key_slot

from hexkv.adapters.net.address import Address
from hexkv.adapters.redis._routes import slots_of
from hexkv.contracts.doubles import ListSink, chunk_key, deadline
from hexkv.contracts.kit.cases import each
from hexkv.plugins.clock import SystemClock
from hexkv.ports import Failed, Hit, Item, Miss, Stored, StoreError, StoreUnreachable, namespace_of
from processes import held_port
from servers.redis_servers import SHARES, Keys, cluster, until_it_serves

KEYS = [chunk_key(str(i)) for i in range(60)]
ITEMS = [Item(key, memoryview(key * 100)) for key in KEYS]
WELL = [Stored(4800)] * len(KEYS)


@pytest.fixture(scope="module")
def nodes(tmp_path_factory):
    """Three nodes that have met, each with a third of the slots, all of which go on alone."""
    with cluster(tmp_path_factory.mktemp, SHARES) as nodes:
        yield nodes


@pytest.fixture(autouse=True)
def clean(nodes, prefix):
    """No chunk of one test is there in the next, wherever it was moved to."""
    yield
    for node in nodes:
        with node.admin() as admin:
            Keys(admin, prefix).clear()


@pytest.fixture
def store(nodes, open_store):
    others = (nodes[1].address, nodes[2].address)
    return open_store(nodes[0].url, topology="cluster", others=others)


def node_of(key, prefix):
    slot = key_slot(prefix.encode() + key)
    return next(i for i, share in enumerate(SHARES) if slot in share)


def test_a_clear_deletes_a_namespace_from_every_node_and_leaves_others(store):
    stay = [chunk_key(str(i), "another model") for i in range(60)]
    assert store.write(ITEMS, deadline()) == WELL
    assert store.write([Item(key, memoryview(key)) for key in stay], deadline())
    assert store.clear_prefix(namespace_of(KEYS[0]), deadline()) == len(KEYS)
    assert not any(store.contains(KEYS, deadline()))
    assert all(store.contains(stay, deadline()))
    assert store.clear_prefix(b"", deadline()) == len(stay)


def test_every_chunk_is_on_the_node_of_its_slot(nodes, store, prefix):
    assert store.write(ITEMS, deadline()) == WELL
    assert store.read(KEYS, ListSink(), deadline()) == [Hit(4800)] * len(KEYS)
    assert list(store.contains(KEYS, deadline())) == [True] * len(KEYS)
    for i, node in enumerate(nodes):
        with node.admin() as admin:
            mine = {key for key in KEYS if node_of(key, prefix) == i}
            assert mine
            assert Keys(admin, prefix).keys() == mine
    assert list(store.delete(KEYS, deadline())) == [True] * len(KEYS)
    assert list(store.delete(KEYS, deadline())) == [False] * len(KEYS)


def test_one_living_node_is_enough_to_find_the_others(nodes, open_store):
    dead = f"redis://127.0.0.1:{held_port()}"
    store = open_store(dead, topology="cluster", others=(nodes[1].address,))
    assert store.write(ITEMS, deadline()) == WELL


def test_a_dead_node_costs_its_own_chunks_until_it_is_back_and_a_late_one_raises(
    nodes, store, prefix
):
    store.write(ITEMS, deadline())
    dead = [node_of(key, prefix) == 1 for key in KEYS]
    assert any(dead)
    nodes[1].kill()
    for _ in range(2):
        sink = ListSink()
        outcomes = store.read(KEYS, sink, deadline())
        for i, outcome in enumerate(outcomes):
            if dead[i]:
                assert isinstance(outcome, Failed)
                assert isinstance(outcome.error, StoreUnreachable)
            else:
                assert outcome == Hit(4800)
                assert sink.data(i) == KEYS[i] * 100
        assert list(store.contains(KEYS, deadline())) == [not it for it in dead]
    with pytest.raises(StoreUnreachable):
        store.delete(KEYS, deadline())
    nodes[1].start()
    until_it_serves(nodes[1])
    assert store.read(KEYS, ListSink(), deadline()) == [Miss()] * len(KEYS)
    assert store.write(ITEMS, deadline()) == WELL
    for late in nodes:  # chunks of a late node are not absent
        late.freeze()
        try:
            with pytest.raises(StoreUnreachable):
                store.contains(KEYS, deadline(0.3, SystemClock()))
        finally:
            late.thaw()
    assert list(store.contains(KEYS, deadline())) == [True] * len(KEYS)


def test_a_slot_that_moved_is_followed(nodes, store, prefix):
    key = next(key for key in KEYS if node_of(key, prefix) == 0)
    slot = key_slot(prefix.encode() + key)
    store.contains(KEYS, deadline())  # it knows the slots as they were
    with nodes[0].admin() as source, nodes[2].admin() as target:

        def move(of, to):
            here, there = (one.execute_command("CLUSTER MYID") for one in (of, to))
            # Only who imports a slot claims it by a new epoch, which all nodes believe. Else an
            # older word of the other node that is still on its way might take it back.
            to.execute_command("CLUSTER SETSLOT", slot, "IMPORTING", here)
            for one in (to, of):
                one.execute_command("CLUSTER SETSLOT", slot, "NODE", there)

        move(source, target)
        assert store.write(ITEMS, deadline()) == WELL
        assert store.read(KEYS, ListSink(), deadline()) == [Hit(4800)] * len(KEYS)
        assert target.get(prefix.encode() + key) == key * 100
        assert list(store.delete(KEYS, deadline())) == [True] * len(KEYS)
        move(target, source)


def test_a_slot_on_its_way_is_asked_for_on_both_sides(nodes, store, prefix):
    key = next(key for key in KEYS if node_of(key, prefix) == 0)
    slot = key_slot(prefix.encode() + key)
    with nodes[0].admin() as source, nodes[2].admin() as target:
        here, there = (one.execute_command("CLUSTER MYID") for one in (source, target))
        target.execute_command("CLUSTER SETSLOT", slot, "IMPORTING", here)
        source.execute_command("CLUSTER SETSLOT", slot, "MIGRATING", there)
        assert store.read([key], ListSink(), deadline()) == [Miss()]
        assert store.write(ITEMS, deadline()) == WELL
        assert source.execute_command("CLUSTER COUNTKEYSINSLOT", slot) == 0
        assert store.read(KEYS, ListSink(), deadline()) == [Hit(4800)] * len(KEYS)
        assert list(store.contains([key], deadline())) == [True]
        assert list(store.delete([key], deadline())) == [True]
        # Another chunk may have the same slot: while that is on its way, both sides delete it.
        assert list(store.delete(KEYS, deadline())) == [other != key for other in KEYS]
        for one in (source, target):
            one.execute_command("CLUSTER SETSLOT", slot, "STABLE")


def test_a_node_of_a_cluster_says_so_to_who_takes_it_for_a_single_server(nodes, open_store):
    store = open_store(nodes[0].url)
    with pytest.raises(StoreError, match="one of a cluster"):
        store.contains(KEYS, deadline())


def test_a_single_server_is_no_cluster(valkey, open_store):
    store = open_store(valkey.url, topology="cluster")
    with pytest.raises(StoreError, match="cluster support disabled"):
        store.contains(KEYS, deadline())


@each(
    "reply",
    [
        b"OK",
        None,
        [1],
        [[0, 1]],
        [[0, 1, [b"host"]]],
        [[0, 99999, [b"h", 1]]],
        [[0, 1, [b"h", b"x"]]],
    ],
)
def test_slots_that_are_none_are_refused(reply):
    with pytest.raises(StoreError):
        slots_of(reply, Address("asked", 1))


def test_a_node_without_a_name_is_the_one_that_was_asked():
    slots = slots_of([[0, 16383, [b"", 7000, b"id"]]], Address("asked", 1))
    assert slots == [Address("asked", 7000)] * 16384
