"""Compiled code, numpy and torch code the same bytes, and no stream leads anybody astray."""

import hashlib

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from depth import examples
from hexkv.contracts.kit.cases import each
from hexkv.kernels.coding import bits, compiled, in_torch, plain
from hexkv.kernels.coding.tables import CLASSES, HALVES, TOTAL, Tables, counted, tables
from hexkv.ports import DType

CODERS = (plain, compiled)

GOLDEN = {
    3: "5095fc58f26ab55e",
    7: "1c76ec506bb30e79",
    14: "07b1f8fc81934365",
    31: "699b37062c047777",
}


def equal(left, right):
    """Whether two arrays have the same bytes, without showing them."""
    a, b = np.asarray(left), np.asarray(right)
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


@st.composite
def coded(draw):
    """Symbols of any kind, lanes of any class, turns of any size."""
    half = draw(st.sampled_from(HALVES))
    found = tables(half)
    tokens, lanes = draw(st.integers(1, 9)), draw(st.integers(1, 150))
    random = np.random.default_rng(draw(st.integers(0, 1 << 32)))
    width = draw(st.sampled_from([0.01, 1.0, 4.0, 100.0]))
    levels = np.clip(np.rint(random.normal(0, width, (tokens, lanes))), -half, half)
    symbols = (levels + half).astype(np.uint8)
    classes = random.integers(0, CLASSES, lanes).astype(np.uint8)
    turns = random.integers(0, found.symbols, lanes).astype(np.uint8)
    return symbols, classes, turns, found


def values_for(symbols, found, kind=np.uint16):
    """Of which each says its token and its symbol."""
    one = np.arange(len(symbols), dtype=kind)[:, None] * 64 + np.arange(found.symbols, dtype=kind)
    return np.tile(one, 2).astype(kind)


@given(coded())
def test_numpy_and_compiled_code_give_the_same_streams(chunk):
    for left, right in zip(plain.encode(*chunk), compiled.encode(*chunk), strict=True):
        assert equal(left, right)


@given(coded())
def test_torch_gives_the_same_streams(chunk):
    *arrays, found = chunk
    arrays += [found.counts, found.starts]
    streams = in_torch.encode(*(torch.from_numpy(a.astype(np.int64)) for a in arrays))
    for left, right in zip(streams, plain.encode(*chunk), strict=True):
        assert equal(left.numpy().astype(right.dtype), right)


@given(coded(), st.sampled_from([np.uint16, np.uint32]))
def test_what_was_coded_comes_back_from_everybody(chunk, kind):
    symbols, classes, turns, found = chunk
    streams = compiled.encode(*chunk)
    values = values_for(symbols, found, kind)
    wanted = np.take_along_axis(values, symbols.astype(np.int64), 1)
    for coder in (plain, compiled):
        into = np.zeros(symbols.shape, kind)
        assert coder.decode(streams, classes, turns, found, values, into)
        assert equal(into, wanted)
    arrays = (*streams, classes, turns, found.slots, values)
    into, ended = in_torch.decode(*(torch.from_numpy(a.astype(np.int64)) for a in arrays))
    assert ended
    assert equal(into.numpy().astype(kind), wanted)


@settings(max_examples=examples(60))
@given(coded(), st.data())
def test_a_damaged_stream_is_noticed_or_gives_values_and_nothing_else(chunk, data):
    symbols, classes, turns, found = chunk
    words, lengths, states = (array.copy() for array in compiled.encode(*chunk))
    random = np.random.default_rng(data.draw(st.integers(0, 1 << 32)))
    match data.draw(st.sampled_from(["words", "states", "lengths", "fewer", "noise"])):
        case "words" if len(words):
            words[random.integers(len(words))] ^= 1 << random.integers(16)
        case "states":
            states[random.integers(len(states))] = random.integers(1 << 32)
        case "lengths" if len(lengths) > 1 and lengths[0]:
            lengths[0] -= 1
            lengths[-1] += 1
        case "fewer":
            words, lengths = words[:0], lengths * 0
        case _:
            states = random.integers(0, 1 << 32, len(states), np.uint32)
            words = random.integers(0, 1 << 16, len(words), np.uint16)
    values = values_for(symbols, found)
    ends = [
        coder.decode((words, lengths, states), classes, turns, found, values, into)
        for coder, into in ((c, np.zeros(symbols.shape, np.uint16)) for c in (plain, compiled))
    ]
    assert ends[0] == ends[1]


