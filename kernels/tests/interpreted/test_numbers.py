"""Triton rotates and quantises as torch and numpy do."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from depth import examples
from hexkv.kernels import rope
from hexkv.kernels.coding import lowbit, plain
from hexkv.kernels.coding.tables import HALVES
from hexkv.kernels.in_triton import lowbit as in_triton
from hexkv.kernels.in_triton import rope as turning

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SOME = settings(max_examples=examples(8))
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


@st.composite
def groups(draw):
    """``[rows, peers]`` of any magnitude, some rows of them constant."""
    shape = draw(st.integers(0, 30)), draw(st.integers(1, 150))
    random = np.random.default_rng(draw(st.integers(0, 1000)))
    values = random.normal(draw(st.sampled_from([0, 3])), 1, shape).astype(np.float32)
    values *= np.float32(draw(st.sampled_from([0.0, 1e-41, 1e-30, 1.0, 1e30])))
    values[::3] = values[::3, :1]
    return values


def on_device(*arrays):
    return tuple(torch.from_numpy(array).to(DEVICE) for array in arrays)


def same(found, wanted):
    """Bit for bit, but for the sign of a zero."""
    return found.dtype == wanted.dtype and np.array_equal(found, wanted)


@SOME
@given(groups())
def test_levels_are_those_of_numpy(values):
    peaks = np.abs(values).max(axis=1, initial=0)
    levels, found = in_triton.to_int8(*on_device(values))
    assert same(found.cpu().numpy(), peaks)
    wanted = lowbit.to_int8(values, peaks)
    assert same(levels.cpu().numpy(), wanted)
    back = in_triton.from_int8(levels, found, torch.float32)
    assert same(back.cpu().numpy(), lowbit.from_int8(wanted, peaks))


@SOME
@given(groups().filter(len), st.sampled_from(HALVES))
def test_cachegens_levels_are_those_of_numpy(values, half):
    symbols, peaks = in_triton.quantise(*on_device(values), half)
    wanted = plain.quantise(values, half)
    assert same(symbols.cpu().numpy(), wanted[0])
    assert same(peaks.cpu().numpy(), wanted[1])


@SOME
@given(groups())
def test_float8_is_that_of_numpy(values):
    peaks = np.abs(values).max(axis=1, initial=0)
    codes, found = in_triton.to_float8(*on_device(values))
    assert same(found.cpu().numpy(), peaks)
    wanted = lowbit.to_float8(values, peaks)
    assert same(codes.cpu().numpy(), wanted)
    back = in_triton.from_float8(codes, found, torch.float32)
    assert same(back.cpu().numpy(), lowbit.from_float8(wanted, peaks))


def test_every_code_of_float8_means_what_it_means_to_numpy():
    codes = np.arange(256, dtype=np.uint8)[None]
    for peak in (448.0, 1.0, 0.3):
        peaks = np.array([peak], np.float32)
        back = in_triton.from_float8(*on_device(codes, peaks), torch.float32).cpu().numpy()
        assert back.tobytes() == lowbit.from_float8(codes, peaks).tobytes(), "signs of zeros, too"


@SOME
@given(groups())
def test_steps_of_four_bits_are_those_of_numpy_two_in_a_byte(values):
    low, high = values.min(axis=1), values.max(axis=1)
    pairs, *found = in_triton.to_int4(*on_device(values))
    assert same(found[0].cpu().numpy(), low)
    assert same(found[1].cpu().numpy(), high)
    steps = lowbit.to_int4(values, low, high)
    assert same(pairs.cpu().numpy(), lowbit.packed(steps))
    back = in_triton.from_int4(pairs, *found, values.shape[1], torch.float32)
    assert same(back.cpu().numpy(), lowbit.from_int4(steps, low, high))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_numbers_of_16_bits_need_no_step_between(dtype):
    values = torch.randn(9, 33, generator=torch.Generator().manual_seed(1)).to(dtype)
    wide, given = values.float().numpy(), values.to(DEVICE)
    peaks, low, high = np.abs(wide).max(1), wide.min(1), wide.max(1)
    levels, codes, (pairs, *ends) = (
        in_triton.to_int8(given),
        in_triton.to_float8(given),
        in_triton.to_int4(given),
    )
    assert same(levels[0].cpu().numpy(), lowbit.to_int8(wide, peaks))
    assert same(codes[0].cpu().numpy(), lowbit.to_float8(wide, peaks))
    assert same(pairs.cpu().numpy(), lowbit.packed(lowbit.to_int4(wide, low, high)))
    for back, wanted in (
        (in_triton.from_int8(*levels, dtype), lowbit.from_int8(lowbit.to_int8(wide, peaks), peaks)),
        (
            in_triton.from_float8(*codes, dtype),
            lowbit.from_float8(lowbit.to_float8(wide, peaks), peaks),
        ),
        (
            in_triton.from_int4(pairs, *ends, 33, dtype),
            lowbit.from_int4(lowbit.to_int4(wide, low, high), low, high),
        ),
    ):
        assert back.dtype == dtype
        off = np.abs(back.cpu().float().numpy() - wanted)
        assert (off <= UNIT[dtype] * np.abs(wanted)).all()
