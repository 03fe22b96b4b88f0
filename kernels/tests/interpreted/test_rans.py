"""Triton codes the streams that numpy codes, and decodes whatever it is given as numpy does."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from depth import examples
from hexkv.kernels.coding import plain
from hexkv.kernels.coding.tables import CLASSES, HALVES, Tables, counted, tables
from hexkv.kernels.in_triton import rans

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SOME = settings(max_examples=examples(5))


def on_device(array):
    """Unsigned words as signed ones of the same bits; torch has few operations on the former."""
    kinds = {"uint16": np.int16, "uint32": np.int32}
    return torch.from_numpy(array.view(kinds.get(array.dtype.name, array.dtype))).to(DEVICE)


@st.composite
def coded(draw):
    half = draw(st.sampled_from(HALVES))
    found = tables(half)
    tokens, lanes = draw(st.integers(1, 7)), draw(st.integers(1, 150))
    random = np.random.default_rng(draw(st.integers(0, 1 << 32)))
    width = draw(st.sampled_from([0.01, 2.0, 100.0]))
    levels = np.clip(np.rint(random.normal(0, width, (tokens, lanes))), -half, half)
    classes = random.integers(0, CLASSES, lanes).astype(np.uint8)
    turns = random.integers(0, found.symbols, lanes).astype(np.uint8)
    return (levels + half).astype(np.uint8), classes, turns, found


def decoded(streams, classes, turns, found, values):
    words, lengths, states = streams
    into, ended = rans.decode(
        on_device(words),
        on_device(lengths.astype(np.int64)),
        on_device(states),
        on_device(classes),
        on_device(turns),
        on_device(found.slots),
        on_device(values)[None],
    )
    return into[0].cpu().numpy().view(values.dtype), bool(ended)


def values_for(symbols, found, kind):
    one = np.arange(len(symbols), dtype=kind)[:, None] * 64 + np.arange(found.symbols, dtype=kind)
    return np.tile(one, 2).astype(kind)


@SOME
@given(coded())
def test_streams_are_those_of_numpy(chunk):
    symbols, classes, turns, found = chunk
    words, lengths, states = rans.encode(
        *map(on_device, (symbols[None], classes, turns, found.packed))
    )
    wanted = plain.encode(*chunk)
    assert np.array_equal(words.cpu().numpy().view(np.uint16), wanted[0])
    assert np.array_equal(lengths.cpu().numpy(), wanted[1].astype(np.int64))
    assert np.array_equal(states.cpu().numpy().view(np.uint32), wanted[2])


@SOME
@given(coded(), st.sampled_from([np.uint16, np.uint32]))
def test_what_numpy_coded_comes_back(chunk, kind):
    symbols, classes, turns, found = chunk
    values = values_for(symbols, found, kind)
    into, ended = decoded(plain.encode(*chunk), classes, turns, found, values)
    assert ended
    assert np.array_equal(into, np.take_along_axis(values, symbols.astype(np.int64), 1))


@SOME
@given(coded(), st.sampled_from(["words", "states", "lengths", "noise"]), st.integers(0, 1 << 32))
def test_a_damaged_stream_ends_as_wrongly_as_in_numpy(chunk, what, seed):
    symbols, classes, turns, found = chunk
    words, lengths, states = (array.copy() for array in plain.encode(*chunk))
    random = np.random.default_rng(seed)
    if what == "words" and len(words):
        words[random.integers(len(words))] ^= 1 << random.integers(16)
    elif what == "lengths" and len(lengths) > 1 and lengths[0]:
        lengths[0] -= 1
        lengths[-1] += 1
    elif what == "noise":
        words = random.integers(0, 1 << 16, len(words), np.uint16)
    else:
        states = random.integers(0, 1 << 32, len(states), np.uint32)
    values = values_for(symbols, found, np.uint16)
    wanted = np.zeros(symbols.shape, np.uint16)
    right = plain.decode((words, lengths, states), classes, turns, found, values, wanted)
    into, ended = decoded((words, lengths, states), classes, turns, found, values)
    assert ended == right
    if right:
        assert np.array_equal(into, wanted)


@pytest.mark.parametrize("lanes", [1, 63, 64, 65, 128])
def test_a_group_may_be_short(lanes):
    found = tables(7)
    symbols = np.full((3, lanes), 9, np.uint8)
    classes, turns = np.full(lanes, 5, np.uint8), np.full(lanes, 2, np.uint8)
    values = values_for(symbols, found, np.uint16)
    streams = plain.encode(symbols, classes, turns, found)
    into, ended = decoded(streams, classes, turns, found, values)
    assert ended
    assert np.array_equal(into, np.repeat(values[:, 9:10], lanes, 1))


def test_the_planes_of_a_chunk_are_one_launch_both_ways():
    """Each plane's streams are those that it has alone, whatever its last group's width."""
    found, planes, tokens, channels = tables(7), 3, 5, 100
    random = np.random.default_rng(0)
    symbols = random.integers(0, found.symbols, (planes, tokens, channels), np.uint8)
    classes = random.integers(0, CLASSES, planes * channels).astype(np.uint8)
    turns = random.integers(0, found.symbols, planes * channels).astype(np.uint8)
    parts = [
        plain.encode(
            plane, *(array[at * channels :][:channels] for array in (classes, turns)), found
        )
        for at, plane in enumerate(symbols)
    ]
    streams = [np.concatenate(arrays) for arrays in zip(*parts, strict=True)]
    made = rans.encode(*map(on_device, (symbols, classes, turns, found.packed)))
    for one, other in zip(made, streams, strict=True):
        assert np.array_equal(one.cpu().numpy(), other.astype(one.cpu().numpy().dtype))
    values = random.integers(0, 1 << 16, (planes, tokens, 2 * found.symbols)).astype(np.uint16)
    values[..., found.symbols :] = values[..., : found.symbols]
    words, lengths, states = streams
    into, ended = rans.decode(
        on_device(words),
        on_device(lengths.astype(np.int64)),
        *map(on_device, (states, classes, turns, found.slots, values)),
    )
    assert ended
    wanted = np.take_along_axis(values, symbols.astype(np.int64), 2)
    assert np.array_equal(into.cpu().numpy().view(np.uint16), wanted)


@SOME
@given(st.integers(1, 8), st.integers(2, 256), st.integers(1, 150), st.integers(0, 1 << 32))
def test_tables_that_were_counted_serve_as_well(many, width, lanes, seed):
    """Those of the lossless serde: up to 256 symbols, lanes that share tables, no turns."""
    random = np.random.default_rng(seed)
    classes = random.integers(0, many, lanes).astype(np.uint8)
    symbols = random.geometric(0.2, (6, lanes)).clip(1, width).astype(np.uint8) - np.uint8(1)
    seen = np.zeros((many, width), np.int64)
    np.add.at(seen, (np.broadcast_to(classes, symbols.shape), symbols), 1)
    found, turns = Tables(counted(seen)), np.zeros(lanes, np.uint8)
    values = np.tile(random.integers(0, 1 << 16, width).astype(np.uint16), (6, 1))
    streams = plain.encode(symbols, classes, turns, found)
    made = rans.encode(*map(on_device, (symbols[None], classes, turns, found.packed)))
    assert np.array_equal(made[0].cpu().numpy().view(np.uint16), streams[0])
    into, ended = decoded(streams, classes, turns, found, values)
    assert ended
    assert np.array_equal(into, np.take_along_axis(values, symbols.astype(np.int64), 1))
