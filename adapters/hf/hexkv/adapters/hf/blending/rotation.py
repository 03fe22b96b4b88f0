"""How a model rotates its keys, found by having it compute the same tokens at other places.

Configurations do not describe all of it: which dimensions are rotated, in halves or in pairs of
neighbours, in which layers, by which of several frequencies. The model does: a key that was
rotated by an offset must be the key that the model computes that many positions later.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence

import torch
from transformers import DynamicCache, PreTrainedModel

from hexkv.adapters.hf.shape import compute_planes, placeholders_of, relative_change
from hexkv.kernels.rope import rotate
from hexkv.kernels.rotary import RotaryMap, Rotation
from hexkv.ports import LayoutMismatch

_PROBE = 9
"""Tokens that are computed twice."""

_OFFSETS = (1, 101)
"""Positions by which they are moved: one that every frequency shows, one that none hides."""

_SAME = {4: 0.01, 2: 0.25}
"""By how much KV may differ that is the same but for rounding, relative to its norm, by the bytes
of an element. 16 bits round cosines and sines, too, and each layer rounds anew; another rotation
differs by its whole share of the norm."""


def rotation_of(model: PreTrainedModel) -> RotaryMap:
    """How *model* rotates, layer by layer; refuses KV that no one rotation explains.

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
    candidates = _Candidates(model)
    layers: list[Rotation | None] = []
    for layer, planes in enumerate(home):
        found: list[Rotation] = []
        for index, plane in enumerate(planes):
            others = [again[layer][index] for again in moved]
            error, rotation = min(
                ((_error(one, plane, others), one) for one in candidates.of(plane, index)),
                key=lambda pair: pair[0],
            )
            if not error <= _SAME.get(plane.element_size(), 0.0):
                raise LayoutMismatch(f"{name} {candidates.refusal(layer, error)}")
            found += [] if rotation is None else [rotation]
        if len(found) > 1:
            raise LayoutMismatch(f"{name} rotates values of layer {layer}, too")
        layers.append(found[0] if found else None)
    return RotaryMap(layers)


class _Candidates:
    """Every way in which a plane may be rotated, by frequencies that a model holds."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._frequencies = _frequencies(model)
        self._made: dict[tuple[int, int], list[Rotation | None]] = {}

    def of(self, plane: torch.Tensor, index: int) -> Sequence[Rotation | None]:
        """The candidates of a layer's plane *index*; the simplest come first. Layers share them."""
        known = self._made.get((plane.shape[-1], index))
        if known is None:
            known = [None, *self._rotations(plane.shape[-1], index)]
            self._made[plane.shape[-1], index] = known
        return known

    def refusal(self, layer: int, error: float) -> str:
        """The reason why none of them is right for *layer*."""
        if not self._frequencies:
            return (
                f"holds no frequencies of RoPE, and KV of layer {layer} changes with its position,"
                " so its segments cannot be moved"
            )
        return (
            f"does not rotate layer {layer} by its own frequencies: moved by them, KV differs by"
            f" {error:.1%} from what the model computes there"
        )

    def _rotations(self, width: int, index: int) -> Iterator[Rotation]:
        for one in self._frequencies:
            rest = width - 2 * len(one)
            for start in sorted({0, rest}) if rest >= 0 else ():
                for interleaved in (False, True):
                    yield Rotation(one, interleaved, index, start)
                    yield Rotation(-one, interleaved, index, start)  # some turn the other way


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


def _error(rotation: Rotation | None, plane: torch.Tensor, others: Sequence[torch.Tensor]) -> float:
    """By how much *plane*, moved by *rotation*, differs from the planes at each offset."""
    if rotation is None:
        return max(relative_change(other, plane) for other in others)
    if plane.element_size() not in _SAME:
        return float("inf")
    errors = []
    for offset, other in zip(_OFFSETS, others, strict=True):
        moved = plane.clone()
        moved[..., rotation.start :] = rotate(
            plane[..., rotation.start :],
            rotation.frequencies,
            offset,
            interleaved=rotation.interleaved,
        )
        errors.append(relative_change(other, moved))
    return max(errors)
