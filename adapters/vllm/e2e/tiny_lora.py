"""``python tiny_lora.py FOLDER [SEED]``: a LoRA adapter for the tiny Llama, with random weights.

It changes keys and values of every layer, as much as they are: the same tokens have other KV.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from tiny_llama import HEAD, KV_HEADS, LAYERS, WIDTH

RANK = 8


def main(folder: Path, seed: int = 22) -> None:
    """Write the adapter into *folder*, which must not exist."""
    dice = torch.Generator().manual_seed(seed)
    tensors = {}
    for layer in range(LAYERS):
        for part in ("k_proj", "v_proj"):
            at = f"base_model.model.model.layers.{layer}.self_attn.{part}"
            out = KV_HEADS * HEAD
            tensors[f"{at}.lora_A.weight"] = torch.randn(RANK, WIDTH, generator=dice) / WIDTH**0.5
            tensors[f"{at}.lora_B.weight"] = torch.randn(out, RANK, generator=dice) / RANK**0.5
    folder.mkdir(parents=True)
    config = {
        "peft_type": "LORA",
        "r": RANK,
        "lora_alpha": RANK,
        "target_modules": ["k_proj", "v_proj"],
        "bias": "none",
        "task_type": "CAUSAL_LM",
    }
    (folder / "adapter_config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
