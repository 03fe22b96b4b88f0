"""What is generated from cached KV is what would have been generated without it."""

from __future__ import annotations

import torch
from transformers import DynamicCache, PreTrainedModel

from hexkv.adapters.hf.argument import with_cache
from hexkv.adapters.hf.model import CachedModel
from hexkv.contracts.kit.cases import each
from hexkv.ports import Reason

CHUNK = 16  # as the engines here cut
NEW = 12


def without_cache(model: PreTrainedModel, input_ids: torch.Tensor) -> tuple[torch.Tensor, list]:
    """Logits of the first new token, and the greedy continuation."""
    cache, new = DynamicCache(), []
    with torch.no_grad():
        first = logits = model(input_ids=input_ids, **with_cache(model, cache)).logits[0, -1]
        for _ in range(NEW):
            new.append(int(logits.argmax()))
            token = torch.tensor([new[-1:]])
            logits = model(input_ids=token, **with_cache(model, cache)).logits[0, -1]
    return first, new


def test_a_hit_from_memory_gives_the_same_tokens(model, engine_for, prompt):
    ids = prompt(5 * CHUNK + 3)
    logits, tokens = without_cache(model, ids)
    cached = CachedModel(model, engine_for(model))
    for hit, stored in ((0, 5 * CHUNK), (5 * CHUNK, 0)):
        answer = cached.generate(ids, NEW)
        assert (answer.prefill.hit_tokens, answer.prefill.stored_tokens) == (hit, stored)
        assert torch.allclose(answer.prefill.logits, logits, rtol=0, atol=1e-4)
        assert answer.tokens == tokens
    assert answer.prefill.tiers == {"memory": 5 * CHUNK}


def test_a_hit_from_disk_in_a_fresh_engine_gives_the_same_tokens(model, engine_for, prompt):
    ids = prompt(5 * CHUNK + 3)
    logits, tokens = without_cache(model, ids)
    CachedModel(model, engine_for(model)).prefill(ids)
    answer = CachedModel(model, engine_for(model)).generate(ids, NEW)
    assert answer.prefill.tiers == {"disk": 5 * CHUNK}
    assert answer.prefill.loaded_bytes > 0
    assert torch.allclose(answer.prefill.logits, logits, rtol=0, atol=1e-4)
    assert answer.tokens == tokens


def test_a_hit_on_a_shared_beginning_computes_only_what_differs(model, engine_for, prompt):
    ids = prompt(6 * CHUNK)
    other = torch.cat([ids[:, : 3 * CHUNK + 5], prompt(40, seed=2)], dim=1)
    logits, tokens = without_cache(model, other)
    cached = CachedModel(model, engine_for(model))
    cached.prefill(ids)
    answer = cached.generate(other, NEW)
    assert answer.prefill.hit_tokens == 3 * CHUNK
    assert torch.allclose(answer.prefill.logits, logits, rtol=0, atol=1e-4)
    assert answer.tokens == tokens


def test_of_a_prompt_that_is_cached_whole_the_last_token_is_computed(model, engine_for, prompt):
    ids = prompt(4 * CHUNK)
    logits, tokens = without_cache(model, ids)
    cached = CachedModel(model, engine_for(model))
    cached.prefill(ids)
    answer = cached.generate(ids, NEW)
    assert answer.prefill.hit_tokens == 4 * CHUNK - 1
    assert answer.prefill.stored_tokens == 0
    assert torch.allclose(answer.prefill.logits, logits, rtol=0, atol=1e-4)
    assert answer.tokens == tokens


@each("length", [1, CHUNK - 1])
def test_a_prompt_shorter_than_a_chunk_is_computed_and_not_stored(gqa, engine_for, length, prompt):
    ids = prompt(length)
    logits, tokens = without_cache(gqa, ids)
    cached = CachedModel(gqa, engine_for(gqa))
    for _ in range(2):
        answer = cached.generate(ids, NEW)
        assert (answer.prefill.hit_tokens, answer.prefill.stored_tokens) == (0, 0)
        assert torch.allclose(answer.prefill.logits, logits, rtol=0, atol=1e-4)
        assert answer.tokens == tokens


