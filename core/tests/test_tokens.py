from __future__ import annotations

import struct
import sys
from array import array
from collections import deque
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hexkv.contracts.kit.cases import each
from hexkv.core.keys.tokens import pack
from hexkv.ports import InvalidTokens

TOP = 2**32 - 1
TOKENS = st.lists(st.integers(0, TOP), max_size=40)
DTYPES = ["u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8"]


def expected(tokens):
    return struct.pack(f"<{len(tokens)}I", *tokens)


class Tensor:
    """As much of a torch tensor as packing may touch, on a device of its own."""

    def __init__(self, values, *, with_numpy=True):
        self.values = values
        self.with_numpy = with_numpy
        self.steps = []

    def detach(self):
        self.steps.append("detach")
        return self

    def cpu(self):
        self.steps.append("cpu")
        return self

    def numpy(self):
        assert self.steps == ["detach", "cpu"]
        if not self.with_numpy:
            raise RuntimeError("Numpy is not available")
        return self.values

    def tolist(self):
        return self.values.tolist()


class Window(Sequence):
    """A sequence that is no list and no buffer."""

    def __init__(self, items):
        self.items = items

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        return self.items[index]


@given(TOKENS)
def test_any_sequence_of_integers_packs_to_little_endian_uint32(tokens):
    for given_as in (tokens, tuple(tokens), deque(tokens), Window(tokens)):
        packed = pack(given_as)
        assert packed == expected(tokens)
        assert (packed.format, packed.ndim, packed.readonly) == ("B", 1, True)


@given(st.data(), st.sampled_from(DTYPES), st.sampled_from("<>"), st.sampled_from([1, 2, -1]))
def test_any_integer_buffer_packs_whatever_its_width_sign_order_and_stride(
    data, dtype, order, stride
):
    top = min(TOP, int(np.iinfo(dtype).max))
    tokens = data.draw(st.lists(st.integers(0, top), max_size=40))
    buffer = np.array(tokens, dtype=order + dtype)[::stride]
    packed = pack(buffer)
    assert packed == expected(tokens[::stride])
    assert (packed.format, packed.ndim, packed.readonly) == ("B", 1, True)


@each("code", list("BHILQbhilq"))
def test_arrays_of_every_integer_type_pack(code):
    tokens = [0, 1, 127, 5]
    assert pack(array(code, tokens)) == expected(tokens)
    assert pack(memoryview(array(code, tokens))[::2]) == expected(tokens[::2])


def test_only_the_elements_of_the_view_itself_are_tokens():
    numbers = np.arange(10)
    hidden = np.ma.array([1, -1, 2**40, 2], mask=[0, 1, 1, 0])
    assert pack(memoryview(numbers)[::3]) == expected([0, 3, 6, 9])
    assert pack(numbers.view(np.recarray)[2:4]) == expected([2, 3])
    with pytest.raises(InvalidTokens, match="token -1 at position 1"):
        pack(hidden)


def test_bytes_are_tokens_below_256():
    assert pack(b"\x00\x7f\xff") == expected([0, 127, 255])


def test_ranges_and_numpy_scalars_are_integers():
    assert pack(range(5)) == expected(range(5))
    assert pack([np.int64(7), np.uint8(3)]) == expected([7, 3])


@each(
    "empty", [[], (), array("q"), np.array([], np.int64), np.array([], np.uint32), b"", Window([])]
)
def test_no_tokens_are_no_bytes(empty):
    assert pack(empty) == b""


@pytest.mark.skipif(sys.byteorder == "big", reason="such a host has to swap, hence to copy")
@each("dtype", [np.uint32, np.int32])
def test_a_contiguous_buffer_of_32_bit_tokens_is_not_copied(dtype):
    tokens = np.array([1, 2, 3], dtype)
    packed = pack(tokens)
    tokens[1] = 9
    assert packed == expected([1, 9, 3])


def test_a_buffer_of_another_width_is_copied():
    tokens = np.array([1, 2, 3])
    packed = pack(tokens)
    tokens[1] = 9
    assert packed == expected([1, 2, 3])


