"""Chunks that their store has and cannot read: not promised twice, written anew, one line each.

The store itself is well, and stays in use. A store of which nothing can be read costs nothing.
"""

import logging

import pytest

from dict_store import ScanningStore
from hexkv.contracts.kit.cases import each
from hexkv.core.io.rules import LaneRules
from hexkv.core.tiers.rules import TierRules
from hexkv.core.tiers.stores.key_faults import FIRST_BAR
from hexkv.core.tiers.tier import TierPlan
from hexkv.plugins.composition.observing import degraded
from hexkv.ports import (
    Change,
    CounterName,
    Failed,
    Hit,
    Reason,
    StoreError,
    StoreFull,
    StoreUnreachable,
)
from layered import FULL, PROMPT, computed, empty, memory, settled
from rigging import CHUNK, FRAME, tier


class Sectors(ScanningStore):
    """A store of which some chunks cannot be read. A write puts a chunk elsewhere."""

    def __init__(self, medium=None, error=None):
        super().__init__({} if medium is None else medium)
        self.bad = set()
        self.mends = True
        self.deletes = True
        self.error = StoreError("Input/output error: /cache/5") if error is None else error

    def read_one(self, index, key, sink, deadline):
        if key in self.bad:
            return Failed(self.error)
        return super().read_one(index, key, sink, deadline)

    def read_range(self, key, start, into, deadline):
        if key in self.bad:
            return Failed(self.error)
        into[:] = self.medium[key][start : start + len(into)]
        return Hit(len(into))

    def publish(self, name, frame):
        if self.mends:
            self.bad.discard(name)
        super().publish(name, frame)

    def forget(self, key):
        if not self.deletes:
            raise StoreError("may not be deleted")
        return super().forget(key)


class Foreign(Sectors):
    """Its index is not ours."""

    scan = None


def unindexed(name, store, **rules):
    return TierPlan(name, store, rules=TierRules(**rules))


PLANS = {"indexed": tier, "unindexed": unindexed}


@pytest.fixture(params=PLANS)
def kind(request):
    return PLANS[request.param]


@pytest.fixture
def over(rig, kind):
    """An engine over one tier that holds the prompt, of which one chunk cannot be read."""

    def make(store, number=5, **rules):
        r = rig([kind("disk", store, **rules)])
        r.engine.store(PROMPT, computed())
        assert r.engine.flush()
        r.bad = r.engine.chunk_keys(PROMPT)[number]
        store.bad.add(r.bad)
        return r

    return make


def got(r, tokens=PROMPT):
    window = empty(tokens)
    hit = r.engine.retrieve(tokens, window).hit_tokens
    assert window.agrees(computed(tokens), hit)
    return hit


def by_layers(r):
    window = empty()
    with r.engine.retrieve_layers(PROMPT, window) as layers:
        for _ in layers:
            pass
        hit = layers.result().hit_tokens
    assert window.agrees(computed(), hit)
    return hit


@pytest.mark.parametrize("load", [got, by_layers])
def test_a_chunk_is_promised_in_vain_to_one_request_and_stored_anew(over, load):
    store = Sectors()
    r = over(store)
    assert r.engine.lookup(PROMPT).hit_tokens == FULL
    assert load(r) == 5 * CHUNK
    assert r.engine.lookup(PROMPT).hit_tokens == 5 * CHUNK
    assert load(r) == 5 * CHUNK
    report = r.engine.store(PROMPT, computed())
    assert (report.stored_tokens, report.present_tokens) == (CHUNK, FULL - CHUNK)
    assert r.engine.lookup(PROMPT).hit_tokens == load(r) == FULL
    assert settled(r)


def test_without_retries_the_second_request_is_the_last(over):
    r = over(Sectors(), retries=0)
    for expected in (FULL, FULL, 5 * CHUNK):
        assert r.engine.lookup(PROMPT).hit_tokens == expected
        assert got(r) == 5 * CHUNK


def test_a_hot_chunk_keeps_no_healthy_tier_off(over):
    r = over(Sectors(), 0, retries=0)
    other = PROMPT[::-1]
    r.engine.store(other, computed(other))
    alone = PROMPT[:CHUNK]
    for _ in range(20):
        assert got(r, alone) == 0
        r.clock.advance(FIRST_BAR)  # and it is tried again
    assert r.engine.health().tiers[0].reading == "closed"
    assert got(r, other) == FULL


