"""Every causal class of transformers, tiny and random: from the class of its configuration alone.

Sizes are set wherever a configuration has a field of that name, in its parts, too; windows,
blocks and conversions are shorter than the prompts of the tests. A class whose configuration
validates more than sizes has a line in ``_CHANGES``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import torch
import transformers
from transformers import AutoConfig, PretrainedConfig, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

LARGEST = 12_000_000
VOCABULARY = 112
KINDS = tuple(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
"""Types of models that ``AutoModelForCausalLM`` knows."""

_SIZES: Mapping[int, str] = {
    VOCABULARY: "vocab_size vocab_size_per_layer_input unpadded_vocab_size",
    64: "hidden_size d_model n_embd dim_model emb_dim word_embed_proj_dim backbone_hidden_size"
    " hidden_size_global mm_embed_dim",
    96: "intermediate_size dim_ff ffn_dim n_inner dff decoder_ffn_dim encoder_ffn_dim"
    " feed_forward_size mlp_dim dense_intermediate_size d_inner",
    32: "moe_intermediate_size shared_expert_intermediate_size expert_ffn_hidden_size image_size"
    " kv_lora_rank shared_intermediate_size shared_experts_intermediate_size hc_lowrank"
    " linear_key_head_dim linear_value_head_dim ffn_hidden_size",
    48: "q_lora_rank",
    4: "num_hidden_layers n_layer n_layers num_layers encoder_layers decoder_layers"
    " num_encoder_layers num_decoder_layers"
    " num_attention_heads n_head n_heads num_heads decoder_attention_heads"
    " encoder_attention_heads num_encoder_attention_heads num_decoder_attention_heads"
    " num_experts n_routed_experts num_local_experts moe_num_experts linear_num_value_heads"
    " index_n_heads index_topk_blocks mamba_n_heads n_mamba_heads",
    2: "num_key_value_heads num_experts_per_tok"
    " num_experts_per_token moe_topk moe_k n_group num_expert_group type_vocab_size"
    " linear_num_key_heads",
    16: "head_dim qk_nope_head_dim v_head_dim patch_size index_head_dim index_topk"
    " hidden_size_per_layer_input attention_head_size linear_head_dim",
    512: "max_position_embeddings n_positions max_seq_len model_max_length n_ctx"
    " max_sequence_length encoder_hash_byte_group_vocab position_embedding_size"
    " ngram_vocab_size_base",
    8: "qk_rope_head_dim rotary_dim index_block_size laurel_rank",
    1: "topk_group first_k_dense_replace index_local_blocks",
    24: "sliding_window attention_chunk_size window_size local_attention_window_len"
    " local_attention sliding_window_size",
}
_WINDOWS = {"sliding_window", "attention_chunk_size"}
"""Fields that stay as they are where the class has none by default."""

_TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_DECODER: Mapping[str, object] = {"is_decoder": True}
_ENCODERS = {
    *("bert", "bert-generation", "big_bird", "camembert", "data2vec-text", "electra", "ernie"),
    *("megatron-bert", "roberta", "roberta-prelayernorm", "roformer"),
    *("xlm-roberta", "xlm-roberta-xl"),
}
_ROPE = {"rope_type": "default", "rope_theta": 1e4}
_ALTERNATING = ["sliding_attention", "full_attention"] * 2

_QWEN4 = {
    "indexer_n_heads": 4,
    "indexer_kv_heads": 1,
    "indexer_head_dim": 16,
    "indexer_budget": 32,
    "indexer_compress_ratio": 4,
}
_DOTS3 = {
    "swa_num_attention_heads": 4,
    "swa_num_key_value_heads": 4,
    "swa_q_lora_rank": 32,
    "swa_kv_lora_rank": 32,
    "swa_head_dim": 24,
    "swa_qk_nope_head_dim": 16,
    "swa_v_head_dim": 16,
}
_ASSISTANT = {
    "model_type": "gemma4_text",
    "hidden_size_per_layer_input": 0,
    "vocab_size_per_layer_input": 0,
    "num_kv_shared_layers": 4,
    "layer_types": _ALTERNATING,
}

_CHANGES: Mapping[str, Mapping[str, object]] = {
    **dict.fromkeys(_ENCODERS, _DECODER),
    "blt": {"encoder_config": {"num_hidden_layers": 1}},
    "cohere_compass_text": {
        "layer_types": _ALTERNATING,
        "rope_parameters": dict.fromkeys(set(_ALTERNATING), _ROPE),
    },
    "dbrx": {"attn_config": {"rope_theta": 1e4, "clip_qkv": 8.0}},
    "dots3_note": _DOTS3,
    "dots3_note_text": _DOTS3,
    "dots1": {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1},
    "gemma3n_text": {"num_kv_shared_layers": 2, "layer_types": _ALTERNATING},
    "gemma4_text": {"num_kv_shared_layers": 2, "layer_types": _ALTERNATING},
    "gpt_neo": {"attention_types": [[["global", "local"], 2]]},
    "longcat_flash": {"zero_expert_num": 2, "head_dim": 8},
    "minimax_m3_vl_text": {"layer_types": ["minimax_m3_sparse"] * 4},
    "qwen4_exp_text": _QWEN4,
    "qwen4_exp": _QWEN4,
    "gemma4_assistant": {"text_config": _ASSISTANT},
    "gemma4_unified_assistant": {"text_config": _ASSISTANT},
    "lfm2": {"layer_types": ["conv", "full_attention"] * 2},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 2},
    "mamba2": {"num_heads": 8, "n_groups": 2},
    "reformer": {**_DECODER, "attn_layers": ["local", "lsh"], "axial_pos_embds": False},
    "rembert": {**_DECODER, "input_embedding_size": 16, "output_embedding_size": 16},
    "roc_bert": {**_DECODER, "pronunciation_vocab_size": 16, "shape_vocab_size": 16},
    "xmod": {**_DECODER, "default_language": "en_XX"},
    "zamba": {"layers_block_type": ["mamba", "hybrid"] * 2},
    "zamba2": {"layers_block_type": ["mamba", "hybrid"] * 2},
    "zaya": {"num_experts_per_tok": 1},
}


def _shrunk(cls: type[PretrainedConfig], changes: Mapping[str, object]) -> PretrainedConfig:
    known = {field.name: field for field in dataclasses.fields(cls)}
    sizes = {name: size for size, names in _SIZES.items() for name in names.split()}
    values: dict[str, object] = {
        name: size
        for name, size in (sizes | _TOKENS).items()
        if name in known and not (name in _WINDOWS and known[name].default is None)
    }
    if values.get("kv_lora_rank"):  # latent attention expands to one key and value per head
        values["num_key_value_heads"] = 4
    parts = dict(cls.sub_configs)
    for name, part in parts.items():
        inner = changes.get(name, {})
        if part is AutoConfig:
            part = _kind_of_part(cls, name, inner)
        if part is not None:
            values[name] = _shrunk(part, {k: v for k, v in inner.items() if k != "model_type"})
    values |= {name: value for name, value in changes.items() if name not in parts}
    return cls(**values)


def _kind_of_part(cls, name, inner):
    if "model_type" in inner:
        return getattr(transformers, CONFIG_MAPPING_NAMES[inner["model_type"]])
    part = getattr(cls(), name, None)
    return None if part is None else type(part)


def tiny_model(kind: str, seed: int = 3) -> PreTrainedModel:
    """A model of *kind* whose random weights attend sharply, so that wrong KV shows."""
    cls = getattr(transformers, MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[kind])
    config = _shrunk(cls.config_class, _CHANGES.get(kind, {}))
    with torch.device("meta"):
        size = sum(weight.numel() for weight in cls(config).parameters())
    assert size < LARGEST, f"{size} parameters of {kind} are no tiny model"
    torch.manual_seed(seed)
    model = cls(config).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() >= 2 and weight.is_floating_point():
                scale = 1.0 if "embed" in name or "wte" in name else 1.3 / weight.shape[-1] ** 0.5
                weight.normal_(0, scale, generator=generator)
    return model
