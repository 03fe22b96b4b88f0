"""``python tiny_conv.py FOLDER``: a small LFM2 with random weights, whose layers keep states.

Two layers of three are short convolutions: of all tokens so far they keep the last few inputs, not
something for each token. vLLM keeps such states in blocks of their own, at the ends of blocks only.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from tiny_llama import checkpoint

LAYERS, WIDTH, HEADS, KV_HEADS, INNER, VOCABULARY, SEEN = 6, 256, 4, 2, 512, 4096, 3
HEAD = WIDTH // HEADS
KINDS = ["conv", "conv", "full_attention"] * (LAYERS // 3)

CONFIG = {
    "architectures": ["Lfm2ForCausalLM"],
    "model_type": "lfm2",
    "torch_dtype": "float32",
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "conv_dim": WIDTH,
    "conv_dim_out": WIDTH,
    "block_dim": WIDTH,
    "block_ff_dim": INNER,
    "intermediate_size": INNER,
    "block_auto_adjust_ff_dim": False,
    "block_multiple_of": 256,
    "block_ffn_dim_multiplier": 1.0,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "layer_types": KINDS,
    "conv_L_cache": SEEN,
    "conv_bias": False,
    "norm_eps": 1e-5,
    "max_position_embeddings": 8192,
    "rope_theta": 1000000.0,
    "tie_word_embeddings": True,
    "bos_token_id": None,
    "eos_token_id": 1,
    "pad_token_id": 0,
}


def weights(seed: int = 23) -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor of the checkpoint by its name."""
    dice = torch.Generator().manual_seed(seed)

    def drawn(out: int, into: int, spread: float = 1.0) -> torch.Tensor:
        return torch.randn(out, into, generator=dice) * (spread / into**0.5)

    # Small: the head is the same matrix, and would say each token again.
    yield "model.embed_tokens.weight", drawn(VOCABULARY, WIDTH, 0.5)
    for layer, kind in enumerate(KINDS):
        at = f"model.layers.{layer}"
        if kind == "conv":
            yield f"{at}.conv.in_proj.weight", drawn(3 * WIDTH, WIDTH)
            yield f"{at}.conv.conv.weight", torch.randn(WIDTH, 1, SEEN, generator=dice)
            yield f"{at}.conv.out_proj.weight", drawn(WIDTH, WIDTH)
        else:
            yield f"{at}.self_attn.q_proj.weight", drawn(HEADS * HEAD, WIDTH)
            yield f"{at}.self_attn.k_proj.weight", drawn(KV_HEADS * HEAD, WIDTH)
            yield f"{at}.self_attn.v_proj.weight", drawn(KV_HEADS * HEAD, WIDTH)
            yield f"{at}.self_attn.out_proj.weight", drawn(WIDTH, HEADS * HEAD, 3.0)
            yield f"{at}.self_attn.q_layernorm.weight", torch.full((HEAD,), 1.7)
            yield f"{at}.self_attn.k_layernorm.weight", torch.full((HEAD,), 1.7)
        yield f"{at}.feed_forward.w1.weight", drawn(INNER, WIDTH)
        yield f"{at}.feed_forward.w3.weight", drawn(INNER, WIDTH)
        yield f"{at}.feed_forward.w2.weight", drawn(WIDTH, INNER)
        yield f"{at}.operator_norm.weight", torch.ones(WIDTH)
        yield f"{at}.ffn_norm.weight", torch.ones(WIDTH)
    yield "model.embedding_norm.weight", torch.full((WIDTH,), 4.0)


if __name__ == "__main__":
    checkpoint(Path(sys.argv[1]), CONFIG, weights())
