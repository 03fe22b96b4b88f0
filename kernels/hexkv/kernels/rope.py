"""Keys of other positions: rotary embeddings rotated by an offset (RoFormer, arXiv 2104.09864).

A key at position *p* has each pair of its elements rotated by ``p * frequency``. Rotating it by
``offset * frequency`` more makes it the key of position ``p + offset``, so that a segment's KV
serves elsewhere in a prompt. Angles are made in double precision, products in single.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec

import torch

from hexkv.ports import InvalidRequest


def rotate(
    keys: torch.Tensor, frequencies: torch.Tensor, offset: int, *, interleaved: bool = False
) -> torch.Tensor:
    """Return *keys* as they would be *offset* positions later; before, if it is negative.

    Args:
        keys: ``[..., width]`` of any floating-point dtype of 16 or 32 bits.
        frequencies: ``[pairs]`` radians for each position; elements behind the first ``2 * pairs``
            are not rotated.
        offset: positions.
        interleaved: pairs are neighbours (GPT-J) instead of halves (GPT-NeoX, Llama).

    Raises:
        InvalidRequest: the keys are narrower than the pairs, or no such numbers.
    """
    check_keys(keys)
    if frequencies.dim() != 1 or 2 * len(frequencies) > keys.shape[-1]:
        raise InvalidRequest(
            f"{tuple(frequencies.shape)} pairs do not fit into {keys.shape[-1]} elements"
        )
    ((cosines, sines),) = turns(frequencies, [offset], keys.device)
    if _in_triton(keys):
        from hexkv.kernels.in_triton import rope

        return rope.rotate(keys, cosines, sines, interleaved=interleaved)
    wide = 2 * len(cosines)
    made = torch.empty_like(keys)
    made[..., wide:] = keys[..., wide:]
    _rotate(keys[..., :wide], made[..., :wide], cosines, sines, interleaved=interleaved)
    return made


def rotate_in_place(
    keys: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor, *, interleaved: bool = False
) -> None:
    """Rotate *keys* themselves, all ``2 * pairs`` elements of which are rotated.

    Args:
        keys: as those of :func:`rotate`, any view.
        cosines: ``[pairs]`` of the angles, one of :func:`turns`; and *sines*.
        sines: ``[pairs]`` of the same angles.
        interleaved: see there.
    """
    if _in_triton(keys):
        from hexkv.kernels.in_triton import rope

        keys.copy_(rope.rotate(keys, cosines, sines, interleaved=interleaved))
    else:
        _rotate(keys, keys, cosines, sines, interleaved=interleaved)


def check_keys(keys: torch.Tensor) -> None:
    """Check that *keys* are numbers that can be rotated.

    Raises:
        InvalidRequest: they are not.
    """
    if not keys.is_floating_point() or keys.element_size() not in (2, 4):
        raise InvalidRequest(f"keys of {keys.dtype} cannot be rotated")


def turns(
    frequencies: torch.Tensor, offsets: Sequence[int], device: torch.device
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return ``[pairs]`` cosines and sines of each of *offsets*, as float32 on *device*."""
    angles = frequencies.double().cpu() * torch.tensor(offsets, dtype=torch.float64)[:, None]
    cosines, sines = angles.cos().float().to(device), angles.sin().float().to(device)
    return list(zip(cosines, sines, strict=True))


def reference(
    keys: torch.Tensor, frequencies: torch.Tensor, offset: int, *, interleaved: bool = False
) -> torch.Tensor:
    """Rotate as :func:`rotate` by a product of complex doubles: slow, but obviously right."""
    pairs = len(frequencies)
    first, second = _halves(keys.double()[..., : 2 * pairs], interleaved=interleaved)
    turn = torch.polar(torch.ones(pairs, dtype=torch.float64), frequencies.double() * offset)
    turned = torch.complex(first.contiguous(), second.contiguous()) * turn
    made = keys.double()
    one, other = _halves(made[..., : 2 * pairs], interleaved=interleaved)
    one.copy_(turned.real)
    other.copy_(turned.imag)
    return made.to(keys.dtype)


def _rotate(
    keys: torch.Tensor,
    into: torch.Tensor,
    cosines: torch.Tensor,
    sines: torch.Tensor,
    *,
    interleaved: bool,
) -> None:
    """Write the rotated *keys* to *into*, which may be *keys*."""
    x, y = _halves(keys, interleaved=interleaved)
    x, y = x.float(), y.float()
    first, second = x * cosines - y * sines, y * cosines + x * sines
    one, other = _halves(into, interleaved=interleaved)
    one.copy_(first)
    other.copy_(second)


def _in_triton(keys: torch.Tensor) -> bool:
    return keys.device.type == "cuda" and find_spec("triton") is not None


def _halves(keys: torch.Tensor, *, interleaved: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Return views of the first and of the second element of each pair."""
    if interleaved:
        return keys[..., ::2], keys[..., 1::2]
    half = keys.shape[-1] // 2
    return keys[..., :half], keys[..., half:]
