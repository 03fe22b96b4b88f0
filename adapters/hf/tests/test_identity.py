"""KV of two models never has the same name, and that of one checkpoint has the same everywhere."""

from __future__ import annotations

import json
from shutil import copytree

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM

from hexkv.adapters.hf.identity import namespace_of_model, weights_digest
from hexkv.adapters.hf.memory import tensors_of
from hexkv.adapters.hf.shape import layout_of
from hexkv.contracts.kit.cases import each
from hexkv.kernels.weights import digest_of
from hexkv.plugins.composition.identity import identify
from hexkv.plugins.configuration.config import load as configuration
from hexkv.ports import LayoutMismatch


def test_a_namespace_names_the_model_and_its_weights(llama):
    model = llama()
    namespace = namespace_of_model(model, salt="tenant", extra={"b": "2", "a": "1"})
    assert namespace.model == "llama"
    assert namespace.layout == layout_of(model)
    assert namespace.revision == weights_digest(llama()), "equal weights are one model"
    assert namespace.salt == "tenant"
    assert namespace.extra == (("a", "1"), ("b", "2"))
    assert namespace_of_model(model, name="ours", weights="v1").model == "ours"
    assert namespace_of_model(model, weights="v1").revision == "vouched for: v1"


def test_models_that_differ_in_seed_or_configuration_have_different_digests(llama):
    digests = {
        weights_digest(model)
        for model in (llama(), llama(seed=1), llama(rms_norm_eps=1e-3), llama(hidden_act="gelu"))
    }
    assert len(digests) == 4


def test_two_classes_of_one_configuration_have_different_digests(llama):
    model, other = llama(), llama()
    other.__class__ = type("Other", (type(model),), {})
    assert weights_digest(model) != weights_digest(other)


def load(folder, **how):
    model = AutoModelForCausalLM.from_pretrained(folder, **{"dtype": "auto"} | how)
    return model.eval()


@pytest.fixture(scope="module")
def folder(tmp_path_factory, llama):
    folder = tmp_path_factory.mktemp("model") / "tiny"
    llama(num_key_value_heads=2).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def stored(folder):
    return load(folder)


@each("kind", ["llama-gqa", "mistral-sliding"])
@each("tied", [False, True])
@each("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_model_from_a_folder_has_the_digest_of_the_folder(
    tmp_path_factory, models, kind, tied, dtype
):
    tmp_path = tmp_path_factory.mktemp("case")
    model = models[kind]()
    model.config.tie_word_embeddings = tied
    model.tie_weights()
    model.save_pretrained(tmp_path / "tiny", max_shard_size="64KB")
    assert len(list((tmp_path / "tiny").glob("*.safetensors"))) > 1
    namespace = namespace_of_model(load(tmp_path / "tiny", dtype=dtype))
    assert namespace.model == "tiny"
    assert namespace.revision == digest_of(tmp_path / "tiny")


@settings(deadline=None, max_examples=25)
@given(data=st.data())
def test_one_changed_element_anywhere_is_another_digest(stored, folder, llama, data):
    """In a model that a folder holds as in one that was never saved, buffers among them."""
    model, before = data.draw(
        st.sampled_from([(stored, digest_of(folder)), (llama(), weights_digest(llama()))])
    )
    name = data.draw(st.sampled_from(sorted(tensors_of(model))))
    element = tensors_of(model)[name].detach().view(-1)
    at = data.draw(st.integers(0, element.numel() - 1))
    was = element[at].clone()
    try:
        element[at] += 3.0
        assert weights_digest(model) != before
    finally:
        element[at] = was
    assert weights_digest(model) == before


def test_a_copy_in_a_folder_of_another_name_shares_under_one_name(tmp_path, folder, stored):
    copytree(folder, tmp_path / "copy")
    other = load(tmp_path / "copy")
    assert namespace_of_model(other).revision == namespace_of_model(stored).revision
    assert namespace_of_model(other) != namespace_of_model(stored)
    assert namespace_of_model(other, name="tiny") == namespace_of_model(stored)
    called = configuration(environ={}, overrides={"model": {"name": "ours"}})
    same = [identify(namespace_of_model(model), called) for model in (stored, other)]
    assert same[0] == same[1]


def pruned(model):
    model.model.layers[0].mlp.down_proj.bias = torch.nn.Parameter(torch.zeros(64))


def replaced(model):
    layer = model.model.layers[0]
    layer.mlp.__class__ = type("Other", (type(layer.mlp),), {})


def configured(model):
    model.config.rms_norm_eps = 1e-3


def mixed(model):
    model.model.norm.to(torch.float64)


def cast_to_eight_bits_and_back(model):
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(weight.to(torch.float8_e4m3fn).to(weight.dtype))


@each("change", [pruned, replaced, configured, mixed, cast_to_eight_bits_and_back])
def test_a_model_that_is_no_longer_the_folders_shares_with_transformers_only(folder, change):
    model = load(folder)
    change(model)
    assert weights_digest(model).startswith("memory-")


@each("missing", ["config.json", "model.safetensors"])
def test_a_folder_that_lost_a_file_proves_nothing(tmp_path_factory, folder, missing):
    tmp_path = tmp_path_factory.mktemp("case")
    model = load(folder)
    model.config.name_or_path = str(tmp_path)
    for name in {"config.json", "model.safetensors"} - {missing}:
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    assert weights_digest(model).startswith("memory-")


def test_a_folder_of_other_code_proves_nothing(tmp_path, folder):
    model = load(folder)
    said = json.loads((folder / "config.json").read_text()) | {"architectures": ["Other"]}
    (tmp_path / "config.json").write_text(json.dumps(said))
    (tmp_path / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    model.config.name_or_path = str(tmp_path)
    assert weights_digest(model).startswith("memory-")


def test_weights_that_are_not_in_memory_need_a_name(llama):
    model = llama()
    model.model.norm.to("meta")
    with pytest.raises(LayoutMismatch, match=r"model\.norm\.weight is not in memory"):
        weights_digest(model)


@each("said", [{}, {"revision": "8c1"}, {"name": "ours"}, {"weights": "v1"}])
def test_the_section_model_of_a_configuration_works_as_under_every_host(stored, said):
    host = namespace_of_model(stored)
    namespace = identify(host, configuration(environ={}, overrides={"model": said}))
    assert (namespace == host) is (not said)
    assert namespace.model == said.get("name", host.model)
    assert (namespace.revision == host.revision) is ("weights" not in said)
    if "weights" in said:
        assert namespace == namespace_of_model(stored, weights="v1")
