"""Numbers come from outcomes: they add up, whatever was asked for and whatever failed."""

import json
import re
from dataclasses import replace
from pathlib import Path
from threading import Thread

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from configured import PATIENT
from dict_store import ScanningStore
from hexkv.adapters.local.disk import DiskStore
from hexkv.contracts.doubles import ManualClock
from hexkv.contracts.doubles.heap_kv import HeapKV
from hexkv.contracts.kit.cases import each
from hexkv.core.io.breaker import BreakerRules
from hexkv.core.io.rules import LaneRules
from hexkv.plugins.composition.compose import build
from hexkv.plugins.configuration.config import load
from hexkv.plugins.memory.store import MemoryStore
from hexkv.plugins.observing.telemetry import BUCKETS, Totals, families, render
from hexkv.ports import CounterName, HistogramName, ParallelSlice, StoreUnreachable, Telemetry
from rigging import CHUNK, FRAME, LAYOUT, NAMESPACE, rigging, tier

PROMPT = list(range(6 * CHUNK))


def computed(tokens):
    return HeapKV(LAYOUT, len(tokens)).compute(tokens)


def memory(**options):
    return tier("memory", MemoryStore(ManualClock()), **options)


class Moody(ScanningStore):
    """Fails, or damages what it reads, as it is told."""

    mood = "well"

    def read(self, keys, sink, deadline):
        if self.mood == "unreachable":
            raise StoreUnreachable("gone")
        return super().read(keys, sink, deadline)

    def fill(self, room, frame):
        super().fill(room, frame)
        if self.mood == "damaging":
            room[-1] ^= 1

    def write(self, items, deadline):
        if self.mood == "unreachable":
            raise StoreUnreachable("gone")
        return super().write(items, deadline)


def sample(text):
    """Every series of the text format with its value; checks the format on the way."""
    found, family = {}, ""
    for line in text.splitlines():
        if line.startswith("# "):
            _, what, family, *_ = line.split(" ")
            assert what in ("HELP", "TYPE")
            continue
        series, value = line.rsplit(" ", 1)
        name = re.fullmatch(r"([a-z_]+)(\{(?:[a-z]+=\"(?:[^\"\\\n]|\\.)*\",?)+\})?", series)[1]
        assert name.startswith(family)
        assert series not in found
        series = re.sub(r',?role="\w+"', "", series).replace("{,", "{").replace("{}", "")
        found[series] = float(value)
    return found


PIECES = st.lists(st.sampled_from([1, 2, 3]), min_size=1, max_size=5)
MOODS = st.sampled_from(["well", "well", "unreachable", "damaging"])
STEPS = st.lists(
    st.tuples(st.sampled_from(["store", "retrieve", "clear", "prefetch"]), PIECES, MOODS),
    max_size=12,
)


@settings(max_examples=40, deadline=None)
@given(STEPS)
def test_every_chunk_asked_for_is_a_hit_or_a_miss(steps):
    with rigging() as build_rig:
        store = Moody({})
        rules = LaneRules(breaker=BreakerRules(failures=3))
        tiers = [memory(budget=3 * FRAME), tier("remote", store, 8 * FRAME, lane=rules)]
        r = build_rig(tiers)
        asked = by_reports = loaded = 0
        for call, pieces, mood in steps:
            store.mood = mood
            tokens = [piece for piece in pieces for _ in range(CHUNK)] + [9]
            if call == "retrieve":
                got = r.engine.retrieve(tokens, HeapKV(LAYOUT, len(tokens)), lookup_id="x")
                asked += len(pieces)
                by_reports += got.loaded_tokens // CHUNK + sum(got.misses.values())
                loaded += got.loaded_tokens // CHUNK
            elif call == "store":
                r.engine.store(tokens, computed(tokens))
            elif call == "prefetch":
                r.engine.prefetch("x", tokens)
            else:
                r.engine.clear(tokens)
            r.clock.advance(1)
        total = r.telemetry.total
        assert total(CounterName.LOOKUPS) == asked == by_reports
        assert total(CounterName.HITS) + total(CounterName.MISSES) == asked
        assert total(CounterName.HITS) == loaded
        hit, missed = total(CounterName.HIT_TOKENS), total(CounterName.MISSED_TOKENS)
        assert total(CounterName.LOOKUP_TOKENS) == asked * CHUNK == hit + missed
        assert total(CounterName.WASTED_BYTES) <= total(CounterName.READ_BYTES)
        r.engine.cancel("x")
        assert r.at_rest()
        for name, place in r.tiers.items():
            gone = total(CounterName.EVICTED, tier=name) + total(CounterName.CORRUPT, tier=name)
            assert len(place.index) <= total(CounterName.STORED, tier=name) - gone


