"""A real model's run, recorded: the report says what the engine's own counters say."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET

import pytest
import torch

from hexkv.adapters.hf.identity import namespace_of_model
from hexkv.adapters.hf.model import CachedModel
from hexkv.plugins.__main__ import main
from hexkv.plugins.composition.compose import build
from hexkv.plugins.configuration.config import load
from hexkv.ports import CounterName, frame_bytes

CHUNK = 16
NEW = 6
PATIENT = {"lookup": 60.0, "retrieve": 60.0, "store": 60.0, "close": 60.0}


@pytest.fixture
def recorded(tmp_path, gqa, prompt):
    """Conversations with a model, some longer than memory; the counters, and the record."""
    namespace = namespace_of_model(gqa)
    frame = frame_bytes(namespace.layout.chunk_bytes(CHUNK))
    folder = tmp_path / "record"
    wanted = {
        "chunk": {"size": CHUNK},
        "pool": {"bytes": 24 * frame, "settings": {"huge_pages": False}},
        "tiers": [
            {"store": "memory", "budget": 16 * frame},
            {"store": "disk", "budget": 60 * frame, "settings": {"root": str(tmp_path / "chunks")}},
        ],
        "deadlines": PATIENT,
        "compute_rate": 1e-3,  # a busy disk serves, too
        "observe": {"address": "", "record": str(folder)},
    }
    hits, asked = {}, 0
    with build(load(None, {}, wanted), namespace) as engine:
        engine.flush()
        cached = CachedModel(gqa, engine)
        talks = [prompt(3 * CHUNK + 5, seed=seed) for seed in range(6)]
        for turn in range(4):
            for number, ids in enumerate(talks):
                answer = cached.generate(ids, NEW)
                asked += ids.shape[1]
                for tier, tokens in answer.prefill.tiers.items():
                    hits[tier] = hits.get(tier, 0) + tokens
                said = torch.tensor([answer.tokens])
                talks[number] = torch.cat([ids, said, prompt(20, seed=100 * turn + number)], dim=1)
        counted = engine.telemetry.counts()
    return folder, hits, asked, counted


@pytest.mark.thorough
def test_the_report_of_a_real_run_agrees_with_the_counters(recorded, tmp_path, capsys):
    folder, hits, asked, counted = recorded
    page = tmp_path / "page.html"
    assert main(["report", str(folder), "--json", "--html", str(page)]) == 0
    report = json.loads(capsys.readouterr().out)
    by_tier = {tier["name"]: tier["hit_tokens"] for tier in report["tiers"]}
    of_counter = {t: n for (c, t, _), n in counted.items() if c is CounterName.HIT_TOKENS}
    assert {t: n for t, n in by_tier.items() if n} == of_counter == hits
    assert min(of_counter.values()) > 0
    of_counter = {w: n for (c, _, w), n in counted.items() if c is CounterName.MISSED_TOKENS}
    assert report["missed_tokens"] == of_counter
    assert (report["requests"], report["tokens"]) == (24, asked)
    parts = {part["part"] for group in report["time"] for part in group["parts"]}
    assert {"match", "read", "copy", "computed"} <= parts
    # A tier that holds what the disk may hold would find what the disk and memory found.
    rows = {row["what"]: row for row in report["changes"]}
    assert rows["without limits"]["hit_rate"] >= rows["as it was recorded"]["hit_rate"]
    text = page.read_text()
    ET.fromstring(text.removeprefix("<!doctype html>"))
    for tokens in hits.values():
        assert f"<td>{tokens:,}</td>" in text
