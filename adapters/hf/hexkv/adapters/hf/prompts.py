"""Prompts as they are handed in, as lists of tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from hexkv.ports import InvalidTokens


def tokens_of(
    input_ids: torch.Tensor | Sequence[int], placeholders: Mapping[int, str]
) -> list[int]:
    """The tokens of one prompt of text.

    Args:
        input_ids: ``[tokens]`` or ``[1, tokens]``.
        placeholders: tokens that stand for input other than text, with the configuration's field.

    Raises:
        InvalidTokens: not one sequence of at least one token, or one that stands for an
            image or a sound, whose KV does not follow from its id.
    """
    tokens = _row(input_ids)
    for position, token in enumerate(tokens if placeholders else ()):
        if name := placeholders.get(token):
            raise InvalidTokens(
                f"token {token} at position {position} is the model's {name}: its KV is that"
                " of what it stands for, so equal tokens have different KV"
            )
    return tokens


def _row(input_ids: torch.Tensor | Sequence[int]) -> list[int]:
    if isinstance(input_ids, torch.Tensor):
        if input_ids.dim() == 2 and len(input_ids) == 1:
            input_ids = input_ids[0]
        if input_ids.dim() != 1 or input_ids.is_floating_point():
            raise InvalidTokens(
                f"one sequence of integers is needed, not {input_ids.dtype} of shape "
                f"{tuple(input_ids.shape)}"
            )
        input_ids = input_ids.tolist()
    tokens = list(input_ids)
    if not tokens:
        raise InvalidTokens("a prompt has at least one token")
    return tokens
