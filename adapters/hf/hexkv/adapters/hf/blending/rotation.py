"""How a model rotates its keys, found by having it compute the same tokens at other places.

Configurations do not tell all of it: which dimensions are rotated, in halves or in pairs of
neighbours, in which layers, by which of several frequencies. The model does: a key that was
rotated by an offset must be the key that the model computes so many positions later.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from transformers import DynamicCache, PreTrainedModel

from hexkv.adapters.hf.shape import compute_planes, placeholders_of, relative_change
from hexkv.kernels.rope import rotate
from hexkv.ports import LayoutMismatch

_PROBE = 9
"""Tokens that are computed twice."""

_OFFSETS = (1, 101)
"""Positions by which they are moved: one that every frequency shows, one that none hides."""

_SAME = {4: 0.01, 2: 0.25}
"""By how much KV may differ that is the same but for rounding, relative to its norm, by the bytes
of an element. 16 bits round cosines and sines, too, and each layer rounds anew; another rotation
differs by its whole share of the norm."""


@dataclass(frozen=True, slots=True)
class Turn:
    """How one plane of a layer is rotated."""

    frequencies: torch.Tensor
    """``[pairs]`` float32, radians for each position, as the model has scaled and turns them."""

    interleaved: bool
    """Pairs are neighbours instead of halves of what is rotated."""

    start: int
    """The first element that is rotated."""

    def rotate(self, plane: torch.Tensor, offset: int) -> torch.Tensor:
        """*plane*, ``[..., width]``, as it would be *offset* positions later. A copy."""
        turned = rotate(
            plane[..., self.start :], self.frequencies, offset, interleaved=self.interleaved
        )
        return torch.cat([plane[..., : self.start], turned], -1) if self.start else turned


@dataclass(frozen=True, slots=True)
class Rotation:
    """How a model's KV moves to other positions."""

    turns: Sequence[Sequence[Turn | None]]
    """``[layer][plane]``; ``None`` of what is the same everywhere, as values are."""

    def move(self, layer: int, planes: Sequence[torch.Tensor], offset: int) -> list[torch.Tensor]:
        """*planes* of one layer as they would be *offset* positions later."""
        return [
            plane if turn is None or offset == 0 else turn.rotate(plane, offset)
            for turn, plane in zip(self.turns[layer], planes, strict=True)
        ]


def rotation_of(model: PreTrainedModel) -> Rotation:
    """How *model* rotates, plane by plane; refuses what no one rotation explains.

    Factors of attention, as YaRN has them, are in the stored keys and stay there.

    Raises:
        LayoutMismatch: the KV of some layer depends on its position in another way.
    """
    name = type(model).__name__
    if "position_ids" not in inspect.signature(model.forward).parameters:
        raise LayoutMismatch(f"{name} takes no positions, so its segments cannot be moved")
    tokens = _tokens(model)
    places = [torch.arange(len(tokens), device=model.device)[None] + at for at in (0, *_OFFSETS)]
    home, *moved = (
        compute_planes(model, tokens, DynamicCache(), position_ids=place) for place in places
    )
    frequencies = _frequencies(model)
    turns: list[list[Turn | None]] = []
    for layer, planes in enumerate(home):
        turns.append([])
        for index, plane in enumerate(planes):
            others = [again[layer][index] for again in moved]
            limit = _SAME.get(plane.element_size(), 0.0)
            error, turn = min(
                ((_error(turn, plane, others), turn) for turn in _turns(plane, frequencies)),
                key=lambda found: found[0],
            )
            if not error <= limit:
                if not frequencies:
                    raise LayoutMismatch(
                        f"{name} holds no frequencies of RoPE, and KV of layer {layer} changes with"
                        " its position, so its segments cannot be moved"
                    )
                raise LayoutMismatch(
                    f"{name} does not rotate layer {layer} by its own frequencies: moved by them,"
                    f" KV differs by {error:.1%} from what the model computes there"
                )
            turns[-1].append(turn)
    return Rotation(turns)


def _tokens(model: PreTrainedModel) -> list[int]:
    """Tokens that differ, and stand for text."""
    vocabulary = int(model.config.get_text_config(decoder=True).vocab_size)
    placeholders = placeholders_of(model)
    known = [token for token in range(min(vocabulary, 64)) if token not in placeholders]
    return [known[(3 + 5 * index) % len(known)] for index in range(_PROBE)]


def _frequencies(model: PreTrainedModel) -> list[torch.Tensor]:
    """``[pairs]`` of each distinct set of frequencies that a module of *model* holds."""
    found: list[torch.Tensor] = []
    for name, buffer in model.named_buffers():
        last = name.rpartition(".")[2]
        if not last.endswith("inv_freq") or "original" in last or buffer.dim() != 1:
            continue
        frequencies = buffer.detach().float().cpu()
        if not any(torch.equal(frequencies, known) for known in found):
            found.append(frequencies)
    return found


def _turns(plane: torch.Tensor, frequencies: Sequence[torch.Tensor]) -> Iterator[Turn | None]:
    """Every way to rotate *plane*; the simplest come first."""
    yield None
    width = plane.shape[-1]
    for one in frequencies:
        rest = width - 2 * len(one)
        for start in sorted({0, rest}) if rest >= 0 else ():
            for interleaved in (False, True):
                yield Turn(one, interleaved, start)
                yield Turn(-one, interleaved, start)  # some turn the other way


def _error(turn: Turn | None, plane: torch.Tensor, others: Sequence[torch.Tensor]) -> float:
    """By how much *plane*, moved by *turn*, differs from what was computed at each offset."""
    if plane.element_size() not in _SAME:
        return float("inf")
    return max(
        relative_change(other, plane if turn is None else turn.rotate(plane, offset))
        for offset, other in zip(_OFFSETS, others, strict=True)
    )
