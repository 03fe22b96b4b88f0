"""Each causal class of transformers, tiny and random: as without the cache, or refused."""

from __future__ import annotations

import pytest
import transformers

from engines.hf import hf_blended
from engines.hf.hf_models import KINDS, NOT_BUILT, PAGE, SAME, documented, table, verdict
from engines.hf.tiny_models import tiny_model
from hexkv.adapters.hf.cache import RequestKV

TELLING = (
    "gemma3n_text",  # layers without KV of their own
    "roc_bert",  # a decoder that is one if its configuration says so
    "mpt",  # positions by bias, and a configuration without use_cache
    "deepseek_v32",  # sparse attention by an indexer
    "lfm2",  # convolutions between layers of attention
    "git",  # images in no token's place
    "prophetnet",  # one token at a time after a prefix
    "roberta",  # positions that begin elsewhere
)


def test_telling_classes_are_what_the_page_says():
    listed = documented()
    for kind in set(TELLING) & set(KINDS):
        assert verdict(kind) == listed[kind], kind


def test_the_page_lists_every_class_of_the_transformers_that_it_names():
    if f"transformers {transformers.__version__}:" not in PAGE.read_text():
        pytest.skip("the page is of another transformers")
    listed = documented()
    assert set(listed) == set(KINDS)
    assert table(listed) in PAGE.read_text(), "a verdict stands in two rows"


@pytest.mark.thorough
def test_every_class_is_what_the_page_says():
    """A class that is new in transformers is one of the two, too: ``verdict`` sees to that."""
    listed, verdicts = documented(), {kind: verdict(kind) for kind in KINDS}
    assert {kind: listed.get(kind, said) for kind, said in verdicts.items()} == verdicts


@pytest.mark.thorough
def test_every_cached_class_is_blended_or_refused_as_the_page_says():
    verdicts = {kind: hf_blended.verdict(kind) for kind in hf_blended.kinds()}
    assert verdicts == hf_blended.documented()


@pytest.mark.thorough
@pytest.mark.parametrize("kind", sorted(set(NOT_BUILT) & set(KINDS)))
def test_what_is_not_tried_cannot_be_built(kind):
    with pytest.raises((ImportError, ValueError)):
        tiny_model(kind)


@pytest.mark.thorough
def test_a_verdict_is_one_that_wrong_kv_fails(monkeypatch):
    right = RequestKV.cache

    def one_token_off(room, filled, prompt):
        for keys, _ in room._layers:
            keys[:, :, :filled] = keys[:, :, :filled].roll(1, dims=2)
        return right(room, filled, prompt)

    assert verdict("gpt2") == SAME
    monkeypatch.setattr("hexkv.adapters.hf.model.RequestKV.cache", one_token_off)
    with pytest.raises(AssertionError):
        verdict("gpt2")
