"""A LoRA adapter of the tiny model, with random weights, and the model with it inside."""

import copy
import json

import torch
from safetensors.torch import save_file

MODULES = ("q_proj", "v_proj")
RANK, ALPHA = 8, 16


def adapter(transformer, folder, seed):
    """*transformer* with an adapter merged into it, which is written to *folder*."""
    dice = torch.Generator().manual_seed(seed)
    merged, weights = copy.deepcopy(transformer), {}
    for number, layer in enumerate(merged.model.layers):
        for name in MODULES:
            module = getattr(layer.self_attn, name)
            out, into = module.weight.shape
            down = torch.randn(RANK, into, generator=dice) / into**0.5
            up = torch.randn(out, RANK, generator=dice) / RANK**0.5
            with torch.no_grad():
                module.weight += ALPHA / RANK * up @ down
            at = f"base_model.model.model.layers.{number}.self_attn.{name}"
            weights |= {f"{at}.lora_A.weight": down, f"{at}.lora_B.weight": up}
    folder.mkdir(exist_ok=True)
    save_file(weights, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    settings = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": RANK,
        "lora_alpha": ALPHA,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": list(MODULES),
    }
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    return merged
