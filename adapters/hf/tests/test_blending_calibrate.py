"""A record is made by comparing blended answers with full ones, and lets a model be blended."""

from __future__ import annotations

import json

import pytest
import torch

from hexkv.adapters.hf.blending.calibrate import (
    Trial,
    cheapest,
    measure,
    plans_for,
    record_of,
    sample_prompts,
)
from hexkv.adapters.hf.blending.gate import BlendGate
from hexkv.adapters.hf.blending.model import BlendingModel
from hexkv.adapters.hf.blending.plan import BlendPlan
from hexkv.adapters.hf.identity import namespace_of_model
from hexkv.adapters.hf.trained import trained
from hexkv.blending.ports import BlendOutcome
from hexkv.contracts.kit.cases import case
from hexkv.plugins.__main__ import main
from hexkv.plugins.composition.compose import build
from hexkv.plugins.configuration.config import load
from hexkv.ports import InvalidRequest

TEXT = """\
def difference(first, second):
    \"\"\"What is in the first list and not in the second one, in its order.\"\"\"
    known = set(second)
    return [item for item in first if item not in known]


class Counter(dict):
    def update(self, iterable):
        for item in iterable:
            self[item] = self.get(item, 0) + 1
"""

CONFIG = """\
chunk: {size: 8}
segments: {separator: [0], minimum: 2, record: record.json, check_every: 1}
pool: {bytes: 16MiB, settings: {huge_pages: false}}
tiers: [{store: memory}]
deadlines: {lookup: 60, retrieve: 60, store: 60}
"""

SIZES = ["--segment", "16", "--question", "12", "--prompts", "2"]


def blend(*arguments):
    return main(["blend", *map(str, arguments)])


def test_a_calibrated_model_is_blended_and_compared(tmp_path, monkeypatch, capsys):
    """From the command to the first comparison: what it writes is what the gate reads."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hexkv.yaml").write_text(CONFIG)
    (tmp_path / "sample.json").write_text(json.dumps(list(TEXT.encode()) * 2))
    model = trained("text")
    model.save_pretrained("hexkv-text")
    given = ["hexkv-text", "--config", "hexkv.yaml", "--sample", "sample.json", *SIZES]
    assert blend("calibrate", *given, "--bound", "1e-12", "--json") == 1
    tried = json.loads(capsys.readouterr().out)
    assert tried["record"] is None
    assert not (tmp_path / "record.json").exists()
    assert len(tried["trials"]) == len(list(plans_for(6)))
    assert all(trial["dropped"] for trial in tried["trials"])
    assert blend("calibrate", *given, "--bound", "0.5") == 0
    capsys.readouterr()
    assert blend("show", "record.json", "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["prompts"], shown["tokens"], shown["model"]) == (2, 24, "hexkv-text")
    assert 0 < shown["kl"] <= shown["bound"] == 0.5

    loaded = load("hexkv.yaml")
    with build(loaded, namespace_of_model(model)) as engine:
        gate = BlendGate.of_config(loaded, engine.namespace)
        assert gate.plan == BlendPlan(shown["check_layer"], shown["ratio"], shown["selector"])
        with BlendingModel(model, engine, gate) as blending:
            segments = [list(TEXT.encode())[start : start + 40] for start in (0, 90, 200)]
            blending.precompute(segments)
            prompt = [token for n in (2, 0, 1) for token in [*segments[n], 0]] + [100, 101]
            checked = blending.prefill(prompt).report
            assert checked.outcome is BlendOutcome.CHECKED
            assert checked.kl is not None

    for wrong, said in (
        (["--bound", "nan"], "--bound"),
        (["--bound", "0"], "--bound"),
        (["--record", "nowhere/record.json"], "--record"),
        (["--sample", "nowhere.json"], "--sample"),
        (["--segment", "4000"], "--sample"),
        (["--dtype", "int8"], "--dtype"),
        (["--device", "abacus"], "--device"),
        (["--config", "nowhere.yaml"], "--config"),
    ):
        with case(wrong):
            assert blend("calibrate", *given, *wrong) == 2
            assert said in capsys.readouterr().err
    assert blend("calibrate", "hexkv-text") == 2
    assert "--record" in capsys.readouterr().err
    assert blend("show", "sample.json") == 2
    assert "sample.json: is no record" in capsys.readouterr().err


@pytest.mark.thorough
def test_the_cheapest_way_that_holds_by_two_standard_errors_is_kept():
    def trial(share, *means, dropped=False):
        return Trial(BlendPlan(), list(means), [*means], 1, [share], dropped)

    steady, noisy = trial(0.4, 0.9, 0.9, 0.9), trial(0.2, 0.0, 0.0, 1.5)
    gone, single = trial(0.1, 0.0, 0.0, dropped=True), trial(0.1, 0.5)
    better = trial(0.4, 0.8, 0.8, 0.8)
    assert cheapest([steady, noisy, gone, single, better], 1.0) is better
    assert cheapest([noisy, gone, single], 1.0) is None


@pytest.mark.thorough
def test_samples_are_cut_evenly_and_never_run_over_their_end():
    for total, asked, count in ((72, 9, 2), (71, 9, None), (500, 4, 4), (360, 99, 10)):
        with case(total):
            tokens = list(range(total))
            if count is None:
                with pytest.raises(InvalidRequest, match="fewer than two prompts"):
                    sample_prompts([tokens], segment=7, question=8, prompts=asked)
                continue
            made = sample_prompts([tokens[:50], tokens[50:]], segment=7, question=8, prompts=asked)
            assert len(made) == count
            for prompt in made:
                assert [len(part) for part in prompt.segments] == [7] * 4
                assert len(prompt.question) == 8
                start = prompt.tokens[0]
                assert prompt.tokens == tokens[start : start + 36]
            assert made[0].tokens[0] == 0
            assert made[-1].tokens[-1] >= total - count


@pytest.mark.thorough
def test_computing_everything_is_no_divergence_and_a_record_of_it_is_read_back(tmp_path):
    model = trained("text")
    prompts = sample_prompts([list(TEXT.encode())], segment=16, question=8, prompts=3)
    plans = [BlendPlan(0, 1.0, "first"), BlendPlan(1, 0.5, "question"), BlendPlan(-1, 0.0, "first")]
    cheap, *_ = trials = measure(model, prompts, bound=1e-9, plans=plans)
    assert len(trials) == 3
    assert cheap.dropped
    assert cheap.plan == plans[2]
    exact = next(trial for trial in trials if trial.plan.ratio == 1.0)
    assert exact.kl < 1e-9
    assert exact.agreement == 1.0
    made = record_of(exact, prompts, namespace_of_model(model), 1e-9)
    made.write(tmp_path / "record.json")
    assert type(made).read(tmp_path / "record.json") == made
    assert made.fits(namespace_of_model(model))
    assert not made.fits(namespace_of_model(trained("text").to(torch.bfloat16)))
