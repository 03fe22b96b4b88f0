"""Each row of ``docs/symptoms.md``: the fault is made, and the page's three steps name it.

1. The number: the reason that grew, in the metrics. 2. The reason: a row of the page. 3. The place:
``hexkv admin ADDRESS explain``, ``status`` or ``tiers``, ``hexkv explain``, or the log.
"""

import json
import random
from contextlib import closing

import pytest

from dict_store import DictStore
from engines.vllm.vllm_frames import damage, frames
from hexkv.adapters.local.disk import DiskStore
from hexkv.core.engine.engine import Deadlines
from hexkv.core.io.breaker import BreakerRules
from hexkv.core.io.rules import LaneRules
from hexkv.core.tiers.index.indexes import Unindexed
from hexkv.core.tiers.rules import Writes
from hexkv.core.tiers.tier import TierPlan
from hexkv.ports import Reason
from operating.administration import short_folder
from operating.symptoms import (
    CASES,
    OTHER,
    PAGE,
    PROMPT,
    SECTIONS,
    BadDevice,
    Faulty,
    Place,
    disk,
    drops,
    memory,
    misses,
    row,
    symptoms,
)
from rigging import CHUNK, FRAME, tier

LOG = "`ranks that load together are not connected`"
ELSEWHERE = {
    ("The hit rate fell", "`queue full`"): "tests/loading/test_waiting_in_line.py",
    (
        "The hit rate fell",
        "`tier off` in vLLM, of every chunk",
    ): "adapters/vllm/e2e/test_weights.py",
    ("The hit rate fell", "`unknown serde`"): "tests/tiers/test_moving.py",
    ("The hit rate fell", "`closed`"): "core/tests/test_scheduler.py",
    ("KV is not stored", "`closed`"): "core/tests/test_scheduler.py",
    ("It is slow", "the first requests after a start are slower"): "benchmarks/calls/memory.py",
    ("It is slow", "stores delay the engine"): "benchmarks/engines/vllm_ttft.py",
    ("It is slow", "a node is slower than an own pool"): "benchmarks/fleet/node.py",
    (
        "It is slow",
        f"loads wait some seconds, once, and the log has {LOG}",
    ): "adapters/vllm/tests/test_collective_machines.py",
}
"""Rows whose fault takes a host, or a measurement: the file that has it."""


def test_each_row_has_a_case_and_each_case_a_row():
    shown = {(section, symptom) for section in SECTIONS for symptom in symptoms(section)}
    assert shown == {*CASES, *ELSEWHERE}
    assert not [file for file in ELSEWHERE.values() if not (PAGE.parents[1] / file).exists()]


@pytest.fixture
def place(rig, tmp_path, capsys, caplog):
    with short_folder() as folder:
        yield Place(rig, folder, tmp_path, capsys, caplog)


ONCE = {"lane": LaneRules(breaker=BreakerRules(failures=1)), "retries": 0}


@misses("`absent`")
def absent(place):
    place.open(memory(place)).store(OTHER)
    place.load()
    place.missed("absent")
    place.explain("never stored")


@misses("`never stored`")
def another_namespace(place):
    place.open(disk(place)).store()
    prompt, config = place.path / "prompt.json", place.path / "other.yaml"
    prompt.write_text(json.dumps(PROMPT))
    config.write_text(f"model: {{name: toy, salt: other}}\nchunk: {{size: {CHUNK}}}\n")
    said = place.command(
        "explain", str(prompt), "--dir", str(place.disk), "--config", str(config), code=1
    )
    assert "salt" in said


@misses("`explain` has `no namespace is known`")
def no_namespace(place):
    store = Faulty()
    place.known = False
    place.open(tier("remote", store)).store()
    store.reads = False
    place.explain("tier remote cannot be read: read: StoreUnreachable: the cable is out", code=1)


@misses("`absent`, of a shared store")
def emptied_before(place):
    medium = {}
    place.open(TierPlan("remote", DictStore(medium), Unindexed()))
    place.load()
    place.missed("absent")
    assert len(medium) == 0


@misses("`evicted`")
def evicted(place):
    place.open(memory(place, budget=6 * FRAME)).store()
    place.store(OTHER)
    place.load()
    place.missed("evicted")
    place.explain("memory: evicted")
    held, _ = json.loads(place.admin("tiers", "--json"))
    assert held["health"]["used_bytes"] == held["health"]["budget_bytes"]


