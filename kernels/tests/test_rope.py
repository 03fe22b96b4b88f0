"""Keys are turned to other positions."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hexkv.blending.ports import SegmentRun
from hexkv.contracts.kit.cases import each
from hexkv.kernels.rope import reference, rotate
from hexkv.kernels.rotary import RotaryMap, Rotation, check_kind
from hexkv.ports import DType, InvalidRequest, KVLayout, LayoutMismatch

PAIRS = 6
FREQUENCIES = 10_000.0 ** -(torch.arange(PAIRS, dtype=torch.float64) / PAIRS)


def keys(*shape, dtype=torch.float32, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def as_a_model(raw, positions, interleaved):
    """What attention does to keys of known positions: the formula of the paper."""
    angles = positions.double()[:, None] * FREQUENCIES
    cosines, sines = angles.cos()[:, None], angles.sin()[:, None]
    rotated = raw.double().clone()
    if interleaved:
        x, y = raw.double()[..., 0 : 2 * PAIRS : 2], raw.double()[..., 1 : 2 * PAIRS : 2]
        rotated[..., 0 : 2 * PAIRS : 2] = x * cosines - y * sines
        rotated[..., 1 : 2 * PAIRS : 2] = x * sines + y * cosines
    else:
        x, y = raw.double()[..., :PAIRS], raw.double()[..., PAIRS : 2 * PAIRS]
        rotated[..., :PAIRS] = x * cosines - y * sines
        rotated[..., PAIRS : 2 * PAIRS] = x * sines + y * cosines
    return rotated


@given(st.integers(0, 5_000), st.integers(-5_000, 5_000), st.booleans())
def test_turned_keys_are_those_that_a_model_computes_at_the_other_position(at, offset, interleaved):
    raw = keys(7, 2, 2 * PAIRS + 3)
    positions = torch.arange(7) + at
    here = as_a_model(raw, positions, interleaved).float()
    there = as_a_model(raw, positions + offset, interleaved)
    turned = rotate(here, FREQUENCIES, offset, interleaved=interleaved)
    assert torch.allclose(turned.double(), there, atol=2e-6, rtol=2e-6)


@given(
    st.integers(-100_000, 100_000),
    st.booleans(),
    st.sampled_from([(torch.float32, 1e-6), (torch.bfloat16, 2**-7), (torch.float16, 2**-10)]),
    st.sampled_from([(0, 2), (3, 1), (5, 4)]),
)
def test_the_fast_way_is_a_rounding_from_the_reference(offset, interleaved, kind, shape):
    dtype, step = kind
    given_keys = keys(*shape, 2 * PAIRS + 1, dtype=dtype).transpose(0, 1)
    found = rotate(given_keys, FREQUENCIES, offset, interleaved=interleaved)
    wanted = reference(given_keys, FREQUENCIES, offset, interleaved=interleaved)
    assert found.dtype == dtype
    # A step is relative to the larger of the two products, not to their sum.
    assert (found.double() - wanted.double()).abs().le(8 * step).all()


@each("interleaved", [False, True])
def test_no_offset_changes_no_bit_and_nothing_behind_the_pairs_is_touched(interleaved):
    given_keys = keys(4, 2, 2 * PAIRS + 5)
    assert torch.equal(rotate(given_keys, FREQUENCIES, 0, interleaved=interleaved), given_keys)
    turned = rotate(given_keys, FREQUENCIES, 99, interleaved=interleaved)
    assert torch.equal(turned[..., 2 * PAIRS :], given_keys[..., 2 * PAIRS :])


def test_what_cannot_be_rotated_is_refused():
    with pytest.raises(InvalidRequest, match="do not fit"):
        rotate(keys(2, 2 * PAIRS - 1), FREQUENCIES, 1)
    with pytest.raises(InvalidRequest, match="uint8"):
        rotate(torch.zeros(2, 12, dtype=torch.uint8), FREQUENCIES, 1)
    for kind in ("dynamic", "longrope", "some day"):
        with pytest.raises(InvalidRequest, match=f"'{kind}' cannot be moved"):
            check_kind(kind)
    for kind in ("default", "linear", "llama3", "yarn"):
        check_kind(kind)
    for frequencies, plane in ((FREQUENCIES[None], 0), (FREQUENCIES / 0, 0), (FREQUENCIES, -1)):
        with pytest.raises(InvalidRequest):
            Rotation(frequencies, plane=plane)
    rotation = Rotation(FREQUENCIES, plane=1)
    with pytest.raises(InvalidRequest, match="not within 4 tokens"):
        RotaryMap([rotation]).rotate(0, [keys(4, 12), keys(4, 12)], [SegmentRun(2, 5)])
    latent = KVLayout.latent(DType.FLOAT32, layers=2, latent_width=40, rope_width=2 * PAIRS)
    RotaryMap.uniform(2, rotation).check(latent)
    RotaryMap([None, rotation]).check(latent)
    for wrong in (
        [rotation],
        [None, Rotation(FREQUENCIES, plane=2)],
        [Rotation(FREQUENCIES, plane=1, start=1)] * 2,
    ):
        with pytest.raises(LayoutMismatch):
            RotaryMap(wrong).check(latent)
