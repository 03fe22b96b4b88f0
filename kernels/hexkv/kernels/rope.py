"""Keys of other positions: rotary embeddings turned on by an offset (RoFormer, arXiv 2104.09864).

A key at position *p* has each pair of its elements turned by ``p * frequency``. Turning it by
``offset * frequency`` more makes it the key of position ``p + offset``, so that a segment's KV
serves elsewhere in a prompt. Angles are made in double precision, products in single.
"""

from __future__ import annotations

from importlib.util import find_spec

import torch

from hexkv.ports import InvalidRequest


def rotate(
    keys: torch.Tensor, frequencies: torch.Tensor, offset: int, *, interleaved: bool = False
) -> torch.Tensor:
    """*keys* as they would be *offset* positions later; before, if it is negative.

    Args:
        keys: ``[..., width]`` of any floating-point dtype of 16 or 32 bits.
        frequencies: ``[pairs]`` radians for each position; elements behind the first
            ``2 * pairs`` are not rotated.
        offset: positions.
        interleaved: pairs are neighbours (GPT-J) instead of halves (GPT-NeoX, Llama).

    Raises:
        InvalidRequest: the keys are narrower than the pairs, or no such numbers.
    """
    if not keys.is_floating_point() or keys.element_size() not in (2, 4):
        raise InvalidRequest(f"keys of {keys.dtype} cannot be rotated")
    if frequencies.dim() != 1 or 2 * len(frequencies) > keys.shape[-1]:
        raise InvalidRequest(
            f"{tuple(frequencies.shape)} pairs do not fit into {keys.shape[-1]} elements"
        )
    angles = frequencies.to(torch.float64) * offset
    cosines, sines = angles.cos().float().to(keys.device), angles.sin().float().to(keys.device)
    if keys.device.type == "cuda" and find_spec("triton") is not None:
        from hexkv.kernels.in_triton import rope

        return rope.rotate(keys, cosines, sines, interleaved=interleaved)
    return _rotate(keys, cosines, sines, interleaved=interleaved)


def reference(
    keys: torch.Tensor, frequencies: torch.Tensor, offset: int, *, interleaved: bool = False
) -> torch.Tensor:
    """The same as a product of complex numbers of double precision: slow, obviously right."""
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
    keys: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor, *, interleaved: bool
) -> torch.Tensor:
    made = torch.empty_like(keys)
    wide = 2 * len(cosines)
    made[..., wide:] = keys[..., wide:]
    x, y = _halves(keys[..., :wide], interleaved=interleaved)
    x, y = x.float(), y.float()
    one, other = _halves(made[..., :wide], interleaved=interleaved)
    one.copy_(x * cosines - y * sines)
    other.copy_(y * cosines + x * sines)
    return made


def _halves(keys: torch.Tensor, *, interleaved: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Views of the first and of the second element of each pair."""
    if interleaved:
        return keys[..., ::2], keys[..., 1::2]
    half = keys.shape[-1] // 2
    return keys[..., :half], keys[..., half:]
