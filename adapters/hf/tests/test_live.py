"""Weights that change under a live model end the namespace of their KV, and begin another."""

from __future__ import annotations

import copy
import gc

import pytest
import torch
from transformers import DynamicCache

from hexkv.adapters.hf.argument import with_cache
from hexkv.adapters.hf.identity import namespace_of_model
from hexkv.adapters.hf.model import CachedModel
from hexkv.adapters.hf.snapshot import Snapshot
from hexkv.contracts.kit.cases import each
from hexkv.plugins.composition.compose import build
from hexkv.plugins.configuration.schema import EngineSettings
from hexkv.ports import DType, InvalidRequest, LayoutMismatch

CHUNK = 16  # as the engines here cut


def trained_on(model):
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    tokens = torch.arange(20)[None]
    model(input_ids=tokens, labels=tokens).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    model.eval()


def state_loaded(model):
    weights = {name: tensor.roll(1, 0) for name, tensor in model.state_dict().items()}
    model.load_state_dict(weights)


def state_assigned(model):
    weights = {name: tensor.roll(1, 0) for name, tensor in model.state_dict().items()}
    model.load_state_dict(weights, assign=True)


def data_replaced(model):
    weight = model.model.layers[1].self_attn.v_proj.weight
    weight.data = weight.data.roll(1, 0)


def parameter_replaced(model):
    projection = model.model.layers[1].self_attn.v_proj
    projection.weight = torch.nn.Parameter(projection.weight.detach().roll(1, 0))


def module_replaced(model):
    other = copy.deepcopy(model.model.layers[1])
    with torch.no_grad():
        other.self_attn.v_proj.weight.neg_()
    model.model.layers[1] = other


def module_added(model):
    model.model.layers[1].self_attn.v_proj.bias = torch.nn.Parameter(torch.ones(32))


def buffer_written(model):
    model.model.rotary_emb.inv_freq *= 2


CHANGES = (
    trained_on,
    state_loaded,
    state_assigned,
    data_replaced,
    parameter_replaced,
    module_replaced,
    module_added,
    buffer_written,
)


def logits_of(model, ids):
    with torch.no_grad():
        return model(input_ids=ids).logits[0, -1]


@each("change", CHANGES)
def test_kv_of_changed_weights_is_neither_hit_nor_stored_under_the_former_name(
    llama, engine_for, prompt, caplog, change
):
    model = llama(num_key_value_heads=2)
    engine = engine_for(model)
    cached = CachedModel(model, engine)
    number = CHANGES.index(change)  # each one its own prompts: two may lead to the same weights
    ids, other = (prompt(4 * CHUNK + 3, seed=2 * number + one) for one in (1, 2))
    caplog.clear()
    cached.prefill(ids)
    assert not caplog.records

    change(model)
    for hit in (0, 4 * CHUNK):
        answer = cached.prefill(ids)
        assert answer.hit_tokens == hit
        assert torch.allclose(answer.logits, logits_of(model, ids), rtol=0, atol=1e-4)
    cached.prefill(other)
    assert cached.namespace.revision == namespace_of_model(model).revision
    assert engine.lookup(ids[0].tolist()).hit_tokens == 4 * CHUNK, (
        "the former weights' own KV stays"
    )
    assert engine.lookup(other[0].tolist()).hit_tokens == 0
    assert ["changed in memory" in line for line in caplog.messages] == [True]


def test_weights_that_come_back_find_what_was_stored(llama, engine_for, prompt):
    model = llama(num_key_value_heads=2)
    cached = CachedModel(model, engine_for(model))
    ids, former = prompt(4 * CHUNK + 3), copy.deepcopy(model.state_dict())
    cached.prefill(ids)
    loaded = cached.load(ids)
    state_loaded(model)
    assert cached.load(ids).hit_tokens == 0
    model.load_state_dict(former)
    assert cached.load(ids).hit_tokens == 4 * CHUNK
    cached.extend(ids[0, 4 * CHUNK :].tolist(), loaded.cache)
    assert cached.save(ids, loaded.cache) == 0


def test_equal_weights_elsewhere_in_memory_keep_their_namespace(llama, engine_for, prompt):
    model = llama(num_key_value_heads=2)
    cached = CachedModel(model, engine_for(model))
    ids = prompt(4 * CHUNK + 3)
    cached.prefill(ids)
    for weight in model.parameters():
        weight.data = weight.data.clone()
    assert cached.load(ids).hit_tokens == 4 * CHUNK


