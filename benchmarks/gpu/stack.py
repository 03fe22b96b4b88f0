"""A decoder in plain torch over paged KV: as little of a serving engine as measures."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn import functional

if TYPE_CHECKING:
    from benchmarks.gpu.ttft import Model

BLOCK = 16


class Stack:
    """Random weights, bfloat16, and pages for one prompt."""

    def __init__(self, model: Model, device: torch.device) -> None:
        self.model, self.device = model, device

        def weights(rows: int, columns: int) -> torch.Tensor:
            drawn = torch.randn(rows, columns, device=device, dtype=torch.bfloat16)
            return drawn.div_(rows**0.5)

        heads, kv, width = model.heads, model.kv_heads, model.width
        self.embedding = weights(model.vocabulary, model.hidden).mul_(model.vocabulary**0.5)
        self.layers = [
            (
                weights(model.hidden, (heads + 2 * kv) * width),
                weights(heads * width, model.hidden),
                weights(model.hidden, 2 * model.inner),
                weights(model.inner, model.hidden),
            )
            for _ in range(model.layers)
        ]
        self.blocks = -(-(model.tokens + model.ends) // BLOCK)
        shape = (self.blocks, BLOCK, kv, width)
        self.pages = [
            [torch.zeros(shape, device=device, dtype=torch.bfloat16) for _ in "kv"]
            for _ in range(model.layers)
        ]

    def slots(self, tokens: int) -> torch.Tensor:
        """Places of *tokens* tokens, in blocks of no order."""
        made = torch.Generator().manual_seed(1)
        order = torch.randperm(self.blocks, generator=made)
        return (order[:, None] * BLOCK + torch.arange(BLOCK)).flatten()[:tokens]

    @torch.inference_mode()
    def first(self, prompt: list[int], slots: torch.Tensor, start: int) -> int:
        """The token that follows *prompt*, whose KV before *start* is in the pages."""
        model, device = self.model, self.device
        heads, kv, width = model.heads, model.kv_heads, model.width
        there = slots[: len(prompt)].to(device)
        new = there[start:]
        positions = torch.arange(start, len(prompt), device=device)
        turns = _turns(positions, width)
        state = self.embedding[torch.tensor(prompt[start:], device=device)]
        for (mixes, out, up, down), (keys, values) in zip(self.layers, self.pages, strict=True):
            mixed = (_normed(state) @ mixes).view(len(state), heads + 2 * kv, width)
            keys, values = keys.flatten(0, 1), values.flatten(0, 1)
            keys[new] = _rotated(mixed[:, heads : heads + kv], turns)
            values[new] = mixed[:, heads + kv :]
            query = _rotated(mixed[:, :heads], turns)
            state = state + self._attended(query, keys[there], values[there], start) @ out
            gate, rise = (_normed(state) @ up).chunk(2, -1)
            state = state + (functional.silu(gate) * rise) @ down
        return int((_normed(state[-1:]) @ self.embedding.T).argmax())

    def _attended(
        self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, start: int
    ) -> torch.Tensor:
        q, k, v = (part.transpose(0, 1)[None] for part in (query, keys, values))
        if start:
            seen = torch.arange(len(keys), device=self.device)
            mask = seen[None] <= torch.arange(start, len(keys), device=self.device)[:, None]
            done = functional.scaled_dot_product_attention(q, k, v, mask, enable_gqa=True)
        else:
            done = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return done[0].transpose(0, 1).reshape(len(query), -1)


def _normed(state: torch.Tensor) -> torch.Tensor:
    return functional.rms_norm(state, state.shape[-1:])


def _turns(positions: torch.Tensor, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    each = 10_000.0 ** (-torch.arange(0, width, 2, device=positions.device) / width)
    angles = positions[:, None] * each
    return angles.cos()[:, None], angles.sin()[:, None]


def _rotated(rows: torch.Tensor, turns: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    first, second = rows.float().chunk(2, -1)
    cosines, sines = turns
    both = (first * cosines - second * sines, second * cosines + first * sines)
    return torch.cat(both, -1).to(rows.dtype)
