"""``python tiny_llama.py FOLDER [SEED]``: a small Llama with random weights, alike on all machines.

27.8 million parameters in float32, 16 KiB of KV for each token. Queries and keys vary more than
an initialised model's do, and values weigh as much as the residual stream: attention is far from
uniform, so that other KV means other tokens. Tokens are words: ``w17`` is number 17.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file

LAYERS, WIDTH, HEADS, KV_HEADS, INNER, VOCABULARY = 8, 512, 8, 4, 1408, 4096
HEAD = WIDTH // HEADS
KV_BYTES = LAYERS * 2 * KV_HEADS * HEAD * 4
"""Bytes of KV for each token."""

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "torch_dtype": "float32",
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "intermediate_size": INNER,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD,
    "hidden_act": "silu",
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "bos_token_id": None,
    "eos_token_id": 1,
}


def weights(seed: int = 20, kv_heads: int = KV_HEADS) -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor of the checkpoint by its name."""
    dice = torch.Generator().manual_seed(seed)

    def drawn(out: int, into: int, spread: float) -> torch.Tensor:
        """A matrix that makes what has variance 1 into what has the deviation *spread*."""
        return torch.randn(out, into, generator=dice) * (spread / into**0.5)

    yield "model.embed_tokens.weight", torch.randn(VOCABULARY, WIDTH, generator=dice)
    for layer in range(LAYERS):
        at = f"model.layers.{layer}"
        yield f"{at}.self_attn.q_proj.weight", drawn(WIDTH, WIDTH, 1.7)
        yield f"{at}.self_attn.k_proj.weight", drawn(kv_heads * HEAD, WIDTH, 1.7)
        yield f"{at}.self_attn.v_proj.weight", drawn(kv_heads * HEAD, WIDTH, 1.0)
        yield f"{at}.self_attn.o_proj.weight", drawn(WIDTH, WIDTH, 1.0)
        yield f"{at}.mlp.gate_proj.weight", drawn(INNER, WIDTH, 1.0)
        yield f"{at}.mlp.up_proj.weight", drawn(INNER, WIDTH, 1.0)
        yield f"{at}.mlp.down_proj.weight", drawn(WIDTH, INNER, 1.0)
        yield f"{at}.input_layernorm.weight", torch.ones(WIDTH)
        yield f"{at}.post_attention_layernorm.weight", torch.ones(WIDTH)
    yield "model.norm.weight", torch.ones(WIDTH)
    yield "lm_head.weight", drawn(VOCABULARY, WIDTH, 0.5)


def tokenizer(more: Sequence[str] = ()) -> dict[str, object]:
    """Words that whitespace separates, in the format of the ``tokenizers`` library.

    *More* special ones have the numbers after all words.
    """
    special = [{"id": number, "content": word} for number, word in enumerate(["<unk>", "</s>"])]
    special += [{"id": number, "content": word} for number, word in enumerate(more, VOCABULARY)]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    vocabulary = {"<unk>": 0, "</s>": 1} | {f"w{number}": number for number in range(2, VOCABULARY)}
    return {
        "version": "1.0",
        "added_tokens": [word | flags | {"special": True} for word in special],
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "<unk>"},
    }


def checkpoint(
    folder: Path,
    config: Mapping[str, object] = CONFIG,
    tensors: Iterable[tuple[str, torch.Tensor]] | None = None,
    files: Mapping[str, object] | None = None,
) -> Path:
    """Write a model into *folder*, whole or not at all, unless it is there.

    Args:
        folder: named by who calls.
        config: of the model; the Llama's, unless *tensors* are another's.
        tensors: its weights, drawn only when they are written.
        files: what else is in the folder, or other than here, by name.
    """
    if folder.exists():
        return folder
    made = folder.with_name(f"{folder.name}.{os.getpid()}")
    made.mkdir(parents=True)
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": "<unk>",
        "eos_token": "</s>",
        "model_max_length": CONFIG["max_position_embeddings"],
    }
    written = {
        "config.json": config,
        "generation_config.json": {"eos_token_id": 1},
        "tokenizer.json": tokenizer(),
        "tokenizer_config.json": settings,
    }
    for name, content in (written | dict(files or {})).items():
        (made / name).write_text(json.dumps(content))
    drawn = dict(weights() if tensors is None else tensors)
    save_file(drawn, made / "model.safetensors", metadata={"format": "pt"})
    try:
        made.rename(folder)
    except OSError:  # somebody else was faster, with the same bytes
        shutil.rmtree(made)
    return folder


if __name__ == "__main__":
    checkpoint(Path(sys.argv[1]), tensors=weights(*map(int, sys.argv[2:])))