@misses("`expired`")
def expired(place):
    store = Faulty()
    place.open(tier("remote", store)).store()
    store.answer = Reason.EXPIRED
    place.load()
    place.missed("expired")
    place.explain("remote: expired")


@misses("`lost`")
def lost(place):
    medium = {}
    place.open(TierPlan("redis", DictStore(medium), Unindexed()), disk(place)).store()
    medium.clear()
    for file in frames(place.disk):
        file.unlink()
    place.load()
    place.missed("lost")
    place.explain("redis: lost; disk: lost")


@misses("`behind a miss`")
def behind(place):
    place.open(disk(place)).store()
    second = place.engine.chunk_keys(PROMPT)[1].hex()
    damage(next(file for file in frames(place.disk) if second.startswith(file.stem)))
    place.load()
    place.missed("behind a miss")
    place.missed("corrupt")
    place.explain(f"tokens {CHUNK} to {2 * CHUNK}: disk: corrupt")


@misses("`too short`")
def too_short(place):
    place.open(memory(place)).store()
    place.explain("too short", PROMPT[: CHUNK - 1])


@misses("`slower than computing`")
def slower(place):
    store = Faulty()
    place.open(tier("link", store), compute_rate=1000.0).store()
    store.spend = lambda: place.clock.advance(5.0)
    place.load()
    place.load()
    place.missed("slower than computing")
    place.explain("link: slower than computing")


@misses("`tier off`")
def off(place):
    store = Faulty()
    place.open(tier("remote", store, **ONCE)).store()
    store.reads = False
    for _ in range(2):
        place.load()
    place.missed("tier off")
    place.explain("remote: tier off")
    assert "tier remote: is switched off for 1 s" in place.log.text
    assert "the cable is out" in place.log.text
    assert "breaker open" in place.admin("status")


@misses("`timed out`, `no answer`")
def late(place):
    store = Faulty()
    place.open(tier("remote", store)).store()
    store.spend = lambda: place.clock.advance(100.0)
    place.load()
    assert {"timed out", "no answer"} & {*place.counts("hexkv_missed_tokens_total")}