@given(
    hnp.arrays(
        np.float32,
        hnp.array_shapes(min_dims=2, max_dims=2, max_side=40),
        elements=st.floats(width=32),
    ),
    st.sampled_from(HALVES),
)
def test_numpy_and_compiled_code_quantise_alike(values, half):
    left, right = plain.quantise(values, half), compiled.quantise(values, half)
    assert (left is None) == (right is None) == (not np.isfinite(values).all())
    if left is not None and right is not None:
        assert equal(left[0], right[0])
        assert equal(left[1], right[1])
        assert left[0].max() <= 2 * half
        for one, other in zip(plain.moments(left[0]), compiled.moments(left[0]), strict=True):
            assert equal(one, other)


@given(
    hnp.arrays(np.uint8, hnp.array_shapes(min_dims=2, max_dims=2, max_side=90)),
    st.integers(1, 9),
    st.integers(0, 1 << 32),
)
def test_numpy_and_compiled_code_count_alike(symbols, many, seed):
    seen = plain.histograms(symbols)
    random = np.random.default_rng(seed)
    classes = random.integers(0, many, len(seen)).astype(np.uint8)
    sums = plain.by_class(seen, classes, many)
    assert equal(sums, compiled.by_class(seen, classes, many))
    assert (sums.sum(axis=0) == seen.sum(axis=0)).all()
    weights = random.normal(size=(many, seen.shape[1]))
    assert equal(plain.weighed(seen, weights), compiled.weighed(seen, weights))
    assert np.allclose(plain.weighed(seen, weights), weights @ seen.T)
    assert equal(seen, compiled.histograms(symbols))
    assert (seen.sum(axis=1) == len(symbols)).all()
    for lane, symbol in zip(range(symbols.shape[1]), symbols[0], strict=True):
        assert seen[lane, symbol] == (symbols[:, lane] == symbol).sum()


@given(
    hnp.arrays(
        np.int64,
        st.tuples(st.integers(1, 5), st.integers(2, 256)),
        elements=st.sampled_from([0, 0, 1, 2, 1000, 1 << 40]),
    )
)
def test_tables_that_were_counted_code_what_was_seen(seen):
    counts = counted(seen)
    assert equal(counts, compiled.counted(seen))
    assert (counts.sum(axis=1) == TOTAL).all()
    assert counts.max() < TOTAL
    assert ((counts > 0) | (seen == 0)).all()
    found = Tables(counts)
    lanes, width = seen.shape
    symbols = np.stack([np.resize(np.flatnonzero(row), 9) for row in counts], axis=1)
    classes, turns = np.arange(lanes, dtype=np.uint8), np.zeros(lanes, np.uint8)
    streams = compiled.encode(symbols.astype(np.uint8), classes, turns, found)
    into = np.empty(symbols.shape, np.uint16)
    values = np.tile(np.arange(width, dtype=np.uint16), (9, 1))
    for coder in (plain, compiled):
        assert coder.decode(streams, classes, turns, found, values, into)
        assert np.array_equal(into, symbols)


@each("half", HALVES)
def test_tables_are_the_same_on_every_machine(half):
    """Another table scrambles every chunk that was stored: then the format needs a new number."""
    digest = hashlib.sha256(tables(half).counts.astype("<u4").tobytes()).hexdigest()
    assert digest[:16] == GOLDEN[half]


@each("half", HALVES)
def test_tables_say_of_every_symbol_that_it_is_possible(half):
    found = tables(half)
    assert found.counts.shape == (CLASSES, 2 * half + 1)
    assert found.counts.min() >= 1
    assert set(found.counts.sum(axis=1)) == {TOTAL}
    assert equal(found.counts, found.counts[:, ::-1])
    assert (np.diff(found.spreads) > 0).all()