def test_a_tier_of_which_nothing_can_be_read_is_left_alone_and_loses_nothing(over):
    store = Sectors()
    r = over(store)
    store.bad.update(store.medium)
    for number in range(10):
        got(r, PROMPT[: (number + 1) * CHUNK])
    assert r.engine.lookup(PROMPT).hit_tokens == 0
    assert len(store.medium) == 10
    store.bad.clear()
    r.clock.advance(FIRST_BAR)
    assert got(r) == FULL


@pytest.mark.parametrize("chunks", [1, 10])
def test_a_store_that_is_not_reached_is_switched_off_and_back_at_once(over, chunks):
    store = Sectors(error=StoreUnreachable("no connection"))
    r = over(store)
    store.contains = lambda keys, deadline: (_ for _ in ()).throw(store.error)
    store.bad.update(store.medium)
    for _ in range(6):
        got(r, PROMPT[: chunks * CHUNK])
    del store.contains
    store.bad.clear()
    r.clock.advance(10.0)
    assert got(r) == FULL


def test_what_cannot_be_read_nor_deleted_is_written_in_its_place_or_left_alone(over, kind):
    store = Sectors()
    r = over(store)
    store.deletes = False
    got(r)
    r.engine.store(PROMPT, computed())
    assert r.engine.flush()
    if kind is unindexed:
        assert got(r) == FULL
    else:  # the store still has it, and what is to be deleted is not written
        assert r.engine.lookup(PROMPT).hit_tokens == got(r) == 5 * CHUNK
        assert r.tiers["disk"].index.used == len(store.medium) * FRAME
        store.deletes = True
        r.engine.store(PROMPT, computed())
        assert got(r) == FULL
    assert r.tiers["disk"].index.used in (0, len(store.medium) * FRAME)


def test_what_cannot_be_read_after_it_was_written_anew_is_not_promised(over):
    store = Sectors()
    r = over(store)
    store.mends = False
    got(r)
    for _ in range(3):
        report = r.engine.store(PROMPT, computed())
        assert report.stored_tokens == 0
        assert r.engine.lookup(PROMPT).hit_tokens == got(r) == 5 * CHUNK
    writes = r.telemetry.total(CounterName.STORED)
    r.engine.store(PROMPT, computed())
    assert r.telemetry.total(CounterName.STORED) == writes, "it is left alone meanwhile"
    store.mends = True
    r.clock.advance(10 * FIRST_BAR)
    r.engine.store(PROMPT, computed())
    assert got(r) == FULL


def test_what_was_mended_by_hand_is_back_after_a_while(over):
    store = Sectors(error=StoreUnreachable("permission denied"))
    r = over(store)
    for _ in range(3):
        got(r, PROMPT[: 5 * CHUNK])
        got(r)
    assert r.bad in store.medium, "what may only be out of reach is not removed"
    store.bad.clear()
    r.clock.advance(FIRST_BAR)
    assert got(r) == FULL


def test_memory_writes_it_anew_when_its_prompt_comes_again(rig):
    store = Sectors()
    r = rig([memory(), tier("disk", store)])
    r.engine.store(PROMPT, computed())
    assert r.engine.flush()
    bad = r.engine.chunk_keys(PROMPT)[5]
    store.bad.add(bad)
    r.engine.clear(PROMPT, tiers=["memory"])
    assert got(r) == 5 * CHUNK
    assert bad not in store.medium
    r.engine.store(PROMPT, computed())
    assert r.engine.flush()
    assert bad in store.medium
    r.engine.clear(PROMPT, tiers=["memory"])
    assert got(r) == FULL


def test_event_sinks_get_its_removal_and_its_return(over):
    r = over(Sectors())
    seen = len(r.events.events)
    got(r)
    r.engine.store(PROMPT, computed())
    changes = [(event.change, list(event.keys)) for event in r.events.events[seen:]]
    assert changes == [(Change.REMOVED, [r.bad]), (Change.STORED, [r.bad])]


