"""What the table of quality promises: it is what was measured, and the default keeps its bars."""

import json
import sys
from dataclasses import asdict
from importlib import import_module
from pathlib import Path

import pytest
import torch

from depth import thorough
from hexkv.adapters.cachegen.cachegen import LEVELS, CacheGen
from hexkv.adapters.cachegen.serde import LossySerde
from hexkv.adapters.hf.quality.measure import Summary, measure
from hexkv.adapters.hf.trained import trained
from hexkv.adapters.lossless.zstd import ZstdSerde
from hexkv.kernels.coding import plain
from hexkv.kernels.coding.choosing import Choice
from hexkv.plugins.discovery.discovery import discover
from hexkv.ports import CorruptFrame

ROOT = Path(__file__).parents[2]
RUN = json.loads((ROOT / "benchmarks" / "results" / "quality.json").read_text())
HELD_OUT = json.loads((ROOT / "benchmarks" / "results" / "quality_held_out.json").read_text())
GATE = json.loads((ROOT / "benchmarks" / "results" / "blending_gate.json").read_text())
BLENDING = json.loads((ROOT / "benchmarks" / "results" / "blending.json").read_text())
ROWS = {row["serde"]: row for row in RUN["rows"]}


@pytest.fixture
def part(monkeypatch):
    """Imports a module of the benchmark, which is in no wheel."""
    monkeypatch.syspath_prepend(str(ROOT))
    monkeypatch.syspath_prepend(str(ROOT / "adapters" / "hf"))
    yield lambda name: import_module(f"benchmarks.quality.{name}")
    for name in [name for name in sys.modules if name.split(".")[0] == "training"]:
        monkeypatch.delitem(sys.modules, name)


@pytest.fixture
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_the_page_shows_what_was_measured(part):
    page = part("page")
    text = page.PAGE.read_text()
    written = {
        page.SHIPPED_TABLE: page.table(RUN),
        page.HELD_OUT_TABLE: page.held_out_table(HELD_OUT),
        page.CHOICE_TABLE: page.choice_table(HELD_OUT),
    }
    for command, table in written.items():
        assert page.filled(text, command, table) == text
        assert table in text
    blending = part("blending_page")
    text, tables = blending.PAGE.read_text(), blending.tables(BLENDING)
    assert page.filled(text, blending.TABLE, tables) == text
    assert tables in text


def test_of_judges_of_another_make_the_worst_counts(part):
    """Four at least, of four architectures; the halves are those written down before."""
    judges = part("held_out")
    recipes = HELD_OUT["judges"]
    assert len({recipe["weights_sha256"] for recipe in recipes}) == len(recipes) >= 4
    for recipe in recipes:
        half = "choosing" if recipe["judge"] in judges.CHOOSING else "judging"
        assert recipe["half"] == half
        assert recipe["plan"] == asdict(judges.JUDGES[recipe["judge"]].plan)
    assert {recipe["half"] for recipe in recipes} == {"choosing", "judging"}
    for row in HELD_OUT["rows"]:
        assert row["worst"]["kl"] == max(one["kl"] for one in row["judges"].values())
    given = {
        name: Summary(1.0, ratio, kl, 0.5, 0.0, 0.0, same, 0.9)
        for name, ratio, kl, same in (("a", 4.0, 1.0, 0.99), ("b", 3.9, 3.0, 0.97))
    }
    assert judges.worst(given) == {
        "judge": "b",
        "kl": 3.0,
        "kl_95": 0.98,
        "agreement": 0.97,
        "ratio": 3.9,
    }


def test_the_default_level_is_the_chosen_one_and_keeps_its_bars():
    chosen = [row for row in HELD_OUT["levels"] if row["chosen"]]
    level = LEVELS["default"]
    assert [row["level"] for row in chosen] == [f"{level.early}/{level.late}"]
    assert chosen[0]["worst"]["kl"] + chosen[0]["worst"]["kl_95"] <= 2.5e-3
    default = ROWS["cachegen"]
    assert default["text"]["ratio"] >= 3.3
    assert abs(default["text"]["perplexity_change"]) <= 0.005
    assert default["recall"]["kl"] <= 0.0025
    assert {bar["state"] for bar in RUN["bars"].values()} == {"reached"}
    (worst,) = (row["worst"] for row in HELD_OUT["rows"] if row["serde"] == "cachegen")
    assert worst["kl"] <= 2.5e-3


def test_finer_levels_are_larger_and_nearer():
    levels = [ROWS[f"cachegen{name}"]["text"] for name in ("-fine", "", "-small", "-tiny")]
    for value in ("ratio", "kl", "perplexity_change"):
        found = [row[value] for row in levels]
        assert found == sorted(found), value


def test_the_tables_are_of_all_serdes_and_the_models_that_come_along():
    assert set(ROWS) == {"raw", *discover().names("serde")}
    assert {row["serde"] for row in HELD_OUT["rows"]} == set(discover().names("serde"))
    folder = ROOT / "adapters" / "hf" / "hexkv" / "adapters" / "hf" / "models"
    blended = {name: model["recipe"] for name, model in BLENDING["models"].items()}
    for name, recipe in [*RUN["models"].items(), *blended.items()]:
        assert recipe == json.loads((folder / name / "recipe.json").read_text())


@pytest.mark.parametrize("model", [*thorough("text"), "recall"])
def test_a_serde_is_judged_by_what_the_model_expects_after_it(part, one_thread, model):
    cases = part("cases")
    text = (ROOT / "docs" / "architecture.md").read_bytes()
    asked = cases.texts(text, 2) if model == "text" else cases.questions(2)
    serdes = {
        name: LossySerde(CacheGen(LEVELS[name], Choice(lambda: plain))) for name in ("fine", "tiny")
    }
    found = measure(trained(model), asked, {"zstd": ZstdSerde(), **serdes})
    assert found["raw"].ratio == found["raw"].agreement == 1
    assert found["raw"].kl == found["zstd"].kl == 0
    assert found["raw"].bytes_per_token > found["zstd"].bytes_per_token
    assert 0 < found["fine"].kl < found["tiny"].kl
    assert found["fine"].ratio < found["tiny"].ratio


def test_a_serde_that_says_it_loses_nothing_is_held_to_it(part, one_thread):
    class Forgetful(ZstdSerde):
        def decode(self, payload, layout, tokens, into):
            into[:] = bytes(len(into))

    cases = part("cases")
    with pytest.raises(CorruptFrame, match="forgetful gives other bytes"):
        measure(trained("recall"), cases.questions(1), {"forgetful": Forgetful()})


def test_the_gate_of_blending_closes_within_ten_checks_and_by_no_chance(part):
    """Where most requests show the damage; the page states the other families."""
    gate = part("gate")
    assert gate.table(GATE) in gate.PAGE.read_text()
    families = gate.families_of(GATE)
    shown = {row["family"] for row in GATE["rows"] if row["small"] <= 0.1}
    assert len(shown) >= 4
    for row in gate.simulated(families, runs=40):
        assert row["on"] >= 0.99
        assert row["off"] >= 0.95 or row["family"] not in shown
        assert row["off"] >= 0.95 or row["best"] < 0.95, "no gate does better"
        assert row["before"] >= row["off"] - 0.05, "approximate answers wait for the gate"