def test_another_dtype_is_another_namespace(llama, engine_for, prompt):
    model = llama(num_key_value_heads=2)
    cached = CachedModel(model, engine_for(model))
    ids = prompt(4 * CHUNK + 3)
    cached.prefill(ids)
    model.to(torch.bfloat16)
    for hit in (0, 4 * CHUNK):
        assert cached.prefill(ids).hit_tokens == hit
    assert cached.namespace.layout.dtype is DType.BFLOAT16


def test_a_cache_of_former_weights_is_not_saved(llama, engine_for, prompt, caplog):
    model = llama(num_key_value_heads=2)
    cached = CachedModel(model, engine_for(model))
    ids = prompt(4 * CHUNK + 3)
    for noticed in (False, True):
        loaded, theirs = cached.load(ids), DynamicCache()
        cached.extend(ids[0].tolist(), loaded.cache)
        with torch.no_grad():
            model(input_ids=ids, **with_cache(model, theirs))
        state_loaded(model)
        if noticed:
            cached.load(ids)
            with pytest.raises(InvalidRequest, match=r"layer 0 .* by other weights"):
                cached.save(ids, theirs)
        else:
            caplog.clear()
            assert cached.save(ids, theirs) == 0
            assert "former weights" in caplog.messages[-1]
        with pytest.raises(InvalidRequest, match="load the prompt again"):
            cached.save(ids, loaded.cache)
        assert cached.load(ids).hit_tokens == 0


def test_weights_that_change_amid_a_prefill_are_not_stored(llama, engine_for, prompt):
    model = llama(num_key_value_heads=2)
    cached = CachedModel(model, engine_for(model))
    ids = prompt(4 * CHUNK + 3)

    def once(*_):
        handle.remove()
        state_loaded(model)

    handle = model.register_forward_hook(once)
    assert cached.prefill(ids).stored_tokens == 0
    assert cached.load(ids).hit_tokens == 0


@each("vouched", ["", "v1"])
def test_weights_that_changed_before_the_cache_was_put_under_the_model_are_noticed(
    llama, tmp_path, prompt, vouched
):
    model, ids = llama(num_key_value_heads=2), prompt(2 * CHUNK)
    namespace = namespace_of_model(model, weights=vouched)
    settings = EngineSettings.model_validate(
        {"chunk": {"size": CHUNK}, "pool": {"bytes": 2**23}, "tiers": ({"store": "memory"},)}
    )
    with build(settings, namespace) as engine:
        CachedModel(model, engine).prefill(ids)
        state_loaded(model)
        cached = CachedModel(model, engine)
        assert cached.prefill(ids).hit_tokens == 0
        assert cached.namespace.revision.startswith("memory-")
        if not vouched:
            namespace_of_model(model)  # the engine stays that of the former ones
            assert CachedModel(model, engine).namespace == cached.namespace


def test_a_model_in_training_mode_is_refused(llama, engine_for, prompt):
    model = llama(num_key_value_heads=2)
    cached = CachedModel(model, engine_for(model))
    cache = cached.prefill(prompt(CHUNK)).cache
    model.train()
    for call in (cached.load, cached.prefill, lambda ids: cached.save(ids, cache)):
        with pytest.raises(LayoutMismatch, match="training mode"):
            call(prompt(CHUNK))


def test_running_the_model_changes_no_weight(model, prompt):
    seen = Snapshot(model)
    ids = prompt(40)
    model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=3, pad_token_id=0)
    copy.deepcopy(model)
    assert seen.holds(model)


def test_a_snapshot_keeps_no_weights_alive_and_no_address_misleads_it(llama):
    model = llama()
    weight = model.lm_head.weight
    seen = Snapshot(model)
    for _ in range(50):  # freed memory is used again, at the same address
        weight.data = weight.data + 1
        assert not seen.holds(model)
    storage = seen._seen[0][2]
    del model, weight
    gc.collect()
    assert storage.expired()


def test_what_is_moved_in_and_out_of_memory_is_not_taken_for_a_change(llama):
    model = llama()
    held = model.lm_head.weight.detach().clone()
    model.lm_head.weight = torch.nn.Parameter(held.to("meta"))
    seen = Snapshot(model)
    model.lm_head.weight = torch.nn.Parameter(held)
    model.lm_head.weight = torch.nn.Parameter(held.to("meta"))
    assert seen.holds(model)
