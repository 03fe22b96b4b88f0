"""Where the time of a request went: as its answer says it, and as a picture shows it."""

import json
import re

import pytest

from configured import PATIENT
from dict_store import ScanningStore
from hexkv.adapters.admin.api import connect
from hexkv.adapters.admin.chrome_trace import chrome_trace
from hexkv.contracts.doubles import ManualClock
from hexkv.contracts.doubles.heap_kv import HeapKV
from hexkv.core.runtime import StepRing
from hexkv.plugins.__main__ import main
from hexkv.plugins.composition.compose import build
from hexkv.plugins.configuration.config import load
from hexkv.plugins.memory.store import MemoryStore
from rigging import CHUNK, LAYOUT, NAMESPACE, tier

PROMPT = list(range(6 * CHUNK))
SLOW = 0.2


def computed():
    return HeapKV(LAYOUT, len(PROMPT)).compute(PROMPT)


def parts_of(events, call):
    return [e for e in events if e["args"].get("call") == call and "chunk" not in e["args"]]


@pytest.mark.parametrize("slow", ["memory", "remote"])
def test_the_step_that_is_slow_is_named_and_the_parts_add_up(rig, slow, monkeypatch):
    memory, remote = MemoryStore(ManualClock()), ScanningStore({})
    r = rig([tier("memory", memory), tier("remote", remote)])
    assert r.engine.flush()
    assert r.engine.store(PROMPT, computed()).slowest.name
    assert r.engine.clear(PROMPT, tiers=["memory"] if slow == "remote" else ["remote"]).complete
    target = remote if slow == "remote" else memory
    name = "read" if slow == "remote" else "get_lease"
    real = getattr(target, name)

    def late(*given):
        r.clock.advance(SLOW)
        return real(*given)

    monkeypatch.setattr(target, name, late)
    got = r.engine.retrieve(PROMPT, HeapKV(LAYOUT, len(PROMPT)))
    assert got.hit_tokens == len(PROMPT)
    assert (got.slowest.name, got.slowest.tier) == ("read", slow)
    assert got.slowest.seconds >= SLOW
    monkeypatch.undo()
    explained = r.engine.explain(PROMPT)
    assert explained.slowest == got.slowest
    assert f"read ({slow})" in str(explained)
    shown = json.loads(json.dumps(chrome_trace(r.engine.steps())))
    events = [event for event in shown["traceEvents"] if event["ph"] == "X"]
    (whole,) = [e for e in events if e["name"] == "retrieve"]
    parts = parts_of(events, whole["args"]["call"])
    assert sum(part["dur"] for part in parts) == pytest.approx(whole["dur"], rel=0.05)
    assert max(parts, key=lambda part: part["dur"])["name"] == f"read {slow}"
    assert whole["args"]["slowest"] == f"read {slow}"
    assert all(
        whole["ts"] <= part["ts"] + 0.01
        and part["ts"] + part["dur"] <= whole["ts"] + whole["dur"] + 0.01
        for part in parts
    )
    rows = {e["args"]["name"] for e in shown["traceEvents"] if e["name"] == "thread_name"}
    assert "remote/write" in rows
    if slow == "remote":
        assert "remote/read" in rows
        assert any(e["name"] == "get" and e["dur"] >= 1e6 * SLOW for e in events)


def test_the_ring_keeps_the_newest_and_no_more():
    ring = StepRing(3)
    for number in range(5):
        ring.add((f"{number}", "row", float(number), 1.0, "", "", 0.0, 0, ""))
    assert [step.name for step in ring.steps()] == ["2", "3", "4"]
    assert chrome_trace([])["traceEvents"][0]["ph"] == "M"


def test_a_running_engine_is_traced_through_its_door(tmp_path, capsys):
    wanted = {
        "chunk": {"size": CHUNK},
        "pool": {"bytes": "1MiB"},
        "deadlines": PATIENT,
        "admin": {"address": str(tmp_path / "s")},
    }
    with build(load(None, {}, wanted), NAMESPACE) as engine:
        engine.store(PROMPT, computed())
        engine.retrieve(PROMPT, HeapKV(LAYOUT, len(PROMPT)))
        assert connect(str(tmp_path / "s")).steps() == engine.steps()
        file = tmp_path / "trace.json"
        assert main(["trace", str(tmp_path / "s"), "-o", str(file), "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["calls"] == 2
        names = {event["name"] for event in json.loads(file.read_text())["traceEvents"]}
        assert {"store", "retrieve", "match", "copy"} <= names
        assert main(["trace", str(tmp_path / "s"), "-o", str(tmp_path / "no" / "file")]) == 2
        assert "--output" in capsys.readouterr().err
        assert main(["trace", str(tmp_path / "s"), "--request", "slowest"]) == 0
        first, *parts = capsys.readouterr().out.splitlines()
        assert re.fullmatch(r"call-\d+, up to chunk [0-9a-f]{16}:", first)
        assert all(re.match(r"  .+ \|[ #]{40}\| [\d.]+ ms", part) for part in parts)
        assert "|" + "#" * 40 + "|" in parts[0], "the whole call"
        assert main(["trace", str(tmp_path / "s"), "--request", "lost"]) == 2
        assert "--request" in capsys.readouterr().err
