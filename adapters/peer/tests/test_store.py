"""The store alone: whom it asks, and what it makes of their answers."""

import pytest

from hexkv.contracts.channel.blocks import frame_of
from hexkv.contracts.doubles import ListSink, chunk_key
from hexkv.ports import (
    PAGE,
    Failed,
    Hit,
    Item,
    Miss,
    Reason,
    StoreError,
    StoreUnreachable,
)
from peers.holders import CALM, QUICK, SIZE, Holders
from peers.peering import eventually


@pytest.fixture
def two():
    with Holders("ada", "bob") as two:
        yield two
        for holder in two.by_name.values():
            eventually(lambda holder=holder: not holder.lent())


def read(store, holders, *keys, seconds=60.0):
    sink = ListSink()
    outcomes = store.read(keys, sink, holders.soon(seconds))
    return outcomes, [
        sink.data(i) if isinstance(it, Hit) else None for i, it in enumerate(outcomes)
    ]


def test_frames_and_ranges_come_from_those_who_have_them(two):
    store = two.store()
    one, other, both = two.put("1", "ada"), two.put("2", "bob"), two.put("3", "ada", "bob")
    missing = chunk_key("missing")
    assert store.contains([one, other, both, missing], two.soon()) == [True, True, True, False]
    outcomes, data = read(store, two, one, missing, other, both)
    assert outcomes == [Hit(SIZE), Miss(), Hit(SIZE), Hit(SIZE)]
    assert data == [frame_of("1"), None, frame_of("2"), frame_of("3")]
    into = memoryview(bytearray(PAGE))
    assert store.read_range(other, PAGE, into, two.soon()) == Hit(PAGE)
    assert into == frame_of("2")[PAGE : 2 * PAGE]
    assert store.read_range(missing, 0, into, two.soon()) == Miss()
    assert store.read_range(other, SIZE, into, two.soon()) == Miss()
    assert two["ada"].reads() + two["bob"].reads() <= 6


def test_nothing_is_written_or_deleted(two):
    store = two.store()
    key = two.put("1", "ada")
    (outcome,) = store.write([Item(key, memoryview(frame_of("1")))], two.soon())
    assert isinstance(outcome, Failed)
    with pytest.raises(StoreError):
        store.delete([key], two.soon())
    assert read(store, two, key)[0] == [Hit(SIZE)]
    store.close()
    with pytest.raises(StoreError):
        store.contains([key], two.soon())


@pytest.mark.parametrize("fault", ["cut", "stall", "slow"])
def test_another_holder_is_asked_where_one_fails_and_that_is_left_alone_for_a_while(two, fault):
    store = two.store(QUICK)
    both, alone = two.put("1", "ada", "bob"), two.put("2", "ada")
    proxy = two["ada"].proxy
    {"cut": proxy.cut, "stall": proxy.stall, "slow": lambda: proxy.bandwidth(1.0)}[fault]()
    deadline = two.soon()
    sink = ListSink()
    first, second = store.read([both, alone], sink, deadline)
    assert first == Hit(SIZE)
    assert sink.data(0) == frame_of("1")
    assert isinstance(second, Failed)
    assert not deadline.expired
    assert isinstance(second.error, StoreUnreachable)
    proxy.mend()
    eventually(lambda: store.contains([alone], two.soon()) == [True])
    eventually(lambda: read(store, two, alone)[1] == [frame_of("2")])


def test_a_former_life_of_a_peer_is_not_asked(two):
    store = two.store()
    key = two.put("1", "bob")
    bob = two["bob"]
    bob.channel.close()
    two.directory.leave(bob.member, two.soon())
    stale = type(bob.member)("ada", 9, two["ada"].proxy.address)  # who serves there is older
    two.directory.join(stale, [[key]], two.soon())
    two["ada"].source.put("1")
    (outcome,), _ = read(store, two, key)
    assert isinstance(outcome, Failed)
    assert two["ada"].reads() == 0


def test_who_is_said_to_have_everything_costs_three_questions_and_a_miss():
    with Holders(*"abcdefgh") as many:
        store = many.store(directory=SaysAllHaveAll(many))
        key = chunk_key("nobody's")
        assert store.contains([key], many.soon()) == [True]
        assert read(store, many, key)[0] == [Miss()]
        reads = [holder.reads() for holder in many.by_name.values()]
        assert sorted(reads) == [0] * 5 + [1] * 3
        assert read(store, many, key)[0] == [Miss()]  # of others, for these have it not
        assert max(holder.reads() for holder in many.by_name.values()) == 1


class SaysAllHaveAll:
    """A directory that is wrong, and names who asks, too."""

    def __init__(self, holders):
        self.holders = holders

    def locate(self, keys, deadline):
        members = self.holders.directory.members(deadline)
        return [[*members, self.holders.own]] * len(keys)


def test_a_directory_that_does_not_answer_is_an_error_of_the_tier(two):
    class Silent:
        def locate(self, keys, deadline):
            raise StoreUnreachable("nobody answers")

    store = two.store(directory=Silent())
    for call in (store.contains, lambda keys, until: store.read(keys, ListSink(), until)):
        with pytest.raises(StoreUnreachable):
            call([chunk_key("1")], two.soon())


def test_who_has_no_memory_for_a_chunk_asks_nobody_else(two):
    class Full(ListSink):
        def room(self, index, size):
            return None

    store = two.store()
    key = two.put("1", "ada", "bob")
    assert store.read([key], Full(), two.soon()) == [Miss(Reason.REFUSED)]
    assert two["ada"].reads() + two["bob"].reads() == 1


def test_who_gave_damaged_frames_is_left_alone(two):
    store = two.store(CALM)
    key = two.put("1", "ada")
    assert read(store, two, key)[0] == [Hit(SIZE)]
    store.quarantine([key], two.soon())
    assert store.contains([key], two.soon()) == [False]
    eventually(lambda: store.contains([key], two.soon()) == [True])