@given(
    st.sampled_from([DType.BFLOAT16, DType.FLOAT32, DType.FLOAT16, DType.FLOAT8_E4M3]),
    st.integers(1, 80),
    st.integers(0, 99),
    st.sampled_from([1.0, 0.0, 1e30]),
    st.booleans(),
)
def test_bits_are_taken_apart_alike_and_joined_again(dtype, count, seed, widest, shifted):
    """In whole eighths or not, of any exponents, and also where memory is not aligned."""
    random = np.random.default_rng(seed)
    floats = random.normal(0, 1, count) * widest ** random.random(count)
    taken = (floats.astype(np.float32).view(np.uint32) >> 8 * (4 - dtype.itemsize)).astype("<u4")
    data = b"".join(int(one).to_bytes(4, "little")[: dtype.itemsize] for one in taken)
    elements = bits.words(memoryview(bytes(shifted) + data)[shifted:], dtype)
    apart = [(coder.symbols(elements, dtype), coder.lower(elements, dtype)) for coder in CODERS]
    (upper, lower), (same, others) = apart
    assert equal(np.concatenate(lower or [[]]), np.concatenate(others or [[]]))
    assert (upper is None) == (same is None)
    if upper is None or same is None:
        return
    assert all(map(equal, upper, same))
    high = upper[1][upper[0]].astype(elements.dtype)
    for coder in CODERS:
        whole = high << (8 * dtype.itemsize - bits.UPPER.get(dtype, 8))
        coder.join(whole, lower, dtype)
        assert np.array_equal(whole, elements)


def test_one_row_of_values_is_that_of_all_tokens():
    random = np.random.default_rng(0)
    found = tables(7)
    symbols = random.integers(0, 15, (5, 70)).astype(np.uint8)
    none = np.zeros(70, np.uint8)
    values = np.arange(15, dtype=np.uint16)[None] + 100
    for coder in CODERS:
        into = np.empty(symbols.shape, np.uint16)
        assert coder.decode(
            coder.encode(symbols, none, none, found), none, none, found, values, into
        )
        assert np.array_equal(into, symbols + 100)


@each("half", HALVES)
def test_slots_are_the_counts_from_the_decoders_side(half):
    found = tables(half)
    for row in (0, 13, CLASSES - 1):
        slots = found.slots[row * TOTAL : (row + 1) * TOTAL]
        symbols = slots & 0xFF
        assert equal(np.bincount(symbols), found.counts[row].astype(np.int64))
        assert equal(slots >> 20, found.counts[row][symbols])
        places = np.arange(TOTAL, dtype=np.uint32) - found.starts[row][symbols]
        assert equal(slots >> 8 & (TOTAL - 1), places)


def test_another_alphabet_has_no_tables():
    for half in (0, 15, -3, 255):
        with pytest.raises(ValueError, match="no alphabet"):
            tables(half)


@each("width", [1.0, 2.5, 5.0])
def test_coding_takes_hardly_more_than_the_entropy(width):
    """Of Gaussians whose width and mean nobody was told, and means between two levels."""
    random = np.random.default_rng(0)
    tokens, lanes, half = 256, 512, 14
    means = random.uniform(-3, 3, lanes)
    symbols = np.rint(random.normal(means, width, (tokens, lanes))).clip(-half, half) + half
    symbols = symbols.astype(np.uint8)
    sums, squares = compiled.moments(symbols)
    classes, turns = plain.fitting(sums, squares, tokens, tables(half))
    words, _, _ = compiled.encode(symbols, classes, turns, tables(half))
    shares = np.array([np.bincount(lane, minlength=29) for lane in symbols.T]) / tokens
    entropy = -(shares * np.log2(shares, where=shares > 0, out=np.zeros_like(shares))).sum(1).mean()
    # What a lane's own counts know beyond its width is noise of 256 tokens.
    assert 16 * len(words) / symbols.size < 1.03 * entropy + 0.08
