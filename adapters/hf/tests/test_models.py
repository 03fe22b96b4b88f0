"""Which models fit, what their KV looks like, and who is who."""

from __future__ import annotations

import pytest
import torch
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertLMHeadModel,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    MambaConfig,
    MambaForCausalLM,
    Qwen3NextConfig,
    Qwen3NextForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)
from transformers.cache_utils import DynamicLayer

from hexkv.adapters.hf import shape
from hexkv.adapters.hf.cache import ReservedLayer
from hexkv.adapters.hf.model import CachedModel
from hexkv.adapters.hf.shape import layout_of
from hexkv.contracts.kit.cases import each
from hexkv.ports import DType, InvalidRequest, InvalidTokens, KVLayout, LayoutMismatch

CHUNK = 16  # as the engines here cut


def test_layouts_are_read_from_the_cache_itself(models):
    assert layout_of(models["llama-mha"]()) == KVLayout.attention(
        DType.FLOAT32, layers=3, heads=4, key_width=16
    )
    assert layout_of(models["llama-gqa"]().to(torch.bfloat16)) == KVLayout.attention(
        DType.BFLOAT16, layers=3, heads=2, key_width=16
    )
    assert layout_of(models["mistral-sliding"]()) == KVLayout.attention(
        DType.FLOAT32, layers=3, heads=2, key_width=16
    )


def test_latent_attention_is_cached_compressed_or_expanded_as_transformers_keeps_it(models):
    assert layout_of(models["deepseek-mla"]()) in (
        KVLayout.latent(DType.FLOAT32, layers=3, latent_width=32, rope_width=8),
        KVLayout.attention(DType.FLOAT32, layers=3, heads=4, key_width=24, value_width=24),
    )


def mamba():
    return MambaForCausalLM(MambaConfig(vocab_size=32, hidden_size=16, num_hidden_layers=1))


def hybrid():
    config = Qwen3NextConfig(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=4,
        num_attention_heads=2,
        num_key_value_heads=1,
        num_experts=2,
        moe_intermediate_size=8,
        shared_expert_intermediate_size=8,
    )
    return Qwen3NextForCausalLM(config)


def encoder_decoder():
    return T5ForConditionalGeneration(T5Config(vocab_size=32, d_model=16, num_layers=1, d_ff=16))


@each(
    ("model", "reason"),
    [
        (lambda: mamba().eval(), "recurrent state"),
        (lambda: hybrid().eval(), "recurrent state|not KV per token"),
        (lambda: encoder_decoder().eval(), "encoder-decoder"),
    ],
)
def test_a_model_whose_kv_is_not_a_prefixs_alone_is_refused(model, reason):
    with pytest.raises(LayoutMismatch, match=reason):
        layout_of(model())


SMALL = {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2}


def not_causal(llama):
    model = llama()
    model.config.is_causal = False
    return model


def gemma_both_ways(llama):
    config = Gemma3TextConfig(
        **SMALL,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        use_bidirectional_attention=True,
    )
    return Gemma3ForCausalLM(config).eval()


def bert(llama):
    return BertLMHeadModel(BertConfig(**SMALL, num_attention_heads=2)).eval()


def bert_of_masks(llama):
    return BertForMaskedLM(BertConfig(**SMALL, num_attention_heads=2)).eval()


@each(
    ("model", "reason"),
    [
        (not_causal, r"attends both ways \(is_causal=False\)"),
        (gemma_both_ways, r"attends both ways \(use_bidirectional_attention=True\)"),
        (bert, "attends both ways: KV of layer 1"),
        (bert_of_masks, "does not generate"),
        (lambda llama: llama().model, "does not generate"),
    ],
)
def test_a_model_that_sees_later_tokens_is_refused(llama, model, reason):
    with pytest.raises(LayoutMismatch, match=reason):
        layout_of(model(llama))


