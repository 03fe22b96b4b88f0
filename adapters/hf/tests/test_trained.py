"""The models that come along are those of their recipes, and know what they were taught."""

from __future__ import annotations

import json
import sys
from hashlib import sha256
from importlib import import_module
from importlib.resources import files
from pathlib import Path

import pytest
import torch

from hexkv.adapters.hf.identity import namespace_of_model
from hexkv.adapters.hf.model import CachedModel
from hexkv.adapters.hf.trained import trained
from hexkv.contracts.kit.cases import each

MODELS = files("hexkv.adapters.hf") / "models"
NAMES = ("text", "recall", "alias")


@pytest.fixture
def training(monkeypatch):
    """The scripts that judge them, which are in no wheel."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1]))
    yield lambda name: import_module(f"training.{name}")
    for name in [name for name in sys.modules if name.split(".")[0] == "training"]:
        monkeypatch.delitem(sys.modules, name)


@each("name", NAMES)
def test_the_weights_are_those_of_the_recipe(name):
    recipe = json.loads((MODELS / name / "recipe.json").read_text())
    weights = (MODELS / name / "model.safetensors").read_bytes()
    assert sha256(weights).hexdigest() == recipe["weights_sha256"]
    assert len(weights) < 5_000_000


@each("name", NAMES)
def test_a_model_is_of_the_shape_that_the_scripts_make(name, training):
    made = training(name).model()
    ours = trained(name)
    assert not ours.training
    assert {n: t.shape for n, t in ours.state_dict().items()} == {
        n: t.shape for n, t in made.state_dict().items()
    }
    assert {t.dtype for t in ours.parameters()} == {torch.float32}


@each("name", NAMES)
def test_all_hosts_call_it_the_same(name):
    assert namespace_of_model(trained(name)).model == f"hexkv-{name}"


@pytest.mark.thorough
def test_it_knows_text_that_it_never_saw(training):
    held_out = training("corpus").standard_library().held_out
    # Another Python has another text: the band is wider than the recipe's digits.
    assert 1.5 < training("text").bits_per_byte(trained("text"), held_out, windows=16) < 2.0


def test_it_knows_what_it_was_told_448_facts_ago(training):
    assert 0.97 < training("recall").answered(trained("recall")) < 0.99


def test_it_knows_what_other_names_stand_for(training):
    assert training("alias").answered(trained("alias")) > 0.97


def test_what_it_says_after_a_hit_is_what_it_says_without_one(engine_for):
    """With attention that looks at few places, wrong KV there would change the words."""
    model = trained("text")
    prompt = list((files("hexkv.ports") / "store.py").read_bytes()[:700])
    generated = model.generate(torch.tensor([prompt]), max_new_tokens=48, do_sample=False)
    plain = generated[0, len(prompt) :].tolist()
    assert len(set(plain)) > 8, "it says something"
    first = CachedModel(model, engine_for(model)).generate(prompt, max_new_tokens=48)
    again = CachedModel(model, engine_for(model)).generate(prompt, max_new_tokens=48)
    assert (first.prefill.hit_tokens, again.prefill.hit_tokens) == (0, 688)
    assert first.tokens == again.tokens == plain