def test_what_happens_on_each_tier_is_counted_there(rig, tmp_path):
    r = rig([memory(budget=6 * FRAME), tier("disk", DiskStore(tmp_path))])
    r.engine.store(PROMPT, computed(PROMPT))
    other = [n + 1 for n in PROMPT]
    r.engine.store(other, computed(other))
    r.engine.retrieve(PROMPT, HeapKV(LAYOUT, len(PROMPT)))
    total = r.telemetry.total
    assert total(CounterName.HITS, tier="disk") == 6
    assert total(CounterName.READ_BYTES, tier="disk") == 6 * FRAME
    assert total(CounterName.WRITTEN_BYTES, tier="disk") == 12 * FRAME
    assert total(CounterName.EVICTED, tier="memory") >= 6
    timed = {(histogram, where) for histogram, where, _ in r.telemetry.durations}
    assert {(HistogramName.READ, "disk"), (HistogramName.WRITE, "disk")} <= timed
    assert {(HistogramName.RETRIEVE, ""), (HistogramName.STORE, "")} <= timed


def test_what_gives_way_to_chunks_of_another_engine_is_counted_too(rig, tmp_path):
    theirs = rig([tier("disk", DiskStore(tmp_path))])
    ours = rig([tier("disk", DiskStore(tmp_path), budget=4 * FRAME)])
    assert ours.engine.flush()  # indexed: what it learns from now on, its reads have met
    theirs.engine.store(PROMPT, computed(PROMPT))
    assert ours.engine.retrieve(PROMPT, HeapKV(LAYOUT, len(PROMPT))).hit_tokens >= 4 * CHUNK
    evicted = ours.telemetry.total(CounterName.EVICTED, tier="disk")
    assert evicted >= 2
    assert len(ours.tiers["disk"].index) == 6 - evicted


def test_an_opened_breaker_and_retries_are_counted_by_tier(rig):
    store = Moody({})
    rules = LaneRules(breaker=BreakerRules(failures=1))
    r = rig([tier("remote", store, lane=rules)])
    r.engine.store(PROMPT, computed(PROMPT))
    store.mood = "unreachable"
    r.engine.retrieve(PROMPT, HeapKV(LAYOUT, len(PROMPT)))
    assert r.telemetry.total(CounterName.BREAKER_OPENED, tier="remote") == 1
    assert r.telemetry.total(CounterName.RETRIES, tier="remote") >= 1


@each("reason", ["no room", "failed", "not copied"])
def test_what_is_dropped_is_counted_by_reason(rig, reason):
    class Dead(HeapKV):
        def gather(self, spans, layers=None):
            raise RuntimeError("no device")

    store = Moody({})
    if reason == "failed":
        store.mood = "unreachable"
    budget = 2 * FRAME if reason == "no room" else 1 << 30
    r = rig([tier("remote", store, budget)])
    r.engine.store(PROMPT, (Dead if reason == "not copied" else HeapKV)(LAYOUT, len(PROMPT)))
    assert r.telemetry.counts[CounterName.DROPPED, "remote", reason] == (
        4 if budget < 1 << 30 else 6
    )


