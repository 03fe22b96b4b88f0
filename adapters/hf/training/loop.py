"""The training loop of all models: AdamW, warm-up, then a straight line down."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional
from transformers import LlamaForCausalLM

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


def train(
    learner: LlamaForCausalLM,
    batch: Callable[[int, float], tuple[Tensor, Tensor]],
    plan: Plan,
    *,
    mixed: bool = True,
) -> None:
    """Teach *learner* what *batch* shows it: tokens and labels, each ``[rows, window]``.

    *batch* gets the step, and the loss of the step before, by which it may raise the bar.
    With *mixed*, products are in bfloat16; narrow models are faster without.
    """
    learner.train()
    matrices = [p for p in learner.parameters() if p.ndim > 1]
    vectors = [p for p in learner.parameters() if p.ndim == 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=plan.peak, betas=(0.9, 0.95))
    warm = max(1, plan.steps // 30)
    began = time.monotonic()
    last = float("inf")
    for step in range(plan.steps):
        rate = plan.peak * min((step + 1) / warm, (plan.steps - step) / (plan.steps - warm))
        for group in optimizer.param_groups:
            group["lr"] = rate
        tokens, labels = batch(step, last)
        known = labels[:, 1:] != IGNORED
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=mixed):
            hidden = learner.model(input_ids=tokens).last_hidden_state
            logits = learner.lm_head(hidden[:, :-1][known])
        loss = functional.cross_entropy(logits.float(), labels[:, 1:][known])
        last = loss.item()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(learner.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 20 == 0 or step == plan.steps - 1:
            said = f"step {step:5d}  loss {last:.4f}  window {tokens.shape[1]:5d}"
            sys.stderr.write(f"{said}  {time.monotonic() - began:7.1f} s\n")
