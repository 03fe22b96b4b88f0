"""``python tiny_hybrid.py FOLDER``: a small Gemma 3 with random weights, whose layers differ.

Two layers of three see the last 128 tokens only, every third sees all. So vLLM keeps the KV of
both kinds in groups of their own, and frees of the first kind what no later token can see. As in
``tiny_llama.py``, attention is far from uniform, so that other KV means other tokens.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from tiny_llama import checkpoint

LAYERS, WIDTH, HEADS, KV_HEADS, HEAD, INNER, VOCABULARY = 6, 256, 4, 2, 64, 512, 4096
WINDOW = 128

CONFIG = {
    "architectures": ["Gemma3ForCausalLM"],
    "model_type": "gemma3_text",
    "torch_dtype": "float32",
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "intermediate_size": INNER,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD,
    "query_pre_attn_scalar": HEAD,
    "hidden_activation": "gelu_pytorch_tanh",
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "rope_local_base_freq": 10000.0,
    "sliding_window": WINDOW,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * (LAYERS // 3),
    "tie_word_embeddings": False,
    "bos_token_id": None,
    "eos_token_id": 1,
    "pad_token_id": 0,
}


def weights(seed: int = 21) -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor of the checkpoint by its name. A norm's weight is what it has beyond 1."""
    dice = torch.Generator().manual_seed(seed)

    def drawn(out: int, into: int, spread: float = 1.0) -> torch.Tensor:
        return torch.randn(out, into, generator=dice) * (spread / into**0.5)

    yield "model.embed_tokens.weight", drawn(VOCABULARY, WIDTH)
    for layer in range(LAYERS):
        at = f"model.layers.{layer}"
        yield f"{at}.self_attn.q_proj.weight", drawn(HEADS * HEAD, WIDTH)
        yield f"{at}.self_attn.k_proj.weight", drawn(KV_HEADS * HEAD, WIDTH)
        yield f"{at}.self_attn.v_proj.weight", drawn(KV_HEADS * HEAD, WIDTH)
        yield f"{at}.self_attn.o_proj.weight", drawn(WIDTH, HEADS * HEAD)
        # Normalised to 1, queries and keys would agree on almost everything.
        yield f"{at}.self_attn.q_norm.weight", torch.full((HEAD,), 0.7)
        yield f"{at}.self_attn.k_norm.weight", torch.full((HEAD,), 0.7)
        yield f"{at}.mlp.gate_proj.weight", drawn(INNER, WIDTH)
        yield f"{at}.mlp.up_proj.weight", drawn(INNER, WIDTH)
        yield f"{at}.mlp.down_proj.weight", drawn(WIDTH, INNER)
        yield f"{at}.input_layernorm.weight", torch.zeros(WIDTH)
        yield f"{at}.post_attention_layernorm.weight", torch.zeros(WIDTH)
        yield f"{at}.pre_feedforward_layernorm.weight", torch.zeros(WIDTH)
        yield f"{at}.post_feedforward_layernorm.weight", torch.zeros(WIDTH)
    yield "model.norm.weight", torch.zeros(WIDTH)
    # Small: what is computed in another company is rounded in another way, by a millionth of this.
    yield "lm_head.weight", drawn(VOCABULARY, WIDTH, 0.25)


if __name__ == "__main__":
    checkpoint(Path(sys.argv[1]), CONFIG, weights())