@each("with_numpy", [True, False])
def test_a_tensor_is_copied_to_the_host_first(with_numpy):
    tensor = Tensor(np.array([5, 6, TOP]), with_numpy=with_numpy)
    assert pack(tensor) == expected([5, 6, TOP])
    assert tensor.steps == ["detach", "cpu"]


def test_torch_tensors_pack():
    torch = pytest.importorskip("torch")
    tokens = torch.arange(10)
    for given_as in (tokens, tokens.to(torch.int32), tokens[::3], tokens.to(torch.uint8)):
        assert pack(given_as) == expected(given_as.tolist())
    for refused in (tokens.float(), tokens.bfloat16(), tokens > 3, tokens.reshape(2, 5), -tokens):
        with pytest.raises(InvalidTokens):
            pack(refused)


@each("wrong", [-1, TOP + 1, -(2**63), 2**63, 2**64])
def test_a_sequence_with_a_token_outside_uint32_is_refused_and_the_token_named(wrong):
    with pytest.raises(InvalidTokens, match=r"at position 2 is not in \[0, 2\*\*32\)"):
        pack([1, 2, wrong, 3])


def test_a_token_too_long_to_print_is_refused_all_the_same():
    with pytest.raises(InvalidTokens, match="token of 16610 bits at position 0"):
        pack([10**5000])


@given(st.data(), st.sampled_from(["i1", "i2", "i4", "i8", "u8"]), st.sampled_from("<>"))
def test_a_buffer_with_a_token_outside_uint32_is_refused_and_the_token_named(data, dtype, order):
    info = np.iinfo(dtype)
    below = st.integers(int(info.min), -1) if info.min < 0 else st.nothing()
    above = st.integers(TOP + 1, int(info.max)) if info.max > TOP else st.nothing()
    wrong = data.draw(below | above)
    place = data.draw(st.integers(0, 9))
    tokens = np.arange(10, dtype=order + dtype)
    tokens[place] = wrong
    with pytest.raises(InvalidTokens, match=rf"^token {wrong} at position {place} is not in"):
        pack(tokens)


@each(
    ("wrong", "said"),
    [
        ([1, 2.0], "position 1 is a float"),
        ([[1, 2], [3]], "position 0 is a list"),
        ([1, None], "position 1 is a NoneType"),
        (["a"], "position 0 is a str"),
        ("abc", "position 0 is a str"),
        ("", "str"),
        ([True, False], "mask"),
        ({1, 2}, "a set is not"),
        ({1: 2}, "a dict is not"),
        (iter([1]), "iterator is not"),
        (7, "a int is not"),
        (None, "a NoneType is not"),
        (np.array([1.0]), "format 'd'"),
        (np.array([True]), r"format '\?'"),
        (np.array([1j]), "format"),
        (np.array([(1, 2)], "i4,i4"), "format"),
        (np.array(["2026-01-01"], "M8[s]"), "cannot be read"),
        (np.ones((2, 2), np.int64), "one dimension, not 2"),
        (np.array(5), "one dimension, not 0"),
        (memoryview(b"ab").cast("c"), "format 'c'"),
        (Tensor(np.array([True]), with_numpy=False), "mask"),
        (Tensor(np.array(5), with_numpy=False), "one dimension, not 0"),
        (Tensor(np.array([[5]]), with_numpy=False), "position 0 is a list"),
    ],
)
def test_what_is_no_sequence_of_tokens_is_refused_with_the_reason(wrong, said):
    with pytest.raises(InvalidTokens, match=said):
        pack(wrong)


@given(st.lists(st.one_of(st.integers(), st.floats(), st.text(), st.none()), max_size=6))
def test_a_list_is_packed_or_refused_and_nothing_else(items):
    good = all(isinstance(item, int) and 0 <= item <= TOP for item in items)
    if good:
        assert pack(items) == expected(items)
    else:
        with pytest.raises(InvalidTokens):
            pack(items)