def test_wrong_kv_would_show_in_the_logits(model, engine_for, prompt):
    """The control: equality above means something, because this is unequal."""
    ids, other = prompt(4 * CHUNK + 3), prompt(4 * CHUNK + 3, seed=2)
    logits, _ = without_cache(model, ids)
    cached = CachedModel(model, engine_for(model))
    foreign = cached.prefill(other).cache
    mixed = cached.prefill(ids).cache
    for layer, strange in zip(mixed.layers, foreign.layers, strict=True):
        layer.crop(-1)
        layer.keys[:, :, 3 * CHUNK : 4 * CHUNK] = strange.keys[:, :, 3 * CHUNK : 4 * CHUNK]
        layer.values[:, :, 3 * CHUNK : 4 * CHUNK] = strange.values[:, :, 3 * CHUNK : 4 * CHUNK]
    with torch.no_grad():
        wrong = model(input_ids=ids[:, -1:], **with_cache(model, mixed)).logits[0, -1]
    assert (wrong - logits).abs().max() > 0.01


def test_bfloat16_is_kept_bit_for_bit(engine_for, prompt, llama):
    model = llama(num_key_value_heads=2).to(torch.bfloat16)
    ids = prompt(3 * CHUNK + 2)
    cached = CachedModel(model, engine_for(model))
    computed = cached.generate(ids, NEW)
    loaded = cached.generate(ids, NEW)
    assert loaded.prefill.hit_tokens == 3 * CHUNK
    for before, after in zip(
        computed.prefill.cache.layers, loaded.prefill.cache.layers, strict=True
    ):
        assert torch.equal(before.keys[:, :, : 3 * CHUNK], after.keys[:, :, : 3 * CHUNK])
        assert torch.equal(before.values[:, :, : 3 * CHUNK], after.values[:, :, : 3 * CHUNK])
    assert loaded.tokens == computed.tokens


def test_a_loaded_cache_serves_transformers_own_generate(model, engine_for, prompt):
    ids = prompt(4 * CHUNK + 3)
    _, tokens = without_cache(model, ids)
    cached = CachedModel(model, engine_for(model))
    cached.prefill(ids)
    loaded = cached.load(ids)
    assert loaded.hit_tokens == 4 * CHUNK
    output = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        **with_cache(model, loaded.cache),
        max_new_tokens=NEW,
        do_sample=False,
    )
    assert output[0, ids.shape[1] :].tolist() == tokens


def test_kv_that_transformers_computed_can_be_saved(model, engine_for, prompt):
    ids = prompt(4 * CHUNK + 3)
    cache = DynamicCache()
    with torch.no_grad():
        model(input_ids=ids, **with_cache(model, cache))
    cached = CachedModel(model, engine_for(model))
    assert cached.save(ids, cache) == 4 * CHUNK
    assert cached.save(ids, cache) == 0
    assert cached.prefill(ids).hit_tokens == 4 * CHUNK


def test_a_model_with_other_weights_does_not_hit(gqa, engine_for, prompt, llama):
    ids = prompt(4 * CHUNK)
    CachedModel(gqa, engine_for(gqa)).prefill(ids)
    other = llama(seed=1, num_key_value_heads=2)
    assert CachedModel(other, engine_for(other)).prefill(ids).hit_tokens == 0


def test_what_the_model_computes_sooner_than_a_tier_brings_is_not_loaded(
    gqa, engine_for, prompt, monkeypatch
):
    engine, ids = engine_for(gqa, memory=False, rate=None), prompt(8 * CHUNK + 3)
    cached = CachedModel(gqa, engine)
    assert cached.prefill(ids[:, :60]).hit_tokens == 0
    assert cached._times.rate(len(ids)) is None, "too few tokens show nothing"
    loaded = cached.load(ids)
    gqa.generate(ids, **with_cache(gqa, loaded.cache), max_new_tokens=2, pad_token_id=0)
    rate = cached._times.rate(8 * CHUNK)
    assert rate > 0, "also of transformers' own generate"
    cached.prefill(ids)
    assert engine.flush(60.0)
    [tier] = engine.admin.stack.tiers
    tier.link.began(0.0)
    tier.link.ended(1.0, cached._times.rate(8 * CHUNK) / 1000)
    assert cached.prefill(ids).hit_tokens == 0
    diverges = engine.explain(ids[0].tolist()).diverges
    assert diverges.tiers["disk"].reason is Reason.SLOWER
    monkeypatch.setattr(cached._times, "rate", lambda tokens: 1e-3)
    assert cached.prefill(ids).hit_tokens == 8 * CHUNK