def test_an_engine_adds_up_unless_it_is_told_otherwise(tmp_path):
    tiers = [{"store": "memory"}, {"store": "disk", "settings": {"root": str(tmp_path)}}]
    wanted = {"chunk": {"size": CHUNK}, "pool": {"bytes": "1MiB"}, "tiers": tiers}
    loaded = load(None, {}, wanted | {"deadlines": PATIENT})
    with build(loaded, NAMESPACE) as engine:
        engine.store(PROMPT, computed(PROMPT))
        engine.retrieve([*PROMPT, *PROMPT], HeapKV(LAYOUT, 2 * len(PROMPT)))
        assert isinstance(engine.telemetry, Totals)
        shown = sample(render(engine))
        assert shown['hexkv_hits_total{tier="memory"}'] == 6
        assert shown['hexkv_misses_total{reason="absent"}'] == 6
        assert shown["hexkv_lookups_total"] == 12
        assert shown['hexkv_tier_chunks{tier="disk"}'] == 6
        assert shown['hexkv_tier_used_bytes{tier="disk"}'] == 6 * FRAME
        assert shown['hexkv_tier_breaker{tier="disk",lane="read"}'] == 0
        assert shown['hexkv_tier_queued_bytes{tier="disk"}'] == 0
        assert shown["hexkv_leases"] == 6
        assert shown["hexkv_open"] == 1
        assert shown['hexkv_write_seconds_count{tier="disk"}'] >= 1
    quiet = Quiet()
    with build(loaded, NAMESPACE, telemetry=quiet) as engine:
        assert engine.telemetry is quiet
        assert "hexkv_hits_total" not in render(engine)
        assert sample(render(engine, Totals()))["hexkv_open"] == 1


COUNTS = st.tuples(
    st.sampled_from(CounterName), st.integers(0, 9), st.text(max_size=5), st.text(max_size=5)
)


@given(st.lists(COUNTS, max_size=30))
def test_totals_are_sums_and_any_name_survives_the_text_format(told):
    totals = Totals()
    for counter, amount, where, reason in told:
        totals.count(counter, amount, tier=where, reason=reason)
    for counter in CounterName:
        assert totals.total(counter) == sum(n for c, n, _, _ in told if c == counter)
    text = totals.prometheus()
    lines = [line for line in text.split("\n") if line and not line.startswith("#")]
    assert len(lines) == len({(c, where, reason) for c, _, where, reason in told})
    assert sum(int(line.rsplit(" ", 1)[1]) for line in lines) == sum(n for _, n, _, _ in told)
    assert json.loads(json.dumps(totals.snapshot())) == totals.snapshot()


@given(st.lists(st.floats(0, 100), min_size=1, max_size=30))
def test_durations_are_counted_in_the_class_they_belong_to(seconds):
    totals = Totals()
    for duration in seconds:
        totals.observe(HistogramName.READ, duration, tier="disk")
    (histogram,) = totals.snapshot()["histograms"]
    assert histogram["count"] == len(seconds)
    assert histogram["sum"] == pytest.approx(sum(seconds))
    shown = sample(totals.prometheus())
    for bound in BUCKETS:
        below = sum(duration <= bound for duration in seconds)
        assert shown[f'hexkv_read_seconds_bucket{{tier="disk",le="{bound}"}}'] == below
    assert shown['hexkv_read_seconds_bucket{tier="disk",le="+Inf"}'] == len(seconds)
    assert shown['hexkv_read_seconds_count{tier="disk"}'] == len(seconds)


