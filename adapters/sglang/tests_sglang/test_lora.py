"""LoRA adapters by what they hold, in SGLang's own classes."""

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sglang.srt.lora import lora_manager
from sglang.srt.lora.lora import LoRAAdapter
from sglang.srt.lora.lora_config import LoRAConfig
from sglang.srt.lora.lora_registry import LoRARef
from sglang.srt.managers.schedule_batch import Req
from sglang.srt.sampling.sampling_params import SamplingParams

from hexkv.adapters.sglang import hooks
from hexkv.adapters.sglang.identity.lora import CONTENTS, Contents, name_by_content


@pytest.fixture
def manager(monkeypatch):
    """SGLang's manager, with what it needs for tensors, in a process that names by content."""
    hooks.install()
    monkeypatch.setattr(CONTENTS, "digests", {})
    monkeypatch.setattr(CONTENTS, "naming", False)
    made = object.__new__(lora_manager.LoRAManager)  # without a model
    made.__dict__ |= {
        "base_hf_config": SimpleNamespace(num_hidden_layers=2),
        "base_model": None,
        "configs": {},
        "load_config": None,
        "lora_backend": None,
        "loras": {},
        "speculative_algorithm": None,
    }
    return made


def load(manager, seed, alpha=16):
    """Loads an adapter of random tensors; SGLang's number of it."""
    dice = torch.Generator().manual_seed(seed)
    ref = LoRARef(lora_name=f"adapter {seed}", lora_path="nowhere", pinned=False)
    manager.configs[ref.lora_id] = LoRAConfig.from_dict(
        {"target_modules": ["o_proj"], "r": 2, "lora_alpha": alpha, "peft_type": "LORA"}
    )
    names = [f"model.layers.{n}.self_attn.o_proj.lora_{way}.weight" for n in (0, 1) for way in "AB"]
    tensors = {name: torch.randn(4, 4, generator=dice).bfloat16() for name in names}
    manager.load_lora_weights_from_tensors(ref, tensors)
    return ref.lora_id


def key(adapter=None, **given):
    """The ``extra_key`` of one of SGLang's requests."""
    sampling = SamplingParams(max_new_tokens=1)
    return Req("r", "", [1, 2], sampling, lora_id=adapter, **given).extra_key


def test_an_adapter_that_is_loaded_again_has_the_names_that_it_had(manager):
    name_by_content()
    first, again, other, scaled = (
        load(manager, 1),
        load(manager, 1),
        load(manager, 2),
        load(manager, 1, alpha=8),
    )
    assert first != again
    assert key(first) == key(again)
    assert len({key(), key(first), key(other), key(scaled), key(first, extra_key="a")}) == 5
    assert key(extra_key="a") == "a"
    manager.loras.pop(first)
    load(manager, 3)
    assert first not in CONTENTS.digests


def test_without_a_cache_that_lasts_requests_keep_sglangs_keys(manager):
    number = load(manager, 1)
    assert key(number, extra_key="a") == f"a{number}"


def test_an_adapter_of_an_unknown_kind_keeps_its_number_and_the_log_says_why(
    manager, monkeypatch, caplog
):
    name_by_content()
    made = LoRAAdapter.__init__

    def init(self, *args, **named):
        made(self, *args, **named)
        self.biases = {}

    monkeypatch.setattr(LoRAAdapter, "__init__", init)
    number = load(manager, 1)
    assert key(number) == number
    assert "biases" in caplog.text


PARTS = st.text("ab-:", max_size=3) | st.builds("hexkv-lora:{}".format, st.text("ab-:", max_size=4))


@given(st.sets(st.tuples(st.sampled_from([None, "n1", "n2"]), PARTS), min_size=2))
def test_no_key_of_a_client_is_read_as_an_adapter(requests):
    contents = Contents({"n1": "a", "n2": "ab"})
    keys = {contents.name(adapter, given + (adapter or "")) for adapter, given in requests}
    assert len(keys) == len(requests)
