"""Triton rotates and quantises as torch and numpy do."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hexkv.kernels import rope
from hexkv.kernels.coding import lowbit
from hexkv.kernels.in_triton import lowbit as in_triton
from hexkv.kernels.in_triton import rope as turning

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SOME = settings(deadline=None, max_examples=25)
UNIT = {torch.float32: 2e-6, torch.bfloat16: 2.0**-7, torch.float16: 2.0**-10}
"""A step of each dtype, or what two more roundings in single precision make of it.

Triton's interpreter rounds to bfloat16 by cutting off, a GPU to the nearest: a step apart.
"""


@SOME
@given(
    rows=st.integers(0, 20),
    pairs=st.integers(1, 20),
    behind=st.integers(0, 50),
    offset=st.integers(-100_000, 100_000),
    interleaved=st.booleans(),
    dtype=st.sampled_from(sorted(UNIT, key=str)),
)
def test_keys_are_turned_as_complex_numbers_are(rows, pairs, behind, offset, interleaved, dtype):
    made = torch.Generator().manual_seed(rows + pairs)
    keys = torch.randn(rows, 2, 2 * pairs + behind, generator=made).to(dtype)
    frequencies = 10_000.0 ** -(torch.arange(pairs, dtype=torch.float64) / pairs)
    wanted = rope.reference(keys, frequencies, offset, interleaved=interleaved)
    angles = frequencies * offset
    found = turning.rotate(
        keys.to(DEVICE),
        angles.cos().float().to(DEVICE),
        angles.sin().float().to(DEVICE),
        interleaved=interleaved,
    ).cpu()
    assert found.dtype == dtype
    assert torch.equal(found[..., 2 * pairs :], keys[..., 2 * pairs :])
    # A sum of two products may be small beside them: its error is a share of the pair.
    limit = UNIT[dtype] * max(1.0, float(keys.abs().max()) * math.sqrt(2) if rows else 1.0)
    assert (found.double() - wanted.double()).abs().le(limit).all()


@SOME
@given(
    rows=st.integers(0, 30),
    peers=st.integers(1, 150),
    scale=st.sampled_from([0.0, 1e-30, 1.0, 1e30]),
    seed=st.integers(0, 1000),
)
def test_levels_are_those_of_numpy(rows, peers, scale, seed):
    values = np.random.default_rng(seed).normal(0, 1, (rows, peers)).astype(np.float32)
    values *= np.float32(scale)
    peaks = np.abs(values).max(axis=1, initial=0)
    levels, found = in_triton.to_int8(torch.from_numpy(values).to(DEVICE))
    assert np.array_equal(found.cpu().numpy(), peaks)
    wanted = lowbit.to_int8(values, peaks)
    assert np.array_equal(levels.cpu().numpy(), wanted)
    back = in_triton.from_int8(levels, found, torch.float32)
    assert np.array_equal(back.cpu().numpy(), lowbit.from_int8(wanted, peaks))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_numbers_of_16_bits_become_levels_without_a_step_between(dtype):
    values = torch.randn(9, 33, generator=torch.Generator().manual_seed(1)).to(dtype)
    levels, peaks = in_triton.to_int8(values.to(DEVICE))
    wide = values.float().numpy()
    assert np.array_equal(levels.cpu().numpy(), lowbit.to_int8(wide, np.abs(wide).max(1)))
    back = in_triton.from_int8(levels, peaks, dtype).cpu().float().numpy()
    limit = np.abs(wide).max(1, keepdims=True) * (0.5 / lowbit.INT8 + UNIT[dtype])
    assert (np.abs(back - wide) <= limit).all()
