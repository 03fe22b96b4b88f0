"""A model of nothing but recall: facts, and much later questions about them.

A fact is one token that stands for a key and its value. What the model answers hangs on single
KV entries far back (associative recall, Arora et al., arXiv 2312.04927), so damage to KV shows
here long before it shows in a text's perplexity.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from training.loop import IGNORED, Plan, train

MOST = 448
"""Facts in a sequence, at the most."""

QUESTIONS = 64


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What facts are made of: at least ``MOST`` keys, and values."""

    keys: int = 512
    values: int = 8

    @property
    def ask(self) -> int:
        """The first token that asks for a key; fact ``key * values + value`` comes before these."""
        return self.keys * self.values

    @property
    def answer(self) -> int:
        """The first token that is a value by itself."""
        return self.ask + self.keys


VOCABULARY = Vocabulary()
SEED = 22
PLAN = Plan(steps=1_500, peak=3e-3, tokens=4_096)
_KNOWN = 0.3
"""Nats below which it is given more facts to remember."""


def model(seed: int = SEED, vocabulary: Vocabulary = VOCABULARY) -> LlamaForCausalLM:
    """About a million weights, drawn from *seed*."""
    torch.manual_seed(seed)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=vocabulary.answer + vocabulary.values,
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


def sequences(
    count: int, facts: int, generator: torch.Generator, vocabulary: Vocabulary = VOCABULARY
) -> tuple[Tensor, Tensor]:
    """*count* lists of *facts* facts, each followed by questions and their answers.

    Returns:
        ``(tokens, labels)``, each ``[count, facts + 2 * min(facts, QUESTIONS)]``. Labels are
        :data:`IGNORED` but for the answers: nothing else can be known.
    """
    keys = torch.rand(count, vocabulary.keys, generator=generator).argsort(1)[:, :facts]
    values = torch.randint(vocabulary.values, (count, facts), generator=generator)
    asked = torch.rand(count, facts, generator=generator).argsort(1)[:, :QUESTIONS]
    answers = vocabulary.answer + values.gather(1, asked)
    questions = torch.stack([vocabulary.ask + keys.gather(1, asked), answers], 2).flatten(1)
    tokens = torch.cat([keys * vocabulary.values + values, questions], 1)
    labels = torch.full_like(tokens, IGNORED)
    labels[:, facts + 1 :: 2] = answers
    return tokens, labels


def learn(
    seed: int = SEED, vocabulary: Vocabulary = VOCABULARY, plan: Plan = PLAN
) -> tuple[LlamaForCausalLM, dict[str, float]]:
    """The trained model, and the share of questions about the most facts that it answers."""
    generator = torch.Generator().manual_seed(seed + 1)
    facts = 16.0

    def batch(step: int, last: float) -> tuple[Tensor, Tensor]:
        # A few facts first: with many from the start it never finds the trick.
        nonlocal facts
        del step
        if last < _KNOWN:
            facts = min(MOST, facts * 1.05)
        length = int(facts) + 2 * min(int(facts), QUESTIONS)
        return sequences(plan.tokens // length, int(facts), generator, vocabulary)

    learner = model(seed, vocabulary)
    train(learner, batch, plan)
    return learner, {"answered": answered(learner, vocabulary)}


@torch.no_grad()
def answered(learner: LlamaForCausalLM, vocabulary: Vocabulary = VOCABULARY) -> float:
    """Share of right answers over 32 fresh sequences of the most facts."""
    learner.train(False)
    tokens, labels = sequences(32, MOST, torch.Generator().manual_seed(24), vocabulary)
    guesses: Tensor = learner(input_ids=tokens).logits[:, :-1].argmax(-1)
    wanted = labels[:, 1:]
    return float((guesses == wanted)[wanted != IGNORED].float().mean())
