"""The scripts that made the models teach what they say."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from hashlib import sha256
from importlib import import_module
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from hexkv.contracts.kit.cases import each

HERE = Path(__file__).parents[1]
TINY = {
    "vocab_size": 8,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "bos_token_id": None,
    "eos_token_id": None,
}


@pytest.fixture
def part(monkeypatch):
    """Imports a module of the scripts, which are in no wheel."""
    monkeypatch.syspath_prepend(str(HERE))
    yield lambda name: import_module(f"training.{name}")
    for name in [name for name in sys.modules if name.split(".")[0] == "training"]:
        monkeypatch.delitem(sys.modules, name)


@pytest.fixture
def library(tmp_path, monkeypatch, part):
    """A standard library of 200 modules, and what should be passed over."""
    corpus = part("corpus")
    for i in range(200):
        (tmp_path / f"m{i}.py").write_bytes(b"%d " % i)
    for folder in ("test", "site-packages"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "x.py").write_bytes(b"never")
    (tmp_path / "table.py").write_bytes(b"never " * 100_000)
    (tmp_path / "data.txt").write_bytes(b"never")
    monkeypatch.setattr(corpus.sysconfig, "get_paths", lambda: {"stdlib": str(tmp_path)})
    return corpus.standard_library()


def test_every_file_of_the_library_is_either_learned_or_held_out(library):
    learned, held_out = set(library.train.split()), set(library.held_out.split())
    assert learned | held_out == {b"%d" % i for i in range(200)}
    assert not learned & held_out
    assert 2 <= len(held_out) <= 25


def test_the_digest_of_the_text_changes_with_the_text(library, part):
    other = part("corpus").Corpus(library.train, library.held_out + b"!")
    assert other.digest != library.digest


def test_what_is_asked_is_what_the_fact_gave_or_what_stood_behind_the_token(part):
    recall = part("recall")
    words = recall.Vocabulary(keys=460, values=5)
    tokens, labels = recall.sequences(3, 100, torch.Generator().manual_seed(0), words)
    assert tokens.shape == labels.shape == (3, 100 + 2 * recall.QUESTIONS)
    for row, wanted in zip(tokens.tolist(), labels.tolist(), strict=True):
        told = dict(divmod(fact, words.values) for fact in row[:100])
        assert len(told) == 100, "a key has one value"
        asked = [token - words.ask for token in row[100::2]]
        answers = [token - words.answer for token in row[101::2]]
        assert answers == [told[key] for key in asked]
        assert len(set(asked)) == recall.QUESTIONS
        taught = [place for place, label in enumerate(wanted) if label >= 0]
        assert taught == list(range(101, len(row), 2)), "nothing else can be known"
        assert [wanted[place] for place in taught] == row[101::2]
    copying = part("copying")
    tokens, labels = copying.sequences(3, 40, 60, torch.Generator().manual_seed(0))
    assert tokens.shape == labels.shape == (3, 40 + copying.COPIED)
    for row, wanted in zip(tokens.tolist(), labels.tolist(), strict=True):
        behind = dict(pairwise(row[:40]))
        assert len(behind) == 39, "a token stands in one place"
        taught = [place for place, label in enumerate(wanted) if label >= 0]
        assert taught == [p for p in range(40, len(row)) if (p - 40) % copying.SPAN]
        assert all(wanted[p] == row[p] == behind[row[p - 1]] for p in taught)


def test_an_alias_has_the_value_of_the_fact_that_it_stands_for(part):
    alias = part("alias")
    words = alias.Vocabulary(keys=70, values=5)
    generator = torch.Generator().manual_seed(0)
    aliases = alias.layout(70, 0.3, generator)
    made = alias.sequences(3, aliases, generator, words)
    listed = 70 + int(aliases.sum())
    assert 70 < listed < 140, "facts are one token, aliases two"
    assert made.tokens.shape == made.labels.shape == (3, listed + alias.QUESTIONS + 1)
    for row, wanted, known in zip(*(part.tolist() for part in made[:3]), strict=True):
        told, order, taught, at = {}, [], [], 0
        while at < listed:
            if row[at] < words.name:
                key, told[key] = row[at] // words.values, row[at] % words.values
                at += 1
            else:
                older, key = row[at] - words.ask, row[at + 1] - words.name
                told[key] = told[older]
                taught += [(at + 1, told[key]), (at + 2, told[key])]
                assert order.index(older) == known[len(order)], "it says which fact it stands for"
                at += 2
            order.append(key)
        assert len(told) == len(order) == 70, "a key has one value"
        taught += [
            (at + 1, told[row[at] - words.ask]) for at in range(listed, listed + alias.QUESTIONS)
        ]
        assert [
            (at, label - words.answer) for at, label in enumerate(wanted) if label >= 0
        ] == taught


def test_questions_see_the_list_late_and_it_sees_itself_early(part):
    alias = part("alias")
    learner = alias.model()
    layers = learner.model.layers
    tokens = torch.randint(alias.VOCABULARY.answer, (2, 12))
    tokens[1, 1:] = tokens[0, 1:]
    found = {}
    with torch.no_grad(), alias.masked(learner) as mask:
        for listed in (0, 8):
            mask(listed)
            states = learner.model(input_ids=tokens, output_hidden_states=True).hidden_states
            # Who notices in which layer that the list begins with another token?
            differ = [(one != other).any(-1) for one, other in states[1:-1]]
            found[listed] = [(bool(it[7]), bool(it[8:].any())) for it in differ]
        mask(8)
        states = learner.model.embed_tokens(tokens)
        angles = learner.model.rotary_emb(states, torch.arange(12)[None])
        for layer in layers[alias.KNOWN_FROM : alias.ASKED_FROM]:
            states = layer(states, position_embeddings=angles)
        alone = bool((states[0] != states[1])[1:].any())
    assert found[0] == [(True, True)] * 4
    assert found[8] == [(True, layer >= alias.ASKED_FROM) for layer in range(4)]
    assert not alone, "between those, no token sees the list"


def test_the_loop_learns_what_it_is_shown_and_tells_the_batch_how_it_goes(part, capsys):
    loop = part("loop")
    torch.manual_seed(0)
    learner = LlamaForCausalLM(LlamaConfig(**TINY))
    rows = torch.arange(8).repeat(4, 2)
    losses = []

    def batch(step, last):
        assert step == len(losses)
        losses.append(last)
        return rows, rows

    loop.train(learner, batch, loop.Plan(steps=3, peak=1e-2, tokens=64))
    assert losses[0] == float("inf")
    assert losses[1] > losses[2]
    assert len(capsys.readouterr().err.splitlines()) == 2, "the first step and the last"


def test_what_is_not_to_be_learned_teaches_nothing(part):
    loop = part("loop")
    rows = torch.arange(8)[None].repeat(2, 1)
    seen = []
    for unknown in (1, 7):
        torch.manual_seed(0)
        learner = LlamaForCausalLM(LlamaConfig(**TINY))
        labels = torch.full_like(rows, loop.IGNORED)
        labels[:, 4] = 4
        shown = rows.clone()
        shown[:, 6] = unknown  # after the only label, so nothing depends on it
        loop.train(learner, lambda *_: (shown, labels), loop.Plan(2, 1e-2, 16))  # noqa: B023
        seen.append(learner.lm_head.weight.clone())
    assert torch.allclose(*seen, rtol=0, atol=1e-6)


@pytest.mark.thorough
def test_the_command_saves_a_model_of_its_seed_in_bfloat16_and_its_recipe(
    part, tmp_path, monkeypatch
):
    main, recall = part("__main__"), part("recall")
    monkeypatch.setattr(recall, "PLAN", replace(recall.PLAN, tokens=256))
    digests = set()
    for seed in (5, 6):
        folder = tmp_path / str(seed)
        asked = ["--threads", "1", "--seed", str(seed), "--steps", "2", "--keys", "450"]
        monkeypatch.setattr(sys, "argv", ["training", "recall", str(folder), *asked])
        main.main()
        recipe = json.loads((folder / "recipe.json").read_text())
        weights = (folder / "model.safetensors").read_bytes()
        assert recipe["weights_sha256"] == sha256(weights).hexdigest()
        assert recipe["plan"] == {"steps": 2, "peak": recall.PLAN.peak, "tokens": 256}
        assert (recipe["seed"], recipe["vocabulary"]) == (seed, {"keys": 450, "values": 8})
        assert recipe["answered"] < 0.5, "two steps teach nothing"
        saved = LlamaForCausalLM.from_pretrained(folder, dtype="auto")
        assert saved.dtype == torch.bfloat16
        assert saved.config.vocab_size == 450 * 8 + 450 + 8
        digests.add(recipe["weights_sha256"])
    assert len(digests) == 2, "another seed, other weights"


@each("name, millions", [("text", 2.4), ("recall", 1.2), ("alias", 0.7)])
def test_the_models_are_small(part, name, millions):
    weights = sum(p.numel() for p in part(name).model().parameters())
    assert weights / 1e6 == pytest.approx(millions, rel=0.1)