def test_no_count_is_lost_between_threads():
    totals = Totals()

    def work():
        for _ in range(2000):
            totals.count(CounterName.HITS, 1, tier="memory")
            totals.observe(HistogramName.READ, 0.01)

    threads = [Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert totals.total(CounterName.HITS, tier="memory", reason="") == 8000
    assert totals.snapshot()["histograms"][0]["count"] == 8000


class Quiet:
    """A host's own telemetry, which gives nothing back."""

    def count(self, counter, amount, *, tier="", reason=""):
        pass

    def observe(self, histogram, seconds, *, tier=""):
        pass


def test_totals_are_telemetry():
    assert isinstance(Totals(), Telemetry)


def test_the_reference_lists_every_metric_with_its_labels(tmp_path):
    text = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()
    listed = re.findall(r"^\| `(hexkv_[a-z_]+)` \| [^|]+ \|([^|]*)\|", text, re.MULTILINE)
    told = {name: set(re.findall(r"`([a-z]+)`", labels)) for name, labels in listed}
    tenants = [{"name": "acme", "salt": "x" * 32, "quotas": {"memory": "512KiB"}}]
    wanted = {"tenants": tenants, "compute_rate": 1000.0, "chunk": {"size": CHUNK}}
    with build(load(None, {}, wanted | {"pool": {"bytes": "1MiB"}}), NAMESPACE) as engine:
        shown = {}
        for family in families({"one": engine}):
            labels = {name for sample in family.samples for name, _ in sample.labels}
            shown[family.name] = labels - {"engine", "rank", "role", "le"}
    assert {name: labels & shown[name] for name, labels in told.items()} == told
    assert shown.keys() == told.keys()
    assert all(labels - {"tier", "reason"} <= told[name] for name, labels in shown.items())


def test_a_fresh_engine_has_every_series_and_several_are_told_apart(tmp_path):
    tiers = [{"store": "memory"}, {"store": "disk", "settings": {"root": str(tmp_path)}}]
    loaded = load(None, {}, {"pool": {"bytes": "1MiB"}, "chunk": {"size": CHUNK}, "tiers": tiers})
    second = replace(NAMESPACE, model="other", parallel=ParallelSlice(1, 2))
    with build(loaded, NAMESPACE) as one, build(loaded, second) as other:
        alone = sample(render(one))
        for name in ("hits", "hit_tokens", "stored", "evicted", "read_bytes", "wasted_bytes"):
            assert alone[f'hexkv_{name}_total{{tier="disk"}}'] == 0
        assert alone['hexkv_misses_total{reason="tier off"}'] == 0
        assert alone['hexkv_dropped_total{tier="disk",reason="queue full"}'] == 0
        assert alone["hexkv_retrieve_seconds_count"] == 0
        assert alone['hexkv_read_seconds_bucket{tier="disk",le="0.0001"}'] == 0
        (info,) = [name for name in alone if name.startswith("hexkv_engine_info")]
        assert 'model="toy"' in info
        assert 'revision="1"' in info
        other.store(PROMPT, computed(PROMPT))
        text = render({"chat": one, "code": other})
        both = sample(text)
        assert both['hexkv_stored_tokens_total{engine="chat",tier="memory"}'] == 0
        label = '{engine="code",rank="1",tier="memory"}'
        assert both[f"hexkv_stored_tokens_total{label}"] == len(PROMPT)
        assert linted(text) == linted(render(one)) == []
        assert len(set(re.findall("^# TYPE.*", text, re.MULTILINE))) == text.count("# TYPE")


UNITS = {"milliseconds", "minutes", "hours", "kilobytes", "megabytes", "percent", "ratio"}


def linted(text):
    """What ``promtool check metrics`` complains about, by the rules that it documents."""
    wrong = []
    kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))
    helps = dict(re.findall(r"^# HELP (\S+) (.+)$", text, re.MULTILINE))
    for name, kind in kinds.items():
        wrong += [f"{name}: no help"] if name not in helps else []
        totals = name.endswith("_total")
        wrong += [f"{name}: _total is for counters"] * (totals != (kind == "counter"))
        wrong += [f"{name}: {unit}" for unit in UNITS & set(name.split("_"))]
        wrong += [f"{name}: kept for histograms"] * bool(re.search("_(count|sum|bucket)$", name))
        wrong += [f"{name}: characters"] * (not re.fullmatch("[a-z][a-z0-9_]*", name))
    for series in re.findall(r"^[a-z].* ", text, re.MULTILINE):
        family = re.match(r"[a-z0-9_]+", series)[0]
        base = re.sub("_(bucket|sum|count)$", "", family)
        wrong += [f"{series}: no family"] * (family not in kinds and kinds.get(base) != "histogram")
    return wrong
