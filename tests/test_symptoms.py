"""Each row of ``docs/symptoms.md``: the fault is made, and the page's three steps name it.

1. The number: the reason that grew, in the metrics. 2. The reason: a row of the page. 3. The place:
``hexkv admin ADDRESS explain``, ``status`` or ``tiers``, ``hexkv explain``, or the log.
"""

import json
import random
import re
from contextlib import closing
from pathlib import Path
from threading import Event, Thread

import pytest

from administration import short_folder
from dict_store import DictStore, ScanningStore
from hexkv.adapters.admin.access import SocketAccess
from hexkv.adapters.admin.settings import SocketSettings
from hexkv.adapters.local.disk import DiskStore
from hexkv.contracts.doubles import ManualClock
from hexkv.contracts.doubles.heap_kv import HeapKV
from hexkv.core.engine.engine import Deadlines
from hexkv.core.io.breaker import BreakerRules
from hexkv.core.io.rules import LaneRules
from hexkv.core.tiers.index.indexes import Unindexed
from hexkv.core.tiers.rules import Writes
from hexkv.core.tiers.tier import TierPlan
from hexkv.plugins.__main__ import main
from hexkv.plugins.clock import SystemClock
from hexkv.plugins.memory.store import MemoryStore
from hexkv.plugins.observing.telemetry import Totals, render
from hexkv.ports import Miss, Reason, StoreUnreachable
from processes import until
from rigging import CHUNK, FRAME, LAYOUT, tier
from vllm_frames import damage, frames

PAGE = Path(__file__).parent.parent / "docs" / "symptoms.md"
PROMPT = random.Random(3).choices(range(50_000), k=6 * CHUNK)
OTHER = random.Random(4).choices(range(50_000), k=6 * CHUNK)
CASES = {}
LOG = "`ranks that load together are not connected`"
ELSEWHERE = {
    ("The hit rate fell", "`queue full`"): "tests/test_waiting_in_line.py",
    (
        "The hit rate fell",
        "`tier off` in vLLM, of every chunk",
    ): "adapters/vllm/e2e/test_weights.py",
    ("The hit rate fell", "`unknown serde`"): "tests/test_moving.py",
    ("The hit rate fell", "`closed`"): "core/tests/test_scheduler.py",
    ("KV is not stored", "`closed`"): "core/tests/test_scheduler.py",
    ("It is slow", "the first requests after a start are slower"): "benchmarks/memory.py",
    ("It is slow", "stores delay the engine"): "benchmarks/vllm_ttft.py",
    ("It is slow", "a node is slower than an own pool"): "benchmarks/node.py",
    (
        "It is slow",
        f"loads wait some seconds, once, and the log has {LOG}",
    ): "adapters/vllm/tests/test_collective_machines.py",
}
"""Rows whose fault takes a host, or a measurement: the file that has it."""


def symptoms(section):
    """The first cells of the rows of a section's table."""
    text = PAGE.read_text().partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    found = [re.split(r"\s*\|\s*", line.strip("| "))[0] for line in lines]
    return [found[at] for at in range(len(found)) if "---" not in found[at : at + 2]]


SECTIONS = ("The hit rate fell", "KV is not stored", "A process does not start", "It is slow")


def row(section, symptom):
    """Register what makes the fault of a row and follows the page to it."""

    def keep(case):
        CASES[section, symptom] = case
        return case

    return keep


def misses(reason):
    return row("The hit rate fell", reason)


def drops(reason):
    return row("KV is not stored", reason)


def test_each_row_has_a_case_and_each_case_a_row():
    shown = {(section, symptom) for section in SECTIONS for symptom in symptoms(section)}
    assert shown == {*CASES, *ELSEWHERE}
    assert not [file for file in ELSEWHERE.values() if not (PAGE.parents[1] / file).exists()]


class Faulty(ScanningStore):
    """Fails, answers or takes its time as a case wants."""

    reads = writes = scans = True
    answer = None
    spend = None
    """Takes the clock's time, if it is given."""

    def __init__(self):
        super().__init__({})
        self.go_on, self.begun = Event(), Event()
        self.go_on.set()

    def _come_in(self, works):
        self.begun.set()
        assert self.go_on.wait(60)
        if self.spend is not None:
            self.spend()
        if not works:
            raise StoreUnreachable("the cable is out")

    def scan(self):
        self._come_in(self.scans)
        yield from super().scan()

    def read(self, keys, sink, deadline):
        self._come_in(self.reads)
        if self.answer is not None:
            return [Miss(self.answer)] * len(keys)
        return super().read(keys, sink, deadline)

    def write(self, items, deadline):
        self._come_in(self.writes)
        return super().write(items, deadline)