@each("model", [not_causal, gemma_both_ways])
@each("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_it_is_refused_whatever_its_configuration_says(llama, model, dtype, monkeypatch):
    monkeypatch.setattr(shape, "_BOTH_WAYS", {})
    with pytest.raises(LayoutMismatch, match="attends both ways: KV of layer 1"):
        layout_of(model(llama).to(dtype))


def test_a_model_that_scales_rope_by_length_is_refused(llama):
    with pytest.raises(LayoutMismatch, match="scales RoPE"):
        layout_of(llama(rope_scaling={"rope_type": "dynamic", "factor": 2.0}))


def test_a_model_in_training_mode_is_refused(llama):
    with pytest.raises(LayoutMismatch, match="training mode"):
        layout_of(llama().train())


@each(
    "ids",
    [
        [],
        torch.zeros(1, 0, dtype=torch.long),
        torch.zeros(2, 4, dtype=torch.long),
        torch.zeros(1, 4),
        [-1, 2],
        [2**32],
        [1.5],
    ],
    ids=str,
)
def test_what_is_not_one_sequence_of_tokens_is_refused(gqa, engine_for, ids):
    cached = CachedModel(gqa, engine_for(gqa))
    for call in (cached.load, cached.prefill):
        with pytest.raises(InvalidTokens):
            call(ids)


def test_generating_nothing_is_refused(gqa, engine_for):
    with pytest.raises(InvalidRequest, match="at least 1"):
        CachedModel(gqa, engine_for(gqa)).generate([1, 2], 0)


def test_an_engine_of_another_layout_is_refused(gqa, engine_for, models, prompt):
    cached = CachedModel(models["llama-mha"](), engine_for(gqa))
    with pytest.raises(LayoutMismatch):
        cached.prefill(prompt(CHUNK))


def test_a_cache_with_fewer_tokens_than_the_prompt_is_not_saved(gqa, engine_for, prompt):
    cached = CachedModel(gqa, engine_for(gqa))
    cache = cached.prefill(prompt(CHUNK)).cache
    with pytest.raises(InvalidRequest):
        cached.save(prompt(2 * CHUNK), cache)


class TestReservedLayer:
    """It must be a dynamic layer in all but where its memory comes from."""

    @pytest.fixture(autouse=True)
    def without_gradients(self):
        with torch.no_grad():
            yield

    def new(self, tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.randn(1, 2, tokens, 3), torch.randn(1, 2, tokens, 5)

    def layer(self, room: int, filled: int = 0) -> ReservedLayer:
        return ReservedLayer(torch.zeros(1, 2, room, 3), torch.zeros(1, 2, room, 5), filled)

    def test_it_grows_in_place_while_there_is_room(self):
        layer, home = self.layer(8), None
        parts = [self.new(3), self.new(4)]
        for keys, values in parts:
            layer.update(keys, values)
            home = home or layer.keys.data_ptr()
        assert layer.keys.data_ptr() == home
        assert layer.get_seq_length() == 7
        assert torch.equal(layer.keys, torch.cat([keys for keys, _ in parts], dim=2))
        assert torch.equal(layer.values, torch.cat([values for _, values in parts], dim=2))

    def test_it_leaves_the_room_while_gradients_are_recorded(self):
        layer = self.layer(8)
        layer.update(*self.new(3))
        room = layer.keys
        with torch.enable_grad():
            layer.update(*self.new(2))
        layer.update(*self.new(1))
        assert layer.get_seq_length() == 6
        assert room.untyped_storage().data_ptr() != layer.keys.untyped_storage().data_ptr()

    def test_it_goes_on_elsewhere_when_the_room_is_full(self):
        layer = self.layer(4)
        parts = [self.new(3), self.new(2), self.new(1)]
        for keys, values in parts:
            seen = layer.update(keys, values)
        assert torch.equal(seen[0], torch.cat([keys for keys, _ in parts], dim=2))
        assert torch.equal(layer.values, torch.cat([values for _, values in parts], dim=2))

    def test_what_was_cropped_is_overwritten(self):
        layer = self.layer(8)
        first, second = self.new(5), self.new(2)
        layer.update(*first)
        layer.crop(-3)
        layer.update(*second)
        assert torch.equal(layer.keys, torch.cat([first[0][:, :, :2], second[0]], dim=2))

    def test_a_repeated_batch_leaves_the_room(self):
        layer = self.layer(8)
        first = self.new(2)
        layer.update(*first)
        layer.batch_repeat_interleave(2)
        both = torch.randn(2, 2, 1, 3), torch.randn(2, 2, 1, 5)
        layer.update(*both)
        assert layer.keys.shape == (2, 2, 3, 3)
        assert torch.equal(layer.keys[1, :, :2], first[0][0])

    def test_a_reset_layer_is_what_a_reset_dynamic_layer_is(self):
        layer, other = self.layer(8), DynamicLayer()
        first, second = self.new(4), self.new(2)
        for one in (layer, other):
            one.update(*first)
            one.reset()
            one.update(*second)
        assert torch.equal(layer.keys, other.keys)
        assert torch.equal(layer.values, other.values)
