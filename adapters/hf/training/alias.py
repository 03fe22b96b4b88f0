"""A model whose KV leans on what came long before: facts, other names for their keys, questions.

A fact is one token that stands for a key and its value. An alias is two: the key of an older fact,
and a new key that takes over its value. So the KV of an alias holds the value of another place of
the list. Where a list is cut into pieces and the KV of each is computed by itself, aliases of keys
in other pieces hold nothing; a blender of such pieces has to find and to mend them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from training.loop import IGNORED, Plan, train

MOST = 224
"""Keys in a list, at the most."""

QUESTIONS = 64


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What lists are made of: at least ``MOST`` keys, and values."""

    keys: int = 256
    values: int = 8

    @property
    def name(self) -> int:
        """The first token that is a new name; fact ``key * values + value`` comes before these."""
        return self.keys * self.values

    @property
    def ask(self) -> int:
        """The first token that asks for a key: of an older fact, or in a question."""
        return self.name + self.keys

    @property
    def answer(self) -> int:
        """The first token that is a value by itself. It is written, but never read."""
        return self.ask + self.keys


class Lists(NamedTuple):
    """Lists that are laid out alike, each with questions behind it."""

    tokens: Tensor
    """``[count, tokens]``: the list, the questions, and one more that means nothing."""

    labels: Tensor
    """As many: what should follow the token before, or :data:`IGNORED`."""

    known: Tensor
    """``[count, keys]``: the place among the keys of the fact that each of them stands for."""

    asked: Tensor
    """``[count, questions]``: places of keys."""


VOCABULARY = Vocabulary()
SEED = 31
PLAN = Plan(steps=2_600, peak=3e-3, tokens=2_048)
ALIASES = 0.4
"""The share of keys that stand for others, in training."""

ASKED_FROM = 3
"""The layer from which on questions always see the list."""

KNOWN_FROM = 2
"""The layer from which on tokens of the list do not always see each other."""

MASKED = 0.5
"""The share of batches with less to see."""

_KNOWN = 0.15
"""Nats below which lists become longer."""


def model(seed: int = SEED, vocabulary: Vocabulary = VOCABULARY) -> LlamaForCausalLM:
    """Half a million weights and more, drawn from *seed*."""
    torch.manual_seed(seed)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=vocabulary.answer + vocabulary.values,
            hidden_size=96,
            head_dim=32,
            intermediate_size=192,
            num_hidden_layers=5,
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


def layout(keys: int, share: float, generator: torch.Generator) -> Tensor:
    """``[keys]`` bool: which of them stand for others. The first one does not."""
    aliases = torch.rand(keys, generator=generator) < share
    aliases[:1] = False
    return aliases


def sequences(
    count: int,
    aliases: Tensor,
    generator: torch.Generator,
    vocabulary: Vocabulary = VOCABULARY,
) -> Lists:
    """*count* lists of facts and aliases, with questions: of aliases rather than of facts."""
    places = len(aliases)
    keys = torch.rand(count, vocabulary.keys, generator=generator).argsort(1)[:, :places]
    known = torch.arange(places).repeat(count, 1)
    for place in aliases.nonzero().flatten().tolist():
        facts = (~aliases[:place]).nonzero().flatten()
        known[:, place] = facts[torch.randint(len(facts), (count,), generator=generator)]
    values = torch.randint(vocabulary.values, (count, places), generator=generator)
    values = values.gather(1, known)
    answers = vocabulary.answer + values
    older = vocabulary.ask + keys.gather(1, known)
    nothing = torch.full((count,), IGNORED)
    end = nothing[:, None]
    tokens, labels = [], []
    for place, alias in enumerate(aliases.tolist()):
        if alias:
            tokens += [older[:, place], vocabulary.name + keys[:, place]]
            labels += [answers[:, place]] * 2
        else:
            tokens.append(keys[:, place] * vocabulary.values + values[:, place])
            labels.append(nothing)
    chance = torch.rand(count, places, generator=generator) - 0.5 * aliases
    asked = chance.argsort(1)[:, :QUESTIONS]
    questions = vocabulary.ask + keys.gather(1, asked)
    return Lists(
        torch.cat([torch.stack(tokens, 1), questions, end * 0], 1),
        torch.cat([end, torch.stack(labels, 1), answers.gather(1, asked)], 1),
        known,
        asked,
    )


@contextmanager
def masked(learner: LlamaForCausalLM) -> Iterator[Callable[[int], None]]:
    """Gives a function that sets the attention mask of the next batch, for the length of its lists.

    Questions see it in the last layers only, else they read all in the first layer that has it, and
    no KV behind that layer matters. Its own tokens see it in the first layers only, else what an
    alias stands for may be found so late that no layer is left to compare.
    """
    listed = 0

    def before(
        layer: int, _: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> tuple[tuple[object, ...], dict[str, object]]:
        if listed:
            tokens = cast("Tensor", args[0]).shape[1]
            seen = torch.ones(tokens, tokens, dtype=torch.bool).tril()
            if layer < ASKED_FROM:
                seen[listed:, :listed] = False
            if layer >= KNOWN_FROM:
                seen[:listed, :listed] = torch.eye(listed, dtype=torch.bool)
            kwargs = {**kwargs, "attention_mask": seen[None, None]}
        return args, kwargs

    def mask(tokens: int) -> None:
        nonlocal listed
        listed = tokens

    handles = [
        layer.register_forward_pre_hook(partial(before, index), with_kwargs=True)
        for index, layer in enumerate(learner.model.layers)
    ]
    try:
        yield mask
    finally:
        for handle in handles:
            handle.remove()


def learn(
    seed: int = SEED, vocabulary: Vocabulary = VOCABULARY, plan: Plan = PLAN
) -> tuple[LlamaForCausalLM, dict[str, float]]:
    """The trained model, and the share of questions about the longest lists that it answers."""
    generator = torch.Generator().manual_seed(seed + 1)
    learner = model(seed, vocabulary)
    keys, loss = 6.0, 2.0

    def batch(step: int, last: float) -> tuple[Tensor, Tensor]:
        # A few keys first: with many from the start it never finds the trick.
        nonlocal keys, loss
        del step
        loss += 0.1 * (min(last, 2.0) - loss)
        if loss < _KNOWN:
            keys = min(MOST, keys * 1.02)
        aliases = layout(int(keys), ALIASES, generator)
        length = len(aliases) + int(aliases.sum()) + min(len(aliases), QUESTIONS)
        tokens, labels, *_ = sequences(plan.tokens // length, aliases, generator, vocabulary)
        listed = len(aliases) + int(aliases.sum())
        mask(listed if float(torch.rand((), generator=generator)) < MASKED else 0)
        return tokens, labels

    with masked(learner) as mask:
        train(learner, batch, plan, mixed=False)
    return learner, {"answered": answered(learner, vocabulary)}


@torch.no_grad()
def answered(learner: LlamaForCausalLM, vocabulary: Vocabulary = VOCABULARY) -> float:
    """Share of right answers over 32 fresh sequences of the most keys."""
    learner.train(False)
    generator = torch.Generator().manual_seed(33)
    aliases = layout(MOST, ALIASES, generator)
    tokens, labels, *_ = sequences(32, aliases, generator, vocabulary)
    guesses: Tensor = learner(input_ids=tokens).logits[:, :-1].argmax(-1)
    wanted = labels[:, 1:]
    questions = wanted[:, -QUESTIONS:]
    return float((guesses[:, -QUESTIONS:] == questions).float().mean())