class Place:
    """An engine that an operator looks into, and a prompt's life in it."""

    def __init__(self, rig, folder, tmp_path, capsys, caplog):
        self.folder, self.path, self.log = folder, tmp_path, caplog
        self.clock = ManualClock()
        self.disk = tmp_path / "disk"
        self._rig, self._said = rig, capsys
        self.address = str(folder / "admin.sock")
        self.known = True
        """True if the namespace is known whatever the tiers do, by a prompt that is not read."""

    def open(self, *tiers, **options):
        known = [tier("known", MemoryStore(self.clock), reads=False, promotes=False)]
        tiers = [*tiers, *(known if self.known else [])]
        self.rig = self._rig(tiers, clock=self.clock, telemetry=Totals(), **options)
        self.engine = self.rig.engine
        server = SocketAccess(SocketSettings(self.address), SystemClock()).serve(self.engine.admin)
        self.engine.at_close(server.close)
        return self

    def store(self, tokens=PROMPT, wait=True, window=HeapKV):
        full = HeapKV(LAYOUT, len(tokens)).compute(tokens)
        if window is not HeapKV:
            full = window(LAYOUT, len(tokens))
        return self.engine.store(tokens, full, wait=wait)

    def load(self, tokens=PROMPT, window=HeapKV):
        return self.engine.retrieve(tokens, window(LAYOUT, len(tokens)))

    def counts(self, family):
        """Step 1: a metric's sums by reason."""
        found = {}
        for labels, value in re.findall(family + r"\{(.*?)\} (\S+)", render(self.engine)):
            reason = re.search(r'reason="(.*?)"', labels)[1]
            found[reason] = found.get(reason, 0) + float(value)
        return {reason: value for reason, value in found.items() if value}

    def missed(self, reason):
        assert reason in self.counts("hexkv_missed_tokens_total")

    def dropped(self, reason):
        assert reason in self.counts("hexkv_dropped_total")

    def admin(self, *words, code=0):
        assert main(["admin", self.address, *words]) == code
        return self._said.readouterr().out

    def command(self, *words, code=0):
        assert main([*words]) == code
        out, err = self._said.readouterr()
        return out + err

    def explain(self, why, tokens=PROMPT, code=0):
        """Step 3: the first chunk that misses, and why."""
        prompt = self.path / "prompt.json"
        prompt.write_text(json.dumps(tokens))
        assert "explain --tokens prompt.json" in PAGE.read_text()
        assert why in self.admin("explain", "--tokens", str(prompt), code=code)


@pytest.fixture
def place(rig, tmp_path, capsys, caplog):
    with short_folder() as folder:
        yield Place(rig, folder, tmp_path, capsys, caplog)


def memory(place, **rules):
    return tier("memory", MemoryStore(place.clock), **rules)


def disk(place, **rules):
    return tier("disk", DiskStore(place.disk), **rules)


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
    assert "tier remote: reading is off" in place.log.text
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
    loading = Thread(target=place.load)
    loading.start()
    until(lambda: place.clock.advance(1.0) or not loading.is_alive())
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


class BadDevice(HeapKV):
    """Memory of an engine that is not there now."""

    def scatter(self, spans, layers=None):
        raise RuntimeError("device lost")

    gather = scatter


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
    assert "tier remote: scan failed: StoreUnreachable: the cable is out" in place.log.text
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
    assert "tier remote: writing is off" in place.log.text


@drops("`timed out`")
def writes_late(place):
    store = Faulty()
    place.open(tier("remote", store, lane=LaneRules(workers=1), retries=0))
    assert place.engine.flush(60)
    store.go_on.clear()
    store.begun.clear()
    place.store(wait=False)
    assert store.begun.wait(60)
    storing = Thread(target=place.store, args=(OTHER,))
    storing.start()
    until(lambda: place.clock.advance(1.0) or not storing.is_alive())
    store.go_on.set()
    assert place.engine.flush(60)
    place.dropped("timed out")


@drops("`write failed`, `dropped`")
def in_explain(place):
    store = Faulty()
    place.open(tier("remote", store, retries=0)).store(OTHER)
    store.writes = False
    place.store()
    place.explain("remote: write failed")


@row("A process does not start", "`no store adapter`")
def no_adapter(place):
    said = start(place, "tiers: [{store: dsik}]")
    assert "no store adapter" in said
    assert "dsik" in said
    assert "disk" in place.command("adapters")


@row("A process does not start", "`tiers[n].settings.root`")
def no_root(place):
    place.disk.mkdir()
    (place.disk / "writing").symlink_to(place.path)
    said = start(place, f"tiers: [{{store: disk, settings: {{root: {place.disk}}}}}]")
    assert "tiers[0].settings.root" in said


@row("A process does not start", "`... is in use` (`StoreBusy`)")
def in_use(place):
    with closing(DiskStore(place.disk, exclusive=True)):
        said = start(place, f"tiers: [{{store: disk, settings: {{root: {place.disk}}}}}]")
    assert "in use" in said


@row("A process does not start", "any, with `node`")
def node_with_tiers(place):
    said = start(place, "node: /run/hexkv/node.sock\ntiers: [{store: memory}]")
    assert "tiers" in said
    assert "node" in said


def start(place, text):
    """What a check of a configuration says, as a start does, with stores opened."""
    file = place.path / "hexkv.yaml"
    file.write_text(text)
    return place.command("config", "check", str(file), "--open", code=1)


@row("It is slow", "first token late although everything hit")
def who_served(place):
    place.open(memory(place, budget=6 * FRAME), disk(place)).store()
    place.store(OTHER)
    assert place.load().tiers == {"disk": 6 * CHUNK}


@pytest.mark.thorough
@pytest.mark.parametrize("symptom", CASES, ids=" ".join)
def test_the_fault_of_each_row_is_found_as_the_page_describes(place, symptom):
    CASES[symptom](place)
