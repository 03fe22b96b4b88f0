"""The attention of a question in one layer, seen where torch computes it.

A function mode of torch is of the thread that entered it, and patches nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from hexkv.adapters.hf.blending.progress import Pass


class AttentionWatch(TorchFunctionMode):
    """Gives *progress* the attention of its question, as soon as it waits for it."""

    def __init__(self, progress: Pass) -> None:
        super().__init__()
        self._progress = progress

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: Sequence[type],
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        """Call *func*, and examine its result if it is an attention's."""
        given = dict(kwargs or {})
        result = func(*args, **given)
        if self._progress.awaits_attention:
            seen = None
            if func is functional.scaled_dot_product_attention:
                seen = [
                    _weights(index, rows, *args, **given)  # type: ignore[arg-type]
                    for index, rows in enumerate(self._progress.questions())
                ]
            elif func in (functional.softmax, torch.softmax, torch.Tensor.softmax):
                seen = self._of_softmax(result)
            if seen is not None:
                self._progress.see([weights.sum((0, 1)) for weights in seen])
        return result

    def _of_softmax(self, result: object) -> list[torch.Tensor] | None:
        """The rows of each prompt's question in *result*, if it is an attention's weights.

        Behind the tokens a column may stand for none of them.
        """
        rows, tokens = self._progress.first_rows, self._progress.tokens
        if not isinstance(result, torch.Tensor) or result.dim() != 4:
            return None
        if result.shape[2] != rows or not 0 <= result.shape[3] - tokens <= 1:
            return None
        return [
            weights[:, question.to(result.device)].float()
            for weights, question in zip(result, self._progress.questions(), strict=True)
        ]


def _weights(  # noqa: PLR0913
    prompt: int,
    rows: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,  # noqa: ARG001  # as torch calls it
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,  # noqa: ARG001
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,  # noqa: ARG001  # known by the number of heads
) -> torch.Tensor:
    """Attention of some *rows* of one *prompt* ``[heads, rows, tokens]``, in float32."""
    rows = rows.to(query.device)
    asked = query[prompt, :, rows].float()
    keys = key[prompt].float().repeat_interleave(query.shape[1] // key.shape[1], 0)
    made = asked @ keys.transpose(1, 2) * (query.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        seen = torch.arange(keys.shape[1], device=rows.device) <= rows[:, None]
        made = made.masked_fill(~seen, float("-inf"))
    if attn_mask is not None:
        mask = attn_mask[min(prompt, len(attn_mask) - 1)]
        mask = mask if mask.shape[-2] == 1 else mask[..., rows, :]
        made = made.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else made + mask
    return made.softmax(-1)
