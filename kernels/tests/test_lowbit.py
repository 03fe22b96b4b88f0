"""Numbers of 8 and 4 bits are the nearest ones, and single precision knows every dtype."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from hexkv.contracts.kit.cases import each
from hexkv.kernels.coding import compiled_lowbit, in_torch, lowbit, plain
from hexkv.kernels.coding.floats import FLOATS, narrowed, widened
from hexkv.kernels.dtypes import torch_dtype
from hexkv.ports import DType

finite = st.floats(-(2.0**100), 2.0**100, width=32)
groups = hnp.arrays(np.float32, st.tuples(st.integers(1, 5), st.integers(1, 20)), elements=finite)


anything = hnp.arrays(
    np.float32,
    st.tuples(st.integers(1, 40), st.integers(1, 40)),
    elements=st.floats(width=32, allow_nan=True, allow_infinity=True, allow_subnormal=True)
    | st.sampled_from([0.0, -0.0, 1.0]),
)


@given(anything, st.data())
def test_compiled_code_gives_the_bits_that_numpy_does(values, data):
    """Of any numbers, and of any codes and scales: what a frame says may be anything."""

    def both(name, *arguments):
        found = [getattr(coder, name)(*arguments) for coder in (lowbit, compiled_lowbit)]
        left, right = (one if isinstance(one, tuple) else (one,) for one in found)
        for one, other in zip(left, right, strict=True):
            assert (one is None) == (other is None), name
            if one is not None:
                assert one.dtype == other.dtype, name
                assert one.shape == other.shape, name
                assert one.tobytes() == other.tobytes(), name
        return found[1]

    turned = both("transposed", values)
    finite_ = np.nan_to_num(values, posinf=3e38, neginf=-3e38)
    for dtype in FLOATS:
        both(
            "narrowed",
            finite_ if dtype is not DType.FLOAT16 else np.clip(finite_, -6e4, 6e4),
            dtype,
        )
    for rows in (values, turned, values[:, :1]):
        peaks = both("peaks", rows)
        if peaks is not None:
            both("from_int8", both("to_int8", rows, peaks), peaks)
            both("from_float8", both("to_float8", rows, peaks), peaks)
        ends = both("ends", rows)
        if ends is not None:
            steps = both("to_int4", rows, *ends)
            both("from_int4", steps, *ends)
            both("unpacked", both("packed", steps), steps.size)
    codes = data.draw(hnp.arrays(np.uint8, values.shape))
    scales = st.floats(-(2.0**100), 2.0**100, width=32) | st.sampled_from([0.0, -0.0])
    low, high = (data.draw(hnp.arrays(np.float32, len(values), elements=scales)) for _ in range(2))
    both("from_int8", codes.view(np.int8), low)
    both("from_float8", codes, low)
    both("from_int4", codes & 15, low, high)


def every_number(dtype):
    """All finite elements of a 16-bit dtype."""
    bits = np.arange(1 << 16, dtype=np.uint16)
    numbers = torch.from_numpy(bits.view(np.int16)).view(torch_dtype(dtype)).float()
    return bits[np.isfinite(numbers.numpy())]


@each("dtype", [DType.BFLOAT16, DType.FLOAT16])
def test_every_number_comes_back_from_single_precision(dtype):
    bits = every_number(dtype)
    numbers = widened(memoryview(bits.tobytes()), dtype)
    told = torch.from_numpy(bits.view(np.int16)).view(torch_dtype(dtype)).float().numpy()
    assert numbers.tobytes() == told.tobytes()
    assert narrowed(numbers, dtype).tobytes() == bits.tobytes()


@given(hnp.arrays(np.float32, st.integers(1, 50), elements=st.floats(-6e4, 6e4, width=32)))
def test_rounding_to_a_dtype_is_torchs(numbers):
    for dtype in FLOATS:
        told = torch.from_numpy(numbers).to(torch_dtype(dtype))
        assert narrowed(numbers, dtype).tobytes() == told.view(torch.uint8).numpy().tobytes()


@given(hnp.arrays(np.float32, st.integers(1, 50), elements=st.floats(-448, 448, width=32)))
def test_float8_is_rounded_as_torch_does(numbers):
    numbers[0] = 448  # so that the scale is one
    codes = lowbit.to_float8(numbers, np.float32(448).reshape(()))
    told = torch.from_numpy(numbers).to(torch.float8_e4m3fn).view(torch.uint8).numpy()
    zero = (told & 0x7F == 0) & (codes & 0x7F == 0)
    assert (codes == told)[~zero].all()


def test_float8_codes_mean_what_torch_says():
    codes = np.arange(256, dtype=np.uint8)
    codes = codes[codes & 0x7F != 0x7F]
    told = torch.from_numpy(codes).view(torch.float8_e4m3fn).float().numpy()
    assert np.array_equal(lowbit.from_float8(codes, np.float32(448).reshape(())), told)


@given(groups)
def test_int8_is_within_half_a_unit(values):
    peaks = np.abs(values).max(axis=-1)
    back = lowbit.from_int8(lowbit.to_int8(values, peaks), peaks)
    assert (np.abs(back - values) <= peaks[:, None] / 127 * 0.50001 + 1e-44).all()
    assert np.array_equal(np.abs(back).max(axis=-1), peaks)


@given(groups)
def test_int4_is_within_half_a_step_and_stays_inside(values):
    low, high = values.min(axis=-1), values.max(axis=-1)
    back = lowbit.from_int4(lowbit.to_int4(values, low, high), low, high)
    room = (high.astype(float) - low) / 15 * 0.5 + np.abs(values).max(axis=-1) * 1e-6 + 1e-44
    assert (np.abs(back.astype(float) - values) <= room[:, None]).all()
    assert np.array_equal(back.max(axis=-1), high)
    assert np.array_equal(back.min(axis=-1), low)


@given(hnp.arrays(np.uint8, st.integers(0, 50), elements=st.integers(0, 15)))
def test_two_steps_in_a_byte_come_back(steps):
    pairs = lowbit.packed(steps)
    assert len(pairs) == (len(steps) + 1) // 2
    assert np.array_equal(lowbit.unpacked(pairs, len(steps)), steps)


def same(told, array):
    """Whether torch computed what numpy did, bit for bit, but for the sign of a zero."""
    return np.array_equal(told.numpy(), array)


@given(groups)
def test_torch_computes_the_same_numbers_of_8_bits(values):
    peaks = np.abs(values).max(axis=-1)
    levels, found = in_torch.to_int8(torch.from_numpy(values))
    assert same(found, peaks)
    assert same(levels, lowbit.to_int8(values, peaks))
    back = in_torch.from_int8(levels, found, torch.float32)
    assert same(back, lowbit.from_int8(levels.numpy(), peaks))


@given(groups)
def test_torchs_own_float8_is_the_same(values):
    peaks = np.abs(values).max(axis=-1)
    codes, found = in_torch.to_float8(torch.from_numpy(values))
    back = in_torch.from_float8(codes, found, torch.float32)
    assert same(back, lowbit.from_float8(lowbit.to_float8(values, peaks), peaks))


@given(groups)
def test_torch_computes_the_same_numbers_of_4_bits(values):
    low, high = values.min(axis=-1), values.max(axis=-1)
    pairs, *ends = in_torch.to_int4(torch.from_numpy(values))
    assert same(ends[0], low)
    assert same(ends[1], high)
    steps = lowbit.to_int4(values, low, high)
    assert same(pairs, lowbit.packed(steps))
    back = in_torch.from_int4(pairs, *ends, values.shape[1], torch.float32)
    assert same(back, lowbit.from_int4(steps, low, high))


@given(groups, st.integers(1, 31))
def test_torch_computes_the_same_levels(values, half):
    levels, peaks = plain.quantise(values, half)
    told, found = in_torch.quantise(torch.from_numpy(values), half)
    assert same(found, peaks)
    assert same(told, levels)
