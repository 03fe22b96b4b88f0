"""A small Laguna with random weights: every other layer sees a window of the tokens before it.

SGLang keeps the windows in a pool of their own, beside that of the layers that see everything.
A network without experts, which SGLang cannot compute on a CPU here.
"""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import LagunaConfig, LagunaForCausalLM

WINDOW = 150
"""Tokens; no multiple of a page."""

LAYERS = ["sliding_attention", "full_attention"] * 2


def checkpoint(folder: Path) -> LagunaForCausalLM:
    """The model, written to *folder* as well."""
    config = LagunaConfig(
        vocab_size=4096,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=len(LAYERS),
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=4096,
        sliding_window=WINDOW,
        layer_types=LAYERS,
        mlp_layer_types=["dense"] * len(LAYERS),
        eos_token_id=1,
        dtype="float32",
    )
    model = LagunaForCausalLM(config).float().eval()
    dice = torch.Generator().manual_seed(30)
    with torch.no_grad():
        for name, weight in sorted(model.named_parameters()):
            if weight.dim() > 1:
                spread = 1.0 if "embed" in name else 1.2 / weight.shape[1] ** 0.5
                weight.copy_(torch.randn(weight.shape, generator=dice) * spread)
    model.save_pretrained(folder)
    return model
