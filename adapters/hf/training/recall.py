"""A model of nothing but recall: facts, and much later questions about them.

A fact is one token that stands for a key and its value. What the model answers hangs on single
KV entries far back (associative recall, Arora et al., arXiv 2312.04927), so damage to KV shows
here long before it shows in a text's perplexity.
"""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from training.loop import IGNORED, Plan, train

KEYS = 512
VALUES = 8
ASK = KEYS * VALUES
"""The first token that asks for a key; fact ``key * VALUES + value`` comes before these."""

ANSWER = ASK + KEYS
"""The first token that is a value by itself."""

MOST = 448
"""Facts in a sequence, at the most."""

QUESTIONS = 64

PLAN = Plan(steps=1_500, peak=3e-3, tokens=4_096)
_KNOWN = 0.3
"""Nats below which it is given more facts to remember."""


def model() -> LlamaForCausalLM:
    """About half a million weights, from a fixed seed."""
    torch.manual_seed(22)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=ANSWER + VALUES,
            hidden_size=128,
            intermediate_size=256,
            num_hidden_layers=4,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=4_096,
            initializer_range=0.08,  # weaker attention takes far longer to find the trick
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=None,
            pad_token_id=None,
        )
    )


def sequences(count: int, facts: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """*count* lists of *facts* facts, each followed by questions and their answers.

    Returns:
        ``(tokens, labels)``, each ``[count, facts + 2 * min(facts, QUESTIONS)]``. Labels are
        :data:`IGNORED` but for the answers: nothing else can be known.
    """
    keys = torch.rand(count, KEYS, generator=generator).argsort(1)[:, :facts]
    values = torch.randint(VALUES, (count, facts), generator=generator)
    asked = torch.rand(count, facts, generator=generator).argsort(1)[:, :QUESTIONS]
    answers = ANSWER + values.gather(1, asked)
    questions = torch.stack([ASK + keys.gather(1, asked), answers], 2).flatten(1)
    tokens = torch.cat([keys * VALUES + values, questions], 1)
    labels = torch.full_like(tokens, IGNORED)
    labels[:, facts + 1 :: 2] = answers
    return tokens, labels


def learn() -> tuple[LlamaForCausalLM, dict[str, float]]:
    """The trained model, and the share of questions about the most facts that it answers."""
    generator = torch.Generator().manual_seed(23)
    facts = 16.0

    def batch(step: int, last: float) -> tuple[Tensor, Tensor]:
        # A few facts first: with many from the start it never finds the trick.
        nonlocal facts
        del step
        if last < _KNOWN:
            facts = min(MOST, facts * 1.05)
        length = int(facts) + 2 * min(int(facts), QUESTIONS)
        return sequences(PLAN.tokens // length, int(facts), generator)

    learner = model()
    train(learner, batch, PLAN)
    return learner, {"answered": answered(learner)}


@torch.no_grad()
def answered(learner: LlamaForCausalLM) -> float:
    """Share of right answers over 32 fresh sequences of the most facts."""
    learner.train(False)
    tokens, labels = sequences(32, MOST, torch.Generator().manual_seed(24))
    guesses: Tensor = learner(input_ids=tokens).logits[:, :-1].argmax(-1)
    wanted = labels[:, 1:]
    return float((guesses == wanted)[wanted != IGNORED].float().mean())
