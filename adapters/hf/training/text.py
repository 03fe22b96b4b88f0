"""A byte-level language model: Llama with rotary positions and grouped-query attention."""

from __future__ import annotations

from math import log

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from training.corpus import Corpus
from training.loop import Plan, train

SEED = 20
PLAN = Plan(steps=800, peak=3e-3, tokens=8_192)
_SHORT, _LONG = 512, 2_048
"""Bytes of a training window: long ones, which cost more, only in the last fifth."""


def model(seed: int = SEED) -> LlamaForCausalLM:
    """2.4 million weights, drawn from *seed*."""
    torch.manual_seed(seed)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=256,
            hidden_size=192,
            intermediate_size=512,
            num_hidden_layers=6,
            num_attention_heads=6,
            num_key_value_heads=2,
            max_position_embeddings=8_192,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=None,
            pad_token_id=None,
        )
    )


def learn(
    corpus: Corpus, seed: int = SEED, plan: Plan = PLAN
) -> tuple[LlamaForCausalLM, dict[str, float]]:
    """The trained model, and the bits per byte that it needs for text it never saw."""
    generator = torch.Generator().manual_seed(seed + 1)
    text = torch.frombuffer(bytearray(corpus.train), dtype=torch.uint8)

    def batch(step: int, last: float) -> tuple[Tensor, Tensor]:
        del last
        window = _LONG if step >= plan.steps * 4 // 5 else _SHORT
        starts = torch.randint(
            len(text) - window, (plan.tokens // window,), generator=generator
        ).tolist()
        rows = torch.stack([text[start : start + window] for start in starts]).long()
        return rows, rows

    learner = model(seed)
    train(learner, batch, plan)
    return learner, {"bits_per_byte": bits_per_byte(learner, corpus.held_out)}


@torch.no_grad()
def bits_per_byte(learner: LlamaForCausalLM, text: bytes, windows: int = 64) -> float:
    """Of *windows* pieces of 1,024 bytes, evenly spread over *text*."""
    learner.train(False)
    every = (len(text) - 1_024) // windows
    rows = torch.stack(
        [
            torch.frombuffer(bytearray(text[i * every : i * every + 1_024]), dtype=torch.uint8)
            for i in range(windows)
        ]
    ).long()
    losses = [float(learner(input_ids=part, labels=part).loss) for part in torch.split(rows, 8)]
    return sum(losses) / len(losses) / log(2)
