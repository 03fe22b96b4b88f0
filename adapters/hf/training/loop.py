"""The training loop of all models: AdamW, warm-up, then a straight line down, by default."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from math import cos, pi
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedModel

IGNORED = -100
"""A label that is not to be learned."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How long, and how fast."""

    steps: int
    peak: float
    """The highest learning rate."""

    tokens: int
    """Per step."""


Schedule = Callable[[float], float]
"""The learning rate as a share of the highest, by the share of the steps behind the warm-up."""


def linear(done: float) -> float:
    """A straight line down."""
    return 1 - done


def cosine(done: float) -> float:
    """Half a wave down."""
    return (1 + cos(pi * done)) / 2


def constant(done: float) -> float:
    """As high as it is for four fifths, then a straight line down."""
    return min(1.0, 5 * (1 - done))


def adamw(groups: list[dict[str, Any]], peak: float) -> torch.optim.Optimizer:
    """AdamW."""
    return torch.optim.AdamW(groups, lr=peak, betas=(0.9, 0.95))


def train(
    learner: PreTrainedModel,
    batch: Callable[[int, float], tuple[Tensor, Tensor]],
    plan: Plan,
    *,
    mixed: bool = True,
    optimizer: Callable[[list[dict[str, Any]], float], torch.optim.Optimizer] = adamw,
    schedule: Schedule = linear,
) -> None:
    """Teach *learner* what *batch* shows it: tokens and labels, each ``[rows, window]``.

    *batch* gets the step, and the loss of the step before, by which it may raise the bar.
    With *mixed*, products are in bfloat16; narrow models are faster without.
    """
    learner.train()
    matrices = [p for p in learner.parameters() if p.ndim > 1]
    vectors = [p for p in learner.parameters() if p.ndim == 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    steps = optimizer(groups, plan.peak)
    warm = max(1, plan.steps // 30)
    head = learner.get_output_embeddings()
    began = time.monotonic()
    last = float("inf")
    for step in range(plan.steps):
        done = max(0, step - warm) / (plan.steps - warm)
        rate = plan.peak * min((step + 1) / warm, schedule(done))
        for group in steps.param_groups:
            group["lr"] = rate
        tokens, labels = batch(step, last)
        known = labels[:, 1:] != IGNORED
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=mixed):
            hidden = learner.base_model(input_ids=tokens, use_cache=False).last_hidden_state
            logits = head(hidden[:, :-1][known])
        loss = functional.cross_entropy(logits.float(), labels[:, 1:][known])
        last = loss.item()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(learner.parameters(), 1.0)
        steps.step()
        steps.zero_grad(set_to_none=True)
        if step % 20 == 0 or step == plan.steps - 1:
            said = f"step {step:5d}  loss {last:.4f}  window {tokens.shape[1]:5d}"
            sys.stderr.write(f"{said}  {time.monotonic() - began:7.1f} s\n")
