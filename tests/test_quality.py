"""What the table of quality promises: it is what was measured, and the default keeps its bars."""

import json
import sys
from importlib import import_module
from pathlib import Path

import pytest
import torch

from depth import thorough
from hexkv.adapters.cachegen.cachegen import LEVELS, CacheGen
from hexkv.adapters.cachegen.serde import LossySerde
from hexkv.adapters.hf.trained import trained
from hexkv.adapters.lossless.zstd import ZstdSerde
from hexkv.kernels.coding import plain
from hexkv.kernels.coding.choosing import Choice
from hexkv.plugins.discovery.discovery import discover

ROOT = Path(__file__).parents[1]
RUN = json.loads((ROOT / "benchmarks" / "results" / "quality.json").read_text())
HELD_OUT = json.loads((ROOT / "benchmarks" / "results" / "quality_held_out.json").read_text())
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
    }
    for command, table in written.items():
        assert page.filled(text, command, table) == text
        assert table in text
    blending = part("blending_page")
    text, tables = blending.PAGE.read_text(), blending.tables(BLENDING)
    assert page.filled(text, blending.TABLE, tables) == text
    assert tables in text


def test_every_serde_that_is_installed_is_in_the_tables():
    assert set(ROWS) == {"raw", *discover().names("serde")}
    assert {row["serde"] for row in HELD_OUT["rows"]} == set(discover().names("serde"))


def test_of_models_with_other_seeds_the_worst_counts(part):
    """Three seeds at least, none of them the shipped model's, by which levels were chosen."""
    recipes = HELD_OUT["models"]
    assert len({recipe["seed"] for recipe in recipes} - {22}) == len(recipes) >= 3
    assert len({recipe["weights_sha256"] for recipe in recipes}) == len(recipes)
    for row in HELD_OUT["rows"]:
        assert row["worst"]["kl"] == max(seed["kl"] for seed in row["seeds"])
    summary = part("measure").Summary
    given = [
        {name: summary(1.0, ratio, kl, 0.5, 0.0, 0.0, same, 0.9) for name in ("raw", "cachegen")}
        for ratio, kl, same in ((4.0, 1.0, 0.99), (3.9, 3.0, 0.97), (4.1, 2.0, 0.98))
    ]
    (row,) = part("held_out").summarised(given)
    assert row["worst"] == {"kl": 3.0, "kl_95": 0.98, "agreement": 0.97, "ratio": 3.9}
    assert row["mean"]["kl"] == 2.0
    assert row["mean"]["kl_95"] == pytest.approx(4.303 / 3**0.5)


def test_the_default_level_keeps_its_bars():
    default = ROWS["cachegen"]
    assert default["text"]["ratio"] >= 3.8
    assert abs(default["text"]["perplexity_change"]) <= 0.005
    assert default["recall"]["kl"] <= 0.005
    assert {bar["state"] for bar in RUN["bars"].values()} == {"reached"}
    (worst,) = (row["worst"] for row in HELD_OUT["rows"] if row["serde"] == "cachegen")
    assert worst["kl"] <= 0.005


def test_finer_levels_are_larger_and_nearer():
    levels = [ROWS[f"cachegen{name}"]["text"] for name in ("-fine", "", "-small", "-tiny")]
    for value in ("ratio", "kl", "perplexity_change"):
        found = [row[value] for row in levels]
        assert found == sorted(found), value


def test_the_table_is_of_the_models_that_come_along():
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
    found = part("measure").measure(trained(model), asked, {"zstd": ZstdSerde(), **serdes})
    assert found["raw"].ratio == found["raw"].agreement == 1
    assert found["raw"].kl == found["zstd"].kl == 0
    assert found["raw"].bytes_per_token > found["zstd"].bytes_per_token
    assert 0 < found["fine"].kl < found["tiny"].kl
    assert found["fine"].ratio < found["tiny"].ratio


def test_a_serde_that_says_it_loses_nothing_is_held_to_it(part, one_thread):
    class Forgetful(ZstdSerde):
        def decode(self, payload, layout, tokens, into):
            into[:] = bytes(len(into))

    measure, cases = part("measure"), part("cases")
    with pytest.raises(measure.must.__globals__["WrongResult"], match="forgetful gives back"):
        measure.measure(trained("recall"), cases.questions(1), {"forgetful": Forgetful()})
