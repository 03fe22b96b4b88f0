"""The judges: models of another make than those that come along, by which serdes are judged.

They differ in architecture, trainer and task. The split was written down before any of them was
measured: levels of serdes may be chosen by one half, the other half only judges.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import (
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen3Config,
    Qwen3ForCausalLM,
    StableLmConfig,
    StableLmForCausalLM,
)

from training import copying, recall
from training.corpus import Corpus, documentation, headers
from training.loop import IGNORED, Plan, Schedule, adamw, constant, cosine, linear, train

_NO_MARKS = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}


class Asked(NamedTuple):
    """Sequences of which a model is asked something."""

    tokens: Tensor
    """``[count, tokens]``."""

    labels: Tensor
    """As many: what follows the token before, or :data:`~training.loop.IGNORED`."""

    prefix: int
    """Tokens whose KV is cached; the questions stand behind them."""


class Task(ABC):
    """What a judge learns, and is asked."""

    @abstractmethod
    def batches(
        self, plan: Plan, generator: torch.Generator
    ) -> Callable[[int, float], tuple[Tensor, Tensor]]:
        """The batches for :func:`training.loop.train`."""

    @abstractmethod
    def asked(self, count: int, generator: torch.Generator) -> Asked:
        """*count* sequences of the greatest length that was learned."""


class Recall(Task):
    """Lists of facts: see :mod:`training.recall`. They become longer as the loss falls."""

    _SHORTEST = 8.0
    _KNOWN = 0.6
    """Nats below which lists become longer."""

    def __init__(self, vocabulary: recall.Vocabulary, longest: int) -> None:
        self.vocabulary = vocabulary
        self.longest = longest

    def batches(
        self, plan: Plan, generator: torch.Generator
    ) -> Callable[[int, float], tuple[Tensor, Tensor]]:
        facts = self._SHORTEST

        def batch(step: int, last: float) -> tuple[Tensor, Tensor]:
            nonlocal facts
            del step
            if last < self._KNOWN:
                facts = min(self.longest, facts * 1.06)
            length = int(facts) + 2 * min(int(facts), recall.QUESTIONS)
            count = max(1, plan.tokens // length)
            return recall.sequences(count, int(facts), generator, self.vocabulary)

        return batch

    def asked(self, count: int, generator: torch.Generator) -> Asked:
        tokens, labels = recall.sequences(count, self.longest, generator, self.vocabulary)
        return Asked(tokens, labels, self.longest)


class Copying(Task):
    """Spans of a row: see :mod:`training.copying`. Rows double as it learns."""

    def __init__(self, vocabulary: int, longest: int) -> None:
        self.vocabulary = vocabulary
        self.longest = longest

    def batches(
        self, plan: Plan, generator: torch.Generator
    ) -> Callable[[int, float], tuple[Tensor, Tensor]]:
        def batch(step: int, last: float) -> tuple[Tensor, Tensor]:
            del last
            length = self.longest >> max(0, 4 - 5 * step // plan.steps)
            count = max(1, plan.tokens // (length + copying.COPIED))
            return copying.sequences(count, length, self.vocabulary, generator)

        return batch

    def asked(self, count: int, generator: torch.Generator) -> Asked:
        made = copying.sequences(count, self.longest, self.vocabulary, generator)
        return Asked(*made, self.longest)


class Text(Task):
    """Bytes of a text."""

    def __init__(self, corpus: Callable[[], Corpus], window: int, cached: int) -> None:
        self._corpus = corpus
        self.window = window
        """Bytes that are read at once in training, in its last third twice as many."""

        self.cached = cached

    def batches(
        self, plan: Plan, generator: torch.Generator
    ) -> Callable[[int, float], tuple[Tensor, Tensor]]:
        text = self._corpus().train

        def batch(step: int, last: float) -> tuple[Tensor, Tensor]:
            del last
            window = self.window * (2 if 3 * step >= 2 * plan.steps else 1)
            rows = _pieces(text, plan.tokens // window, window, generator)
            return rows, rows

        return batch

    def asked(self, count: int, generator: torch.Generator) -> Asked:
        rows = _pieces(self._corpus().held_out, count, 2 * self.window, generator)
        labels = rows.clone()
        labels[:, : self.cached + 1] = IGNORED  # the first prediction is behind the first new token
        return Asked(rows, labels, self.cached)


def _pieces(text: bytes, count: int, window: int, generator: torch.Generator) -> Tensor:
    known = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    starts = torch.randint(len(text) - window, (count,), generator=generator).tolist()
    return torch.stack([known[start : start + window] for start in starts]).long()


@dataclass(frozen=True, slots=True)
class Judge:
    """A model, what it learns, and how."""

    make: Callable[[], PreTrainedModel]
    """Weights are drawn from the seed that is set before."""

    task: Task
    plan: Plan
    seed: int
    optimizer: Callable[[list[dict[str, Any]], float], torch.optim.Optimizer] = adamw
    schedule: Schedule = linear

    def learn(self) -> tuple[PreTrainedModel, dict[str, float]]:
        """The trained model, and how well it does what it was taught."""
        torch.manual_seed(self.seed)
        learner = self.make()
        batch = self.task.batches(self.plan, torch.Generator().manual_seed(self.seed + 1))
        train(
            learner,
            batch,
            self.plan,
            mixed=False,
            optimizer=self.optimizer,
            schedule=self.schedule,
        )
        return learner, self.score(learner)

    @torch.no_grad()
    def score(self, learner: PreTrainedModel, count: int = 8) -> dict[str, float]:
        """Share of right answers, and nats that an answer takes, over fresh sequences."""
        learner.train(False)
        tokens, labels, _ = self.task.asked(count, torch.Generator().manual_seed(self.seed + 2))
        known = labels[:, 1:] != IGNORED
        logits: Tensor = learner(input_ids=tokens, use_cache=False).logits[:, :-1][known]
        wanted = labels[:, 1:][known]
        right = (logits.argmax(-1) == wanted).float().mean()
        nats = torch.nn.functional.cross_entropy(logits, wanted)
        return {"answered": round(float(right), 4), "nats": round(float(nats), 4)}

    def shortened(self, steps: int) -> Judge:
        """The same with fewer steps."""
        return replace(self, plan=replace(self.plan, steps=steps))


def _adam(groups: list[dict[str, Any]], peak: float) -> torch.optim.Optimizer:
    """Without decay."""
    return torch.optim.Adam([group | {"weight_decay": 0.0} for group in groups], lr=peak)


def _nadam(groups: list[dict[str, Any]], peak: float) -> torch.optim.Optimizer:
    return torch.optim.NAdam(groups, lr=peak, decoupled_weight_decay=True)


def _radam(groups: list[dict[str, Any]], peak: float) -> torch.optim.Optimizer:
    return torch.optim.RAdam(groups, lr=peak, betas=(0.9, 0.98), decoupled_weight_decay=True)


_FACTS = recall.Vocabulary(keys=320, values=12)
_OTHER_FACTS = recall.Vocabulary(keys=280, values=3)
_MANY_FACTS = recall.Vocabulary(keys=1_100, values=3)
_WORDS = 4_400


def _gpt2() -> PreTrainedModel:
    """Multi-head attention, learned positions, a tied head."""
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=_FACTS.answer + _FACTS.values,
            n_positions=512,
            n_embd=64,
            n_layer=2,
            n_head=4,
            initializer_range=0.1,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            **_NO_MARKS,
        )
    )


def _mistral() -> PreTrainedModel:
    """One head of KV for four of queries, rotary positions, a tied head."""
    return MistralForCausalLM(
        MistralConfig(
            vocab_size=256,
            hidden_size=96,
            head_dim=48,
            intermediate_size=256,
            num_hidden_layers=3,
            num_attention_heads=4,
            num_key_value_heads=1,
            sliding_window=None,
            max_position_embeddings=4_096,
            tie_word_embeddings=True,
            **_NO_MARKS,
        )
    )


def _deepseek() -> PreTrainedModel:
    """Latent attention with a rotary part of its own, a tied head."""
    return DeepseekV3ForCausalLM(
        DeepseekV3Config(
            vocab_size=_MANY_FACTS.answer + _MANY_FACTS.values,
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=4,
            kv_lora_rank=64,
            q_lora_rank=None,
            qk_rope_head_dim=16,
            qk_nope_head_dim=32,
            v_head_dim=32,
            first_k_dense_replace=2,
            max_position_embeddings=8_192,
            initializer_range=0.1,
            tie_word_embeddings=True,
            **_NO_MARKS,
        )
    )


def _neox() -> PreTrainedModel:
    """Multi-head attention, a quarter of each head rotary, parallel layers, a head of its own."""
    return GPTNeoXForCausalLM(
        GPTNeoXConfig(
            vocab_size=256,
            hidden_size=96,
            num_hidden_layers=3,
            num_attention_heads=4,
            intermediate_size=256,
            rotary_pct=0.25,
            max_position_embeddings=4_096,
            hidden_dropout=0.0,
            attention_dropout=0.0,
            tie_word_embeddings=False,
            **_NO_MARKS,
        )
    )


def _qwen3() -> PreTrainedModel:
    """Two heads of KV for six of queries, keys and queries normed, rotary, a head of its own."""
    return Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=_OTHER_FACTS.answer + _OTHER_FACTS.values,
            hidden_size=72,
            head_dim=24,
            intermediate_size=144,
            num_hidden_layers=3,
            num_attention_heads=6,
            num_key_value_heads=2,
            max_position_embeddings=4_096,
            initializer_range=0.08,
            tie_word_embeddings=False,
            **_NO_MARKS,
        )
    )


def _stablelm() -> PreTrainedModel:
    """Multi-head attention with biases, a quarter of each rotary, a head of its own."""
    config = StableLmConfig(
        vocab_size=_WORDS,
        hidden_size=copying.WIDTH,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=3,
        num_key_value_heads=3,
        use_qkv_bias=True,
        max_position_embeddings=8_192,
        tie_word_embeddings=False,
        **_NO_MARKS,
    )
    return copying.laid_out(StableLmForCausalLM(config))


CHOOSING = {
    "gpt2-recall": Judge(_gpt2, Recall(_FACTS, 300), Plan(1_000, 4e-3, 1_024), 401, _adam, cosine),
    "mistral-prose": Judge(
        _mistral, Text(documentation, 512, 768), Plan(250, 4e-3, 1_024), 402, _radam, constant
    ),
}
"""Levels may be chosen by these."""

JUDGING = {
    "deepseek-recall": Judge(
        _deepseek,
        Recall(_MANY_FACTS, 320),
        Plan(480, 4e-3, 1_024),
        504,
        adamw,
        constant,
    ),
    "neox-headers": Judge(
        _neox, Text(headers, 512, 768), Plan(250, 3e-3, 1_024), 502, _nadam, cosine
    ),
    "qwen3-recall": Judge(
        _qwen3, Recall(_OTHER_FACTS, 256), Plan(450, 4e-3, 1_024), 503, _adam, constant
    ),
    "stablelm-copying": Judge(
        _stablelm, Copying(_WORDS, 4_096), Plan(60, 5e-4, 1_024), 505, adamw, linear
    ),
}
"""Nothing may be chosen by these."""

JUDGES = CHOOSING | JUDGING
