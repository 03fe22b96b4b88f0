"""A model that copies: a long row of tokens, then spans of it, of which it sees the first token.

To go on it has to find the token among thousands and to take what stood behind it (induction,
Olsson et al., arXiv 2209.11895). That takes two layers: one in which each token notes the token
before it, and one that finds the note. From small random weights the pair appears after many
thousands of steps, so it is laid out in the first weights; training does the rest.
"""

from __future__ import annotations

from math import sqrt

import torch
from torch import Tensor
from transformers import StableLmForCausalLM

from training.loop import IGNORED

SPAN = 16
"""Tokens that are copied in one piece."""

COPIED = 8 * SPAN

_CODE = 48
"""Channels that tell tokens apart."""

WIDTH = 4 * _CODE
"""Channels of a model: of the token, the one before it, the one that is copied, and others."""

_POSITION = 10.0
"""Of keys and queries in the first layer's first head, which look at the token before."""

_MATCH = 1.6
"""Of keys and queries in the second layer's first head, which look for the note of the token."""


def sequences(
    count: int, length: int, vocabulary: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """*count* rows of *length* tokens, each once at the most, followed by spans of them.

    Returns:
        ``(tokens, labels)``, each ``[count, length + COPIED]``. Labels are :data:`IGNORED` but
        for the spans' tokens behind their first: nothing else can be known.
    """
    rows = torch.rand(count, vocabulary, generator=generator).argsort(1)[:, :length]
    starts = torch.randint(length - SPAN, (count, COPIED // SPAN), generator=generator)
    places = (starts[:, :, None] + torch.arange(SPAN)).flatten(1)
    copied = rows.gather(1, places)
    labels = torch.full((count, length + COPIED), IGNORED)
    labels[:, length:] = copied
    labels[:, length::SPAN] = IGNORED
    return torch.cat([rows, copied], 1), labels


@torch.no_grad()
def laid_out(model: StableLmForCausalLM) -> StableLmForCausalLM:
    """*model*, which notes in its first layer and finds in its second."""
    token, before, found = (slice(_CODE * n, _CODE * (n + 1)) for n in range(3))
    width = model.config.hidden_size // model.config.num_attention_heads
    rotary = width // 4
    content = slice(rotary, width)
    codes = torch.randn(model.config.vocab_size, _CODE)
    model.model.embed_tokens.weight[:, token] = codes
    model.lm_head.weight[:, found] = 0.4 * codes
    first, second = (layer.self_attn for layer in model.model.layers)
    # The product of keys and queries is greatest for the token before.
    angles = 10_000.0 ** -(torch.arange(rotary // 2) / (rotary // 2))
    for part in (first.q_proj, first.k_proj):
        part.weight[:width] = 0
    first.k_proj.bias[: rotary // 2] = _POSITION
    first.q_proj.bias[: rotary // 2] = _POSITION * angles.cos()
    first.q_proj.bias[rotary // 2 : rotary] = -_POSITION * angles.sin()
    for layer, target in ((first, before), (second, found)):
        layer.v_proj.weight[:width] = 0
        layer.v_proj.weight[content, token] = torch.eye(_CODE)
        layer.o_proj.weight[target, content] = torch.eye(_CODE) / sqrt(2)
    for part, source in ((second.q_proj, token), (second.k_proj, before)):
        part.weight[:width] = 0
        part.weight[content, source] = _MATCH * torch.eye(_CODE)
    return model
