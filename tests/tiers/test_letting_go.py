"""Chunks that several threads let go of at once: what is deleted is what the index let go of."""

from itertools import product
from threading import Event, Thread

import pytest

from dict_store import CapableStore, DictStore, ScanningStore
from hexkv.contracts.doubles import ManualClock
from hexkv.contracts.kit.cases import each
from hexkv.core.tiers.write.clearing import clear, forget
from hexkv.core.tiers.write.filling import fill_index
from hexkv.ports import KEY_BYTES, ChunkKey, Deadline, Item, StoreUnreachable, namespace_of
from processes import until
from rigging import FRAME, attach, tier

KEY = ChunkKey(bytes(range(32)))
FOREVER = Deadline(ManualClock(), float("inf"))


class Meanwhile(DictStore):
    """While it deletes, something else happens, once: at first, or when they are gone."""

    first = happens = None
    deleted = 0

    def delete(self, keys, deadline):
        self.deleted += len(keys)
        first, self.first = self.first, None
        if first:
            first()
        done = super().delete(keys, deadline)
        happens, self.happens = self.happens, None
        if happens:
            happens()
        return done


@pytest.fixture
def held(rig):
    """A tier that holds one chunk."""
    held = rig([tier("disk", Meanwhile({}))]).tiers["disk"]
    write(held)
    return held


def write(held):
    reservation = held.index.reserve([KEY], [FRAME])
    assert reservation.keys == [KEY]
    held.write([Item(KEY, memoryview(bytes(FRAME)))], [], FOREVER)
    held.index.commit([KEY])


def stored(held):
    return held.store.contains([KEY], FOREVER)[0]


def test_a_delete_that_comes_late_leaves_what_was_stored_anew(held):
    gone = held.index.discard([KEY])
    held.delete(gone, FOREVER)
    write(held)
    assert held.delete(gone, FOREVER)
    assert stored(held)
    assert held.index.used == FRAME


def test_a_chunk_that_is_being_written_is_not_deleted(held):
    gone = held.index.discard([KEY])
    held.delete(gone, FOREVER)
    reservation = held.index.reserve([KEY], [FRAME])
    before = held.store.deleted
    held.delete(gone, FOREVER)
    assert held.store.deleted == before
    held.index.abort(reservation.keys)


def test_a_chunk_is_not_written_while_a_late_delete_of_it_is_under_way(held):
    gone = held.index.discard([KEY])
    held.delete(gone, FOREVER)
    tried = []
    held.store.first = lambda: tried.append(held.index.reserve([KEY], [FRAME]))
    assert held.delete(gone, FOREVER)
    assert [(reservation.keys, reservation.busy) for reservation in tried] == [([], [KEY])]
    write(held)
    assert stored(held)


def test_what_was_found_before_a_delete_is_not_taken_for_somebody_elses_chunk(rig):
    class Shared(Meanwhile):
        shared = True

    held = rig([tier("disk", Shared({}))]).tiers["disk"]
    turn = held.deleting.turn
    held.adopt_foreign([(KEY, FRAME)], 0.0, turn)
    assert held.index.contains([KEY]) == [True]
    during = []
    held.store.first = lambda: during.append(held.deleting.turn)
    forget(held, [KEY], FOREVER)
    for before in (turn, *during):
        held.adopt_foreign([(KEY, FRAME)], 0.0, before)
        assert held.index.contains([KEY]) == [False]


@each("way", ["one by one", "the whole namespace"])
def test_what_is_deleted_while_the_store_is_listed_is_not_found_there(rig, way):
    class Listed(CapableStore):
        def scan(self):
            yield from list(super().scan())
            (held,) = r.engine._chunks.stack.tiers
            if way == "one by one":
                forget(held, [key], FOREVER)
            else:
                clear(held, [namespace_of(key)], FOREVER)

    key = ChunkKey(bytes(range(KEY_BYTES)))
    store = Listed({key: bytes(FRAME)})
    r = rig([])
    attach(r.engine, tier("disk", store))
    assert r.engine.flush()
    (held,) = r.engine._chunks.stack.tiers
    assert not held.indexing
    assert (store.medium, held.index.keys(), held.index.used) == ({}, [], 0)


WHOLE = ChunkKey(bytes(range(KEY_BYTES)))
"""One that stores list."""


class Unlisted(ScanningStore):
    """Cannot be listed at first. Others may store there, too."""

    shared = True
    fails = True

    def scan(self):
        if self.fails:
            raise StoreUnreachable("not yet")
        return super().scan()

    def clear_prefix(self, prefix, deadline):
        return sum(self.delete([key for key in self.medium if key.startswith(prefix)], deadline))


def unlisted(rig):
    """A tier whose store has a chunk of an earlier life, and was not listed yet; and its stack."""
    stack = rig([]).engine._chunks.stack
    held = stack.attach(tier("disk", Unlisted({WHOLE: bytes(FRAME)})))
    assert held.flush(FOREVER)
    held.store.fails = False
    assert held.indexing
    return held, stack


def learn(held, stack):
    assert fill_index(stack.runtime, held, stack.writer.evict)


def meet(held, stack):
    """As after a read of a chunk that somebody else has stored."""
    held.adopt_foreign([(WHOLE, FRAME)], 0.0, held.deleting.turn)


@each("way, found", product(["one by one", "by the store", "by its list"], [learn, meet]))
def test_what_is_found_while_a_clear_is_under_way_goes_with_the_rest(rig, way, found):
    """By another thread, once the index has let go of what it knew."""
    held, stack = unlisted(rig)
    waits, finding = Event(), []
    wait, let_go = held.deleting._wait, held.let_go

    def waited(condition, ready, deadline):
        if not ready():
            waits.set()
        return wait(condition, ready, deadline)

    def then_found(keys):
        gone = let_go(keys)
        finding.append(Thread(target=found, args=(held, stack)))
        finding[0].start()
        until(lambda: waits.is_set() or not finding[0].is_alive())
        return gone

    held.deleting._wait, held.let_go = waited, then_found
    if way == "by its list":
        held.calls.clearing = None
    if way == "one by one":
        done = stack.forget([WHOLE], [held], FOREVER)
    else:
        done = stack.clear([namespace_of(WHOLE)], [held], FOREVER)
    finding[0].join()
    assert done.complete
    assert (held.store.medium, held.index.keys(), held.index.used) == ({}, [], 0)


def test_two_that_delete_one_chunk_ask_the_store_once(held):
    gone = held.index.discard([KEY])
    held.put_off(gone)
    held.store.happens = lambda: held.sweep(FOREVER)
    assert held.delete(gone, FOREVER)
    assert held.store.deleted == 1
    assert not stored(held)
    assert held.index.used == 0


def test_what_is_being_replaced_is_neither_cleared_nor_set_aside(held):
    with held.replacing(KEY, "somebody") as mine:
        assert mine
        assert held.let_go([KEY]) == []
        assert forget(held, [KEY], FOREVER).why
        held.quarantine([KEY], FOREVER)
        assert stored(held)
        assert held.index.used == FRAME
    assert forget(held, [KEY], FOREVER).keys == [KEY]
    assert not stored(held)
