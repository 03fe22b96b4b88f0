"""A model is blended only as it was measured, and only as long as it stays so."""

from __future__ import annotations

import pytest

from blended_prompts import PROMPT, SEGMENTS, configured, full, new, record
from hexkv.adapters.hf.blending.gate import BlendGate
from hexkv.adapters.hf.blending.model import BlendingModel
from hexkv.adapters.hf.blending.record import BlendRecord
from hexkv.adapters.hf.identity import namespace_of_model
from hexkv.plugins.compose import build
from hexkv.ports import BlendOutcome, InvalidRequest


def test_nothing_is_blended_without_a_record_nor_with_a_broken_one(tmp_path, caplog):
    model = new()
    namespace = namespace_of_model(model)
    with build(configured(tmp_path), namespace) as engine:
        gate = BlendGate.of_file(tmp_path / "none.json", engine.namespace)
        with BlendingModel(model, engine, gate) as blending:
            blending.precompute(SEGMENTS)
            for _ in range(3):
                made = blending.prefill(PROMPT)
            assert made.report.outcome is BlendOutcome.NO_RECORD
            assert (made.logits - full(model, PROMPT)[-1]).abs().max() <= 1e-5
        assert "is not blended" in caplog.text
        engine.clear(PROMPT)
        path = tmp_path / "record.json"
        record(namespace, bound=1e-9, kl_spread=0.0).write(path)
        gate = BlendGate.of_file(path, engine.namespace, every=1)
        with BlendingModel(model, engine, gate) as blending:
            outcomes = []
            while gate.plan is not None and len(outcomes) < 20:
                made = blending.prefill(PROMPT)
                outcomes.append(made.report.outcome)
                assert (made.logits - full(model, PROMPT)[-1]).abs().max() <= 1e-5
                engine.clear(PROMPT)
            assert 1 <= len(outcomes) <= 10
            assert {*outcomes} == {BlendOutcome.CHECKED}
            assert made.report.kl is not None
            assert blending.prefill(PROMPT).report.outcome is BlendOutcome.SWITCHED_OFF
        assert "is switched off" in caplog.text


def test_a_foreign_or_damaged_record_is_refused_with_a_sentence(tmp_path):
    namespace = namespace_of_model(new())
    path = tmp_path / "record.json"
    good = record(namespace)
    good.write(path)
    assert BlendRecord.read(path) == good
    assert BlendRecord.read(tmp_path / "other.json") is None
    other = namespace_of_model(new("qwen 2"))
    with pytest.raises(InvalidRequest, match="calibrate this model"):
        BlendGate.of_file(path, other)
    whole = path.read_text()
    for damaged in (
        "",
        "[]",
        "{}",
        whole.replace('"ratio": 0.15', '"ratio": 2.0'),
        whole.replace('"ratio": 0.15', '"ratio": NaN'),
        whole.replace('"ratio": 0.15', '"ratio": "0.5"'),
        whole.replace("value-deviation", "wishes"),
        whole.replace('"format": 1', '"format": 2'),
        whole.replace('"prompts": 8', '"prompts": true'),
        whole.replace('"torch":', '"more": 1, "torch":'),
        "x" * 70_000,
    ):
        path.write_text(damaged)
        with pytest.raises(InvalidRequest, match=r"record\.json"):
            BlendRecord.read(path)