@pytest.mark.parametrize("load", [got, by_layers])
def test_event_sinks_get_the_return_of_what_was_mended_by_hand(over, load):
    store = Sectors(error=StoreUnreachable("permission denied"))
    r = over(store)
    seen = len(r.events.events)
    for _ in range(3):
        got(r, PROMPT[: 5 * CHUNK])
        got(r)
    store.bad.clear()
    r.clock.advance(FIRST_BAR)
    assert load(r) == load(r) == FULL
    assert settled(r)
    changes = [(event.change, list(event.keys)) for event in r.events.events[seen:]]
    assert changes == [(Change.REMOVED, [r.bad]), (Change.STORED, [r.bad])]


def test_explain_has_the_reason_of_its_absence(over):
    r = over(Sectors())
    got(r)
    why = r.engine.explain(PROMPT).diverges.tiers["disk"]
    assert why.reason is Reason.READ_FAILED
    assert "Input/output error" in why.detail


def test_one_line_names_the_file_and_health_has_the_error(over, caplog):
    r = over(Sectors())
    r.clock.advance(5.0)
    for _ in range(10):
        got(r)
    lines = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    first, unused = (
        "StoreError: Input/output error: /cache/5",
        "it is not used until it is written anew",
    )
    assert [line for line in lines if "read failed" in line] == [
        f"tier disk: read failed: {first} (1 of 10 chunks)"
    ]
    assert [line for line in lines if "not used until" in line] == [
        f"tier disk: two reads of a chunk failed: {first}; {unused}: {r.bad.hex()}"
    ]
    health = r.engine.health().tiers[0]
    assert health.last_error == f"read: {first}"
    assert health.last_error_time == r.clock.wall()
    assert health.failures == 2


@each("room", [0, 4])
def test_a_tier_that_is_full_is_two_lines_and_never_off(rig, caplog, room):
    """Also where it takes chunks for others that it evicts, as on a disk that others fill."""

    class Small(ScanningStore):
        room = 0

        def write_one(self, item):
            full = len(self.medium) >= self.room
            return Failed(StoreFull("no room")) if full else super().write_one(item)

    caplog.clear()
    store = Small({})
    store.room = room
    r = rig([tier("disk", store)])
    for number in range(8):
        tokens = PROMPT[number * CHUNK :][: 2 * CHUNK]
        r.engine.store(tokens, computed(tokens))
    health = r.engine.health()
    assert (health.tiers[0].writing, health.tiers[0].full) == ("closed", True)
    assert health.tiers[0].chunks == room
    assert list(degraded(health)) == ["tier disk has less room than its budget"]
    store.room = 64
    r.engine.store(PROMPT, computed())
    assert not r.engine.health().tiers[0].full
    assert [line for line in caplog.messages if "write" in line] == [
        "tier disk: write failed: StoreFull: no room (2 of 2 chunks)",
        f"tier disk: write works again after 0 s and {16 - room} failures",
    ]


@each(
    "error, lines",
    [
        (
            StoreError("an I/O error"),
            ["write failed", "writing is switched off", "writing is back"],
        ),
        (StoreUnreachable("refused"), ["does not answer", "is switched off", "is back"]),
    ],
)
def test_a_breaker_is_one_line_when_it_opens_and_one_when_it_closes(rig, caplog, error, lines):
    class Down(ScanningStore):
        down = True

        def write_one(self, item):
            return Failed(error) if self.down else super().write_one(item)

    caplog.clear()
    store = Down({})
    r = rig([tier("disk", store, retries=0, lane=LaneRules(workers=1))])
    for number in range(8):
        tokens = PROMPT[number * CHUNK :][: 2 * CHUNK]
        r.engine.store(tokens, computed(tokens))
    store.down = False
    r.clock.advance(3.0)
    r.engine.store(PROMPT, computed())
    assert r.engine.flush()
    failed, off, *ends = caplog.messages
    (back,) = (line for line in ends if "works again" not in line)
    assert failed.startswith(f"tier disk: {lines[0]}: ")
    assert failed.endswith(f"{type(error).__name__}: {error} (2 of 2 chunks)")
    why = "several calls in a row failed"
    assert off == f"tier disk: {lines[1]} for 1 s, later for up to 10 s: {why}"
    assert back.startswith(f"tier disk: {lines[2]} after 3 s")
