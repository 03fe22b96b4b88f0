"""``python tiny_vision.py FOLDER``: the tiny Llama with eyes, as Idefics 3 puts them together.

An image is 64 tokens in the language model, between others that say where it begins and ends. All
of these come after the Llama's words, so prompts of random words have none by accident. What is
projected from an image weighs as much as words do: another image means other KV and other tokens.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import tiny_llama
import torch
from tiny_llama import VOCABULARY, checkpoint, tokenizer

SIDE, PATCH, SQUEEZED = 128, 8, 2
"""Pixels of an image and of a patch; a token is 2 by 2 patches."""

LAYERS, WIDTH, HEADS, INNER = 2, 128, 2, 256
PATCHES = (SIDE // PATCH) ** 2
SPECIAL = ["<image>", "<fake_token_around_image>", "<global-img>", "<end_of_utterance>"]
"""Words after the Llama's; the first one stands in a prompt for an image."""

CONFIG = {
    "architectures": ["Idefics3ForConditionalGeneration"],
    "model_type": "idefics3",
    "torch_dtype": "float32",
    "image_token_id": VOCABULARY,
    "pad_token_id": 0,
    "eos_token_id": 1,
    "scale_factor": SQUEEZED,
    "tie_word_embeddings": False,
    "text_config": tiny_llama.CONFIG | {"vocab_size": VOCABULARY + len(SPECIAL)},
    "vision_config": {
        "model_type": "idefics3_vision",
        "hidden_size": WIDTH,
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "image_size": SIDE,
        "patch_size": PATCH,
    },
}

FILES = {
    "tokenizer.json": tokenizer(SPECIAL),
    "processor_config.json": {
        "processor_class": "Idefics3Processor",
        "image_seq_len": PATCHES // SQUEEZED**2,
    },
    "preprocessor_config.json": {
        "processor_class": "Idefics3Processor",
        "image_processor_type": "Idefics3ImageProcessor",
        "do_image_splitting": False,
        "size": {"longest_edge": SIDE},
        "max_image_size": {"longest_edge": SIDE},
    },
}


def weights(seed: int = 23) -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor of the checkpoint by its name: the Llama's and those that see."""
    dice = torch.Generator().manual_seed(seed)

    def drawn(out: int, *into: int) -> torch.Tensor:
        return torch.randn(out, *into, generator=dice) / torch.Size(into).numel() ** 0.5

    def linear(name: str, out: int, *into: int) -> Iterator[tuple[str, torch.Tensor]]:
        yield f"{name}.weight", drawn(out, *into)
        yield f"{name}.bias", torch.zeros(out)

    def norm(name: str) -> Iterator[tuple[str, torch.Tensor]]:
        yield f"{name}.weight", torch.ones(WIDTH)
        yield f"{name}.bias", torch.zeros(WIDTH)

    for name, tensor in tiny_llama.weights():
        if len(tensor) == VOCABULARY:
            more = torch.randn(len(SPECIAL), tensor.shape[1], generator=dice)
            tensor = torch.cat([tensor, more if "embed" in name else 0 * more])
        yield name.replace("model.", "model.text_model."), tensor

    eyes = "model.vision_model"
    yield from linear(f"{eyes}.embeddings.patch_embedding", WIDTH, 3, PATCH, PATCH)
    places = torch.randn(PATCHES, WIDTH, generator=dice)
    yield f"{eyes}.embeddings.position_embedding.weight", places
    for layer in range(LAYERS):
        at = f"{eyes}.encoder.layers.{layer}"
        for part in ("q_proj", "k_proj", "v_proj", "out_proj"):
            yield from linear(f"{at}.self_attn.{part}", WIDTH, WIDTH)
        yield from linear(f"{at}.mlp.fc1", INNER, WIDTH)
        yield from linear(f"{at}.mlp.fc2", WIDTH, INNER)
        yield from norm(f"{at}.layer_norm1")
        yield from norm(f"{at}.layer_norm2")
    yield from norm(f"{eyes}.post_layernorm")
    projection = drawn(tiny_llama.WIDTH, WIDTH * SQUEEZED**2)
    yield "model.connector.modality_projection.proj.weight", projection


if __name__ == "__main__":
    checkpoint(Path(sys.argv[1]), CONFIG, weights(), FILES)
