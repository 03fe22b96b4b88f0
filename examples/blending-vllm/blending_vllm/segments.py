"""Segments of a prompt, and their KV as computed alone at position 0."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import torch

KV = list[tuple[torch.Tensor, torch.Tensor]]
"""Keys and values of each layer, ``[tokens, heads, width]``; the keys are those of 0, 1, 2, ..."""


@dataclass(frozen=True)
class Settings:
    """``kv_connector_extra_config`` of the connector.

    ``separator`` is the tokens that end a segment. Layers up to ``check_layer`` are computed for
    every token; from the next one on, for ``ratio`` of the reused tokens. Spans of fewer than
    ``least_tokens`` are left to vLLM. ``keep_bytes`` bounds the KV that a worker keeps.
    """

    separator: tuple[int, ...]
    check_layer: int = 1
    ratio: float = 0.15
    least_tokens: int = 256
    keep_bytes: int = 256 << 20

    @classmethod
    def of(cls, extra: dict[str, object]) -> Settings:
        """Read and check *extra*.

        Raises:
            ValueError: A key is unknown, or a value is out of its range.
        """
        if unknown := set(extra) - set(cls.__dataclass_fields__):
            raise ValueError(f"blending: kv_connector_extra_config has unknown keys: {unknown}")
        separator = extra.get("separator")
        if not isinstance(separator, Sequence) or isinstance(separator, str) or not separator:
            raise ValueError("blending: separator must be a list of token ids, not empty")
        chosen = cls(**{**extra, "separator": tuple(separator)})
        whole = (*chosen.separator, chosen.check_layer, chosen.least_tokens, chosen.keep_bytes)
        if any(type(number) is not int or number < 0 for number in whole):
            raise ValueError("blending: token ids, check_layer and sizes must be integers from 0")
        if chosen.check_layer < 1:
            raise ValueError(
                "blending: check_layer must be 1 or more: in layer 0 keys differ by rounding"
            )
        if not 0 <= chosen.ratio <= 1:
            raise ValueError("blending: ratio must be between 0 and 1")
        return chosen


def cut(tokens: Sequence[int], separator: Sequence[int]) -> list[tuple[int, int]]:
    """Start and end of each segment, its separator included. What follows the last one is none."""
    found, start, width, at = [], 0, len(separator), 0
    wanted = tuple(separator)
    while at + width <= len(tokens):
        if tuple(tokens[at : at + width]) == wanted:
            at += width
            found.append((start, at))
            start = at
        else:
            at += 1
    return found


class KeptSegments:
    """KV of segments by their tokens, the least recently used dropped beyond a bound in bytes.

    Ranks that are given the same calls keep the same segments, which their collectives rely on.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: OrderedDict[bytes, KV] = OrderedDict()
        self._used = 0

    def get(self, tokens: Sequence[int]) -> KV | None:
        """The KV of a segment, or None."""
        name = array("I", tokens).tobytes()
        if name in self._kept:
            self._kept.move_to_end(name)
        return self._kept.get(name)

    def put(self, tokens: Sequence[int], kv: KV) -> None:
        """Keep *kv*, if it fits at all."""
        name = array("I", tokens).tobytes()
        if name in self._kept or _bytes(kv) > self._most:
            return
        self._kept[name] = kv
        self._used += _bytes(kv)
        while self._used > self._most:
            _, dropped = self._kept.popitem(last=False)
            self._used -= _bytes(dropped)


def _bytes(kv: KV) -> int:
    return sum(part.nbytes for layer in kv for part in layer)
