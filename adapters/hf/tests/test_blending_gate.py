"""A model is blended only as it was measured, and only as long as it stays so."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
import torch

from engines.hf.blended_prompts import PROMPT, SEGMENTS, configured, full, new, record
from hexkv.adapters.hf.blending.gate import BlendGate, Comparison, Evidence
from hexkv.adapters.hf.blending.model import BlendingModel
from hexkv.adapters.hf.blending.plan import BlendPlan
from hexkv.adapters.hf.blending.record import BlendRecord
from hexkv.adapters.hf.identity import namespace_of_model
from hexkv.adapters.hf.model import CachedModel
from hexkv.blending.ports import BlendOutcome
from hexkv.plugins.composition.compose import build
from hexkv.ports import DType, InvalidRequest


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
        [line] = [made.getMessage() for made in caplog.records if "not blended" in made.msg]
        assert f"no record at {tmp_path / 'none.json'}" in line
        engine.clear(PROMPT)
        path = tmp_path / "record.json"
        record(namespace, bound=1e-9, kl_quantile=0.0).write(path)
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
    same = replace(namespace, salt="a tenant's")
    assert BlendGate.of_file(path, same).plan == BlendPlan(1, 0.15, "value-deviation")
    for other in (
        namespace_of_model(new("qwen 2")),
        replace(namespace, revision="of other weights"),
        replace(namespace, lora="an adapter"),
        replace(namespace, extra=(("revision", "main"),)),
        replace(namespace, layout=replace(namespace.layout, dtype=DType.BFLOAT16)),
    ):
        with pytest.raises(InvalidRequest, match="calibrate this model"):
            BlendGate.of_file(path, other)
    record(namespace, check_layer=4).write(path)  # the model has layers 0 to 3
    with pytest.raises(InvalidRequest, match="calibrate this model"):
        BlendGate.of_file(path, namespace)
    good.write(path)
    whole = path.read_text()
    for damaged in (
        "",
        "[]",
        "{}",
        whole.replace('"ratio": 0.15', '"ratio": 2.0'),
        whole.replace('"ratio": 0.15', '"ratio": NaN'),
        whole.replace('"ratio": 0.15', '"ratio": "0.5"'),
        whole.replace("value-deviation", "wishes"),
        whole.replace('"check_layer": 1', '"check_layer": 0'),
        whole.replace('"check_layer": 1', '"check_layer": -2'),
        whole.replace('"format": 2', '"format": 1'),
        whole.replace('"prompts": 8', '"prompts": true'),
        whole.replace('"torch":', '"more": 1, "torch":'),
        whole.replace('"kl": 0.0', '"kl": 11.0'),
        whole.replace('"tokens": 64', '"tokens": 0'),
        whole.replace('"identity": "', '"identity": "0'),
        whole.replace('"sample"', '"example"'),
        '{"format":' * 10_000,
        "x" * 70_000,
    ):
        path.write_text(damaged)
        with pytest.raises(InvalidRequest, match=r"record\.json"):
            BlendRecord.read(path)


def test_the_first_requests_are_compared_and_then_ever_fewer_unless_they_speak_against_it():
    rare = BlendGate(record(namespace_of_model(new())), every=50, random=Random(3))
    full, other = torch.zeros(4, 2), torch.tensor([[0.5, 0.0]] * 4)
    assert all(rare.due() for _ in range(10)), "nothing is compared yet"
    due = []
    for _ in range(10_000):
        due.append(rare.due())
        if due[-1]:
            rare.compared(full, full)
    assert all(due[:2])
    assert 10 <= sum(due[50:250]) <= 25
    assert 150 <= sum(due[500:]) <= 230
    doubted = False
    while rare.plan is not None:
        doubted |= all(rare.due() for _ in range(20))
        rare.compared(full, other)
    assert doubted, "all of them, before it is off"


def test_blending_that_is_worse_than_recorded_is_off_for_good(caplog):
    measured = record(namespace_of_model(new()), kl=0.001, bound=0.002)
    for nats in ([0.01] * 10, [float("nan")], [float("inf")], [0.0] * 50 + [1.0] * 10):
        evidence = Evidence(measured)
        assert [evidence.add(Comparison(one, 0.0, 0.0)) for one in nats][-1]
    for changed, beyond in ((0.3, 0.0), (0.0, 1.0)):
        evidence = Evidence(measured)
        found = Comparison(1e-6, changed, beyond)
        assert any(evidence.add(found) for _ in range(10)), "the mean shows nothing"

    gate = BlendGate(measured)
    full, other = torch.zeros(4, 2), torch.tensor([[1.0, 0.0]] * 4)
    assert gate.compared(full, full) == 0.0
    masked = torch.tensor([[1.0, -torch.inf]] * 4)
    assert gate.compared(masked, masked) == 0.0, "a token that a model masks is none"
    assert gate.plan is not None
    while gate.plan is not None:
        assert gate.compared(full, other) == pytest.approx(0.12, abs=0.01)
    for _ in range(20):
        gate.compared(full, full)
    assert gate.closed is BlendOutcome.SWITCHED_OFF
    assert sum("is switched off" in made.msg for made in caplog.records) == 1


def test_what_is_computed_to_compare_leaves_no_approximate_kv(tmp_path):
    """A checked request was blended and computed: the cache has what the second one made."""
    model = new()
    namespace = namespace_of_model(model)
    with build(configured(tmp_path / "exact"), namespace) as engine:
        exact = CachedModel(model, engine)
        wanted = exact.prefill(PROMPT).logits
        hit = exact.prefill(PROMPT).logits
    with build(configured(tmp_path / "checked"), namespace) as engine:
        gate = BlendGate(record(namespace, ratio=0.0), every=1)
        with BlendingModel(model, engine, gate) as blending:
            blending.precompute(SEGMENTS)
            made = blending.prefill(PROMPT)
            assert made.report.outcome is BlendOutcome.CHECKED
            assert made.report.kl is not None
            assert made.report.kl > 1e-6, "nothing here is approximate"
            assert torch.equal(made.logits, wanted)
    with build(configured(tmp_path / "checked"), namespace) as engine:
        found = CachedModel(model, engine).prefill(PROMPT)
        assert found.hit_tokens == len(PROMPT) // 8 * 8
        assert torch.equal(found.logits, hit)
