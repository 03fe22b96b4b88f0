"""Where a model rotates its keys, and by what: for KV that moves to other positions of a prompt.

A model's rotation by frequencies that never change can be continued, whatever these are: scaled
ones (linear, Llama 3, YaRN), of a part of the elements, in halves or in pairs. A factor that the
model puts on its cosines and sines, as YaRN does, is in the stored keys and stays there.
Frequencies that follow the length of the prompt cannot: keys of a short one were rotated by others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from hexkv.kernels.rope import check_keys, rotate_in_place, turns
from hexkv.ports import InvalidRequest, KVLayout, LayoutMismatch

FIXED = frozenset({"default", "linear", "llama3", "yarn"})
"""Kinds of rotary embeddings, as configurations call them, whose frequencies never change."""

VARYING: Mapping[str, str] = {
    "dynamic": "its frequencies follow the length of the prompt",
    "longrope": "its frequencies are others for long prompts than for short ones",
}
"""Kinds whose keys cannot be moved, and why."""


class MovedRun(Protocol):
    """A run of a prompt's tokens whose keys move together."""

    @property
    def start(self) -> int: ...
    @property
    def end(self) -> int: ...
    @property
    def offset(self) -> int:
        """Positions by which they are rotated forward; negative: back."""


def check_kind(kind: str) -> None:
    """Check that keys with rotary embeddings of *kind*, a configuration's word, can be moved.

    Raises:
        InvalidRequest: they cannot, or the kind is not known.
    """
    if kind not in FIXED:
        why = VARYING.get(kind, f"only {', '.join(sorted(FIXED))} are known")
        raise InvalidRequest(f"keys with rotary embeddings of kind {kind!r} cannot be moved: {why}")


@dataclass(frozen=True, slots=True, eq=False)
class Rotation:
    """How one kind of layer rotates its keys.

    Raises:
        InvalidRequest: no frequencies, or a place that does not exist.
    """

    frequencies: torch.Tensor
    """``[pairs]`` radians for each position, as the model uses them."""

    interleaved: bool = False
    """Pairs are neighbours (GPT-J) instead of halves of the rotated elements (Llama)."""

    plane: int = 0
    """The plane of the layer: ``k`` of attention, ``rope`` of latent attention."""

    start: int = 0
    """The first element of each head that is rotated; ``2 * pairs`` are."""

    def __post_init__(self) -> None:
        if self.frequencies.dim() != 1 or not len(self.frequencies):
            raise InvalidRequest(f"no frequencies: a tensor of shape {[*self.frequencies.shape]}")
        if not self.frequencies.is_floating_point() or not self.frequencies.isfinite().all():
            raise InvalidRequest("frequencies are finite numbers")
        if self.plane < 0 or self.start < 0:
            raise InvalidRequest(f"no plane {self.plane}, or no element {self.start}")

    @property
    def end(self) -> int:
        """The element behind the last one that is rotated."""
        return self.start + 2 * len(self.frequencies)


class RotaryMap:
    """The rotation of each layer of a model; a layer may have none (NoPE)."""

    def __init__(self, layers: Sequence[Rotation | None]) -> None:
        """Take one for each layer. Layers that rotate alike should share one object."""
        self.layers = tuple(layers)

    @classmethod
    def uniform(cls, layers: int, rotation: Rotation) -> RotaryMap:
        """Return the map of a model all of whose layers rotate alike."""
        return cls([rotation] * layers)

    def check(self, layout: KVLayout) -> None:
        """Check that KV of *layout* has the elements to rotate.

        Raises:
            LayoutMismatch: it has other layers, no such plane, or one that is narrower.
        """
        if len(self.layers) != layout.layers:
            raise LayoutMismatch(f"rotations of {len(self.layers)} layers, KV of {layout.layers}")
        for layer, (rotation, planes) in enumerate(zip(self.layers, layout.planes, strict=True)):
            if rotation is None:
                continue
            if rotation.plane >= len(planes) or planes[rotation.plane].width < rotation.end:
                raise LayoutMismatch(
                    f"layer {layer} has no {rotation.end} elements to rotate in a plane"
                    f" {rotation.plane}"
                )

    def rotate(self, layer: int, planes: Sequence[torch.Tensor], runs: Iterable[MovedRun]) -> None:
        """Rotate the keys of *runs* in one layer to their positions, in place.

        Args:
            layer: the number of the layer.
            planes: ``[..., tokens, width]`` of each plane, of any strides: the whole prompt's.
            runs: those of a prompt, each once.

        Raises:
            InvalidRequest: a run leaves the tokens, or a plane cannot be rotated.
        """
        rotation = self.layers[layer]
        if rotation is None:
            return
        keys = planes[rotation.plane]
        moved = [run for run in runs if run.offset]
        for run in moved:
            if not 0 <= run.start <= run.end <= keys.shape[-2]:
                raise InvalidRequest(f"{run} is not within {keys.shape[-2]} tokens")
        check_keys(keys)
        around = turns(rotation.frequencies, [run.offset for run in moved], keys.device)
        for run, (cosines, sines) in zip(moved, around, strict=True):
            part = keys[..., run.start : run.end, rotation.start : rotation.end]
            rotate_in_place(part, cosines, sines, interleaved=rotation.interleaved)

    def rotate_all(
        self, tensors: Sequence[Sequence[torch.Tensor]], runs: Iterable[MovedRun]
    ) -> None:
        """Rotate the keys of *runs* in every layer: ``tensors[layer][plane]``, as in windows."""
        chosen = tuple(runs)
        for layer, planes in enumerate(tensors):
            self.rotate(layer, planes, chosen)
