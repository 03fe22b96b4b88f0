"""``python tiny_latent.py FOLDER``: a small DeepSeek-V2 with random weights, of latent attention.

Of each token a layer keeps one latent vector and one rotated key, which all heads share; of these
widths alone vLLM's kernel for CPUs can read them. Every layer is dense.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from tiny_llama import checkpoint

LAYERS, WIDTH, HEADS, INNER, VOCABULARY = 4, 512, 16, 1024, 4096
LATENT, ROTATED, PLAIN, VALUE = 512, 64, 32, 32

CONFIG = {
    "architectures": ["DeepseekV2ForCausalLM"],
    "model_type": "deepseek_v2",
    "torch_dtype": "float32",
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "intermediate_size": INNER,
    "moe_intermediate_size": INNER,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": HEADS,
    "kv_lora_rank": LATENT,
    "q_lora_rank": None,
    "qk_nope_head_dim": PLAIN,
    "qk_rope_head_dim": ROTATED,
    "v_head_dim": VALUE,
    "first_k_dense_replace": LAYERS,
    "hidden_act": "silu",
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "bos_token_id": None,
    "eos_token_id": 1,
}


def weights(seed: int = 25) -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor of the checkpoint by its name."""
    dice = torch.Generator().manual_seed(seed)

    def drawn(out: int, into: int, spread: float = 1.0) -> torch.Tensor:
        return torch.randn(out, into, generator=dice) * (spread / into**0.5)

    yield "model.embed_tokens.weight", torch.randn(VOCABULARY, WIDTH, generator=dice)
    for layer in range(LAYERS):
        at = f"model.layers.{layer}"
        yield f"{at}.self_attn.q_proj.weight", drawn(HEADS * (PLAIN + ROTATED), WIDTH, 1.7)
        yield f"{at}.self_attn.kv_a_proj_with_mqa.weight", drawn(LATENT + ROTATED, WIDTH, 1.7)
        yield f"{at}.self_attn.kv_a_layernorm.weight", torch.ones(LATENT)
        yield f"{at}.self_attn.kv_b_proj.weight", drawn(HEADS * (PLAIN + VALUE), LATENT)
        yield f"{at}.self_attn.o_proj.weight", drawn(WIDTH, HEADS * VALUE)
        yield f"{at}.mlp.gate_proj.weight", drawn(INNER, WIDTH)
        yield f"{at}.mlp.up_proj.weight", drawn(INNER, WIDTH)
        yield f"{at}.mlp.down_proj.weight", drawn(WIDTH, INNER)
        yield f"{at}.input_layernorm.weight", torch.ones(WIDTH)
        yield f"{at}.post_attention_layernorm.weight", torch.ones(WIDTH)
    yield "model.norm.weight", torch.ones(WIDTH)
    yield "lm_head.weight", drawn(VOCABULARY, WIDTH, 0.5)


if __name__ == "__main__":
    checkpoint(Path(sys.argv[1]), CONFIG, weights())