@misses("`refused`")
def refused(place):
    place.open(disk(place), deadlines=Deadlines(retrieve=0.01)).store()
    pool = place.rig.pool
    leases = pool.lease_run([FRAME // 2] * pool.slots, "a leak", place.engine.admin._until(60.0))
    place.while_time_passes(place.load)
    place.missed("refused")
    assert f"a leak: {pool.slots} leases" in place.admin("status")
    for lease in leases:
        lease.release()


@misses("`indexing`")
def indexing(place):
    store = Faulty()
    store.go_on.clear()
    place.open(tier("remote", store))
    assert '"indexing": true' in place.admin("tiers", "--json")
    store.go_on.set()


@misses("`corrupt`")
def corrupt(place):
    place.open(disk(place)).store()
    first = min(frames(place.disk))
    damage(first)
    said = place.command("inspect", str(place.disk), "--verify", code=1)
    assert "checksum" in said or "damaged" in said
    place.load()
    place.missed("corrupt")
    assert "tier disk: verification failed" in place.log.text
    assert first.name[:16] in place.log.text


@misses("`read failed`, `failed`")
def failed(place):
    store = Faulty()
    place.open(tier("remote", store, retries=0)).store()
    store.reads = False
    place.load()
    place.missed("failed")
    place.explain("remote: read failed")
    assert "the cable is out" in place.log.text
    assert "remote: last error" in place.admin("status")


@misses("`device`")
def device(place):
    place.open(memory(place)).store()
    place.load(window=BadDevice)
    place.missed("device")
    assert "device lost" in place.log.text


@drops("`no room`")
def no_room(place):
    place.open(memory(place, budget=6 * FRAME)).store()
    prompt = place.path / "prompt.json"
    prompt.write_text(json.dumps(PROMPT))
    place.admin("pin", "demo", "--tokens", str(prompt))
    place.store(OTHER)
    place.dropped("no room")
    assert "demo: 12 chunks pinned" in place.admin("status")


@drops("`queue full`")
def writes_queue(place):
    store = Faulty()
    place.open(tier("remote", store, lane=LaneRules(workers=1, queue_bytes=1)))
    assert place.engine.flush(60)
    store.go_on.clear()
    store.begun.clear()
    place.store(wait=False)
    assert store.begun.wait(60)
    place.store(OTHER, wait=False)
    store.go_on.set()
    place.dropped("queue full")


@drops("`unlikely`")
def unlikely(place):
    below = tier("below", Faulty(), 6 * FRAME, writes=Writes.EVICTED, min_reuse=0.3)
    place.known = False  # it would fill the pool
    place.open(memory(place, budget=6 * FRAME), below)
    assert place.engine.flush(60)
    for seed in range(60):
        place.store(random.Random(seed).choices(range(50_000), k=6 * CHUNK))
        assert place.engine.flush(60)
    place.dropped("unlikely")


@drops("`not copied`")
def not_copied(place):
    place.open(memory(place)).store(window=BadDevice)
    place.dropped("not copied")


@drops("`not indexed`")
def not_indexed(place):
    store = Faulty()
    store.scans = False
    place.open(tier("remote", store)).store()
    place.dropped("not indexed")
    assert (
        "tier remote: does not answer: scan: StoreUnreachable: the cable is out" in place.log.text
    )
    assert "remote: last error" in place.admin("status")


@drops("`failed`")
def write_failed(place):
    store = Faulty()
    place.open(tier("remote", store, retries=0))
    store.writes = False
    place.store()
    place.dropped("failed")
    assert "the cable is out" in place.log.text
    assert "remote: last error" in place.admin("status")


@drops("`tier off`")
def writes_off(place):
    store = Faulty()
    place.open(tier("remote", store, **ONCE))
    store.writes = False
    for tokens in (PROMPT, OTHER):
        place.store(tokens)
    place.dropped("tier off")
    assert "tier remote: is switched off for 1 s" in place.log.text


@drops("`timed out`")
def writes_late(place):
    store = Faulty()
    place.open(tier("remote", store, lane=LaneRules(workers=1), retries=0))
    assert place.engine.flush(60)
    for event in (store.go_on, store.begun):
        event.clear()
    place.store(wait=False)
    assert store.begun.wait(60)
    place.while_time_passes(place.store, OTHER)
    store.go_on.set()  # by now the tier may be off, for a time
    place.while_time_passes(place.engine.flush, 1e6)
    place.dropped("timed out")
    place.while_time_passes(place.engine.close)


@drops("`write failed`, `dropped`")
def in_explain(place):
    store = Faulty()
    place.open(tier("remote", store, retries=0)).store(OTHER)
    store.writes = False
    place.store()
    place.explain("remote: write failed")


@row("A process does not start", "`no store adapter`")
def no_adapter(place):
    said = place.start("tiers: [{store: dsik}]")
    assert "no store adapter" in said
    assert "dsik" in said
    assert "disk" in place.command("adapters")


@row("A process does not start", "`tiers[n].settings.root`")
def no_root(place):
    place.disk.mkdir()
    (place.disk / "writing").symlink_to(place.path)
    said = place.start(f"tiers: [{{store: disk, settings: {{root: {place.disk}}}}}]")
    assert "tiers[0].settings.root" in said


@row("A process does not start", "`... is in use` (`StoreBusy`)")
def in_use(place):
    with closing(DiskStore(place.disk, exclusive=True)):
        said = place.start(f"tiers: [{{store: disk, settings: {{root: {place.disk}}}}}]")
    assert "in use" in said


@row("A process does not start", "any, with `node`")
def node_with_tiers(place):
    said = place.start("node: /run/hexkv/node.sock\ntiers: [{store: memory}]")
    assert "tiers" in said
    assert "node" in said


@row("It is slow", "first token late although everything hit")
def who_served(place):
    place.open(memory(place, budget=6 * FRAME), disk(place)).store()
    place.store(OTHER)
    assert place.load().tiers == {"disk": 6 * CHUNK}


@pytest.mark.thorough
@pytest.mark.parametrize("symptom", CASES, ids=" ".join)
def test_the_fault_of_each_row_is_found_as_the_page_describes(place, symptom):
    CASES[symptom](place)
