"""The model and the prompt of the demo."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from hexkv.adapters.hf.demo.plan import DemoPlan
from hexkv.adapters.hf.trained import trained
from hexkv.ports import InvalidRequest

_ENDING = "\nIn short:"
"""The text after the prefix, computed after a hit. Ten bytes, as few as a short question
has tokens: on busy cores threads wait for each other far longer than ten rows take to compute."""


def subject(plan: DemoPlan) -> tuple[PreTrainedModel, list[int]]:
    """The model, and the prompt: the text's first tokens and the start of a summary.

    Raises:
        InvalidRequest: the text is too short, or there is no such model.
    """
    text = Path(plan.text).read_text(encoding="utf-8")
    if plan.model:
        model, words, ending = _named(plan.model, text)
    else:
        model = trained("text")
        words, ending = list(text.encode()), list(_ENDING.encode())
    if len(words) < plan.tokens:
        raise InvalidRequest(
            f"the text has {len(words)} tokens, not {plan.tokens}: give a longer one with --text, "
            "or fewer --tokens"
        )
    model.train(False)
    return model, [*words[: plan.tokens], *ending]


def _named(name: str, text: str) -> tuple[PreTrainedModel, list[int], list[int]]:
    """A user's model, the tokens of *text*, and those of the ending.

    In float32, so that equal tokens are a fair demand.

    Raises:
        InvalidRequest: transformers cannot load it.
    """
    try:
        tokenizer = AutoTokenizer.from_pretrained(name)
        model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(name, dtype=torch.float32)
    except (OSError, ValueError) as error:  # an unknown model, or a kind that it does not know
        reason = next(iter(str(error).splitlines()), "")
        raise InvalidRequest(f"cannot load --model {name}: {reason}") from error
    ending = tokenizer(_ENDING, add_special_tokens=False).input_ids
    return model, tokenizer(text).input_ids, ending
