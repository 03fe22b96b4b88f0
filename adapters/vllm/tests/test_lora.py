"""KV of a LoRA adapter is named by what was loaded, and by nothing while that is not known."""

import gc
from types import SimpleNamespace

import pytest
import torch

from hexkv.adapters.vllm.configuration.lora import Adapters, digest_of_adapter, watch
from hexkv.adapters.vllm.messages import Scope
from hexkv.adapters.vllm.worker.serving import Scopes
from hexkv.ports import DType, KVLayout, Namespace

BASE = Namespace("m", KVLayout.attention(DType.FLOAT16, layers=1, heads=1, key_width=8))


class Loaded:
    """Like vLLM's adapter: tensors of each layer, and a number."""

    def __init__(self, number=1, seed=0, scaling=1.0, dtype=torch.float32):
        dice = torch.Generator().manual_seed(seed)
        layer = SimpleNamespace(
            module_name="q_proj",
            lora_a=torch.randn(2, 8, generator=dice).to(dtype),
            lora_b=[torch.randn(8, 2, generator=dice).to(dtype), None],
            scaling=scaling,
        )
        self.id = number
        self.loras = {"q_proj": layer}


def manager_class():
    """vLLM's manager: it loads what a request's path names, a file of this test."""

    class Manager:
        def __init__(self, lora_config):
            self.lora_config = lora_config

        def _load_adapter(self, request):
            return Loaded(request.lora_int_id, seed=request.lora_path)

    return Manager


def request(name="poet", number=1, path=0):
    return SimpleNamespace(lora_name=name, lora_int_id=number, lora_path=path)


def test_a_digest_is_of_everything_but_the_number():
    one = digest_of_adapter(Loaded())
    assert digest_of_adapter(Loaded(number=2)) == one
    others = [Loaded(seed=1), Loaded(scaling=2.0), Loaded(dtype=torch.bfloat16)]
    moved = Loaded()
    moved.loras = {"k_proj": moved.loras["q_proj"]}
    turned = Loaded()
    turned.loras["q_proj"].lora_a = turned.loras["q_proj"].lora_a.T
    assert len({one, *map(digest_of_adapter, [*others, moved, turned])}) == 6
    one_bit = Loaded()
    one_bit.loras["q_proj"].lora_b[0].view(torch.int32)[7, 1] ^= 1
    assert digest_of_adapter(one_bit) != one


def test_an_adapter_is_known_from_when_it_is_loaded_to_when_it_leaves():
    adapters = Adapters()
    assert adapters.identity("poet", 1) is None
    model = Loaded()
    adapters.loaded("poet", 1, model)
    known = adapters.identity("poet", 1)
    assert known is not None
    assert adapters.identity("poet", 2) is None, "vLLM computes by the number"
    assert adapters.identity("other", 1) is None, "vLLM's own cache goes by the name"
    del model
    gc.collect()
    assert adapters.identity("poet", 1) is None
    again = Loaded()
    adapters.loaded("poet", 1, again)
    assert adapters.identity("poet", 1) == known


def test_a_name_whose_content_changed_is_not_trusted_again(caplog):
    adapters, kept = Adapters(), [Loaded(), Loaded(seed=1), Loaded()]
    for model in kept:
        adapters.loaded("poet", 1, model)
    assert adapters.identity("poet", 1) is None, "not even for the first content"
    assert "replaced under its name" in caplog.text
    adapters.loaded("poet 2", 2, kept[1])
    assert adapters.identity("poet 2", 2) == digest_of_adapter(kept[1])


def test_what_cannot_be_digested_is_not_cached():
    adapters, odd, part = Adapters(), Loaded(), Loaded()
    odd.loras["q_proj"].lora_a = object()
    with pytest.raises(TypeError):
        adapters.loaded("odd", 1, odd)
    adapters.loaded("part", 2, part, whole=False)
    assert adapters.identity("odd", 1) is None
    assert adapters.identity("part", 2) is None


def test_each_engine_of_a_process_knows_its_own_adapters():
    manager = manager_class()
    configs = [SimpleNamespace(), SimpleNamespace()]
    one, other = (watch(config, manager) for config in configs)
    model = manager(configs[0])._load_adapter(request())
    assert one.identity("poet", 1) == digest_of_adapter(model)
    assert other.identity("poet", 1) is None
    later = manager(configs[1])._load_adapter(request(path=1))
    assert other.identity("poet", 1) == digest_of_adapter(later)
    assert one.identity("poet", 1) is not None


def test_a_vllm_that_does_not_say_what_it_loads_has_no_adapters_cached(caplog):
    watch(SimpleNamespace(), object)
    assert "not cached" in caplog.text


def test_a_request_with_an_adapter_that_is_not_known_has_no_name():
    asked = Scope(lora="poet", adapter=1)
    assert Scopes(BASE).namespace(asked) is None
    adapters, model = Adapters(), Loaded()
    scopes = Scopes(BASE, adapters)
    assert scopes.namespace(asked) is None
    adapters.loaded("poet", 1, model)
    before = scopes.namespace(asked)
    assert before.lora == digest_of_adapter(model)
    newer = Loaded(seed=1)
    adapters.loaded("poet", 1, newer)
    assert scopes.namespace(asked) is None
    assert scopes.namespace(Scope()) == BASE
