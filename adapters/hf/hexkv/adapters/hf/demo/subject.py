"""The model and the prompt of the demo."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
)

from hexkv.adapters.hf.demo.plan import Plan
from hexkv.ports import InvalidRequest

_ENDING = "\nIn short:"
"""What follows the prefix, and is computed after a hit. Ten bytes, as few as a short question
has tokens: on busy cores threads wait for each other far longer than ten rows take to compute."""


def subject(plan: Plan) -> tuple[PreTrainedModel, list[int]]:
    """The model, and the prompt: the text's first tokens and the start of a summary.

    Raises:
        InvalidRequest: the text is too short.
        OSError: there is no such model.
    """
    text = Path(plan.text).read_text(encoding="utf-8")
    if plan.model:
        tokenizer = AutoTokenizer.from_pretrained(plan.model)
        words = tokenizer(text).input_ids
        ending = tokenizer(_ENDING, add_special_tokens=False).input_ids
    else:
        words, ending = list(text.encode()), list(_ENDING.encode())
    if len(words) < plan.tokens:
        raise InvalidRequest(
            f"the text has {len(words)} tokens, not {plan.tokens}: give a longer one with --text, "
            "or fewer --tokens"
        )
    model = _pretrained(plan.model) if plan.model else _random_model()
    model.eval()  # type: ignore[no-untyped-call]  # transformers annotates half of it
    return model, [*words[: plan.tokens], *ending]


def _pretrained(name: str) -> PreTrainedModel:
    """In float32, so that equal tokens are a fair demand."""
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(name, dtype=torch.float32)
    return model


def _random_model() -> PreTrainedModel:
    """A Llama over bytes, 48 million weights, the same in every process."""
    torch.manual_seed(20)
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=1024,
        intermediate_size=3072,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=2,
        max_position_embeddings=131_072,
        # Larger than usual: random attention should look at some tokens more than at others.
        initializer_range=0.05,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    return LlamaForCausalLM(config)
