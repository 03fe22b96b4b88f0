"""Coders on the KV of a chunk, beside the device's memory and the bus that brings chunks raw."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch

from benchmarks.gpu.timing import Rate, Size, on_gpu, rate
from hexkv.kernels.coding import plain
from hexkv.kernels.coding.tables import Tables, counted, tables
from hexkv.kernels.in_triton import lowbit, rans, rope

HALF = 14
"""29 levels, those of the serde `cachegen-fine` in later layers."""


class Limits:
    """What both sides of each comparison share."""

    def __init__(self, device: torch.device, size: Size) -> None:
        self.device, self.size = device, size
        self.bytes = size.layout.chunk_bytes(size.chunk)
        self._host = torch.empty(self.bytes, dtype=torch.uint8, pin_memory=on_gpu(device))
        self._there = torch.empty(self.bytes, dtype=torch.uint8, device=device)
        self._other = torch.empty_like(self._there)

    def rates(self, name: str, run: Callable[[], object]) -> Iterator[Rate]:
        """*run*, of one chunk, beside a copy in memory, and beside the bus, which brings it raw."""
        yield rate(
            self.device,
            self.size.repeats,
            name,
            run,
            ("a copy in the device's memory", lambda: self._other.copy_(self._there)),
            size=self.bytes,
        )
        yield rate(
            self.device,
            self.size.repeats,
            name,
            run,
            ("the bus", lambda: self._there.copy_(self._host, non_blocking=True)),
            size=self.bytes,
            goal=1.0,
        )


def coding(device: torch.device, size: Size) -> Iterator[Rate]:
    """Each coder in turn.

    Raises:
        AssertionError: one gives other bytes than its reference, so it is not measured.
    """
    limits = Limits(device, size)
    yield from cachegen(device, size, limits)
    yield from exponents(device, size, limits)
    yield from numbers(device, size, limits)


def cachegen(device: torch.device, size: Size, limits: Limits) -> Iterator[Rate]:
    planes, channels = 2 * size.layers, size.heads * size.width
    found = tables(HALF)
    random = np.random.default_rng(0)
    levels = np.rint(random.normal(0, 4, (planes, size.chunk, channels))).clip(-HALF, HALF)
    symbols = (levels + HALF).astype(np.uint8)
    fitted = [plain.fitting(*plain.moments(p), size.chunk, found) for p in symbols]
    classes, turns = (np.concatenate(arrays) for arrays in zip(*fitted, strict=True))
    peaks = torch.rand(planes, size.chunk, 1, device=device) + 0.5
    each = (torch.arange(found.symbols, device=device) - HALF) / HALF
    values = (peaks * each.repeat(2)).to(torch.bfloat16)
    given = [_bits(a, device) for a in (symbols, classes, turns, found.packed)]
    words, lengths, states = rans.encode(*given)
    _check_streams(symbols[0], classes[:channels], turns[:channels], found, words, lengths)
    arguments = (words, lengths, states, *given[1:3], _bits(found.slots, device), values)
    into, ended = rans.decode(*arguments)
    wanted = torch.gather(values, 2, given[0].long())
    assert bool(ended), "a stream did not end as it should"
    assert torch.equal(into, wanted), "decoded KV differs"
    flat = into.view(-1, channels)
    yield from limits.rates("CacheGen quantise", lambda: lowbit.quantise(flat, HALF))
    yield from limits.rates("CacheGen rANS encode", lambda: rans.encode(*given))
    yield from limits.rates("CacheGen rANS decode and dequantise", lambda: rans.decode(*arguments))


def exponents(device: torch.device, size: Size, limits: Limits) -> Iterator[Rate]:
    """The entropy coder of the lossless serde: signs and exponents, by one counted table."""
    planes, channels = 2 * size.layers, size.heads * size.width
    drawn = torch.randn(planes, size.chunk, channels).to(torch.bfloat16).view(torch.int16)
    upper = (drawn.numpy().view(np.uint16) >> 7).astype(np.uint16)
    meanings, symbols = np.unique(upper, return_inverse=True)
    symbols = symbols.reshape(upper.shape).astype(np.uint8)
    found = Tables(counted(np.bincount(symbols.ravel(), minlength=len(meanings))[None]))
    lanes = np.zeros(planes * channels, np.uint8)
    given = [_bits(a, device) for a in (symbols, lanes, lanes, found.packed)]
    words, lengths, states = rans.encode(*given)
    _check_streams(symbols[0], lanes[:channels], lanes[:channels], found, words, lengths)
    each = np.tile(np.tile(meanings << 7, 2), (planes, size.chunk, 1)).astype(np.uint16)
    values = _bits(each, device)
    arguments = (words, lengths, states, *given[1:3], _bits(found.slots, device), values)
    into, ended = rans.decode(*arguments)
    assert bool(ended), "a stream did not end as it should"
    assert np.array_equal(into.cpu().numpy().view(np.uint16) >> 7, upper), "decoded bits differ"
    yield from limits.rates("lossless rANS encode", lambda: rans.encode(*given))
    yield from limits.rates("lossless rANS decode", lambda: rans.decode(*arguments))


def numbers(device: torch.device, size: Size, limits: Limits) -> Iterator[Rate]:
    """Element by element."""
    rows = 2 * size.layers * size.chunk * size.heads
    keys = torch.randn(rows, size.width, device=device).to(torch.bfloat16)
    angles = torch.arange(size.width // 2, dtype=torch.float64) / 7
    cosines, sines = angles.cos().float().to(device), angles.sin().float().to(device)
    kind = keys.dtype
    int8, fp8, int4 = lowbit.to_int8(keys), lowbit.to_float8(keys), lowbit.to_int4(keys)
    for name, run in (
        ("RoPE by an offset", lambda: rope.rotate(keys, cosines, sines, interleaved=False)),
        ("int8 quantise", lambda: lowbit.to_int8(keys)),
        ("int8 dequantise", lambda: lowbit.from_int8(*int8, kind)),
        ("fp8 quantise", lambda: lowbit.to_float8(keys)),
        ("fp8 dequantise", lambda: lowbit.from_float8(*fp8, kind)),
        ("int4 quantise", lambda: lowbit.to_int4(keys)),
        ("int4 dequantise", lambda: lowbit.from_int4(*int4, size.width, kind)),
    ):
        yield from limits.rates(name, run)


def _check_streams(
    symbols: np.ndarray,
    classes: np.ndarray,
    turns: np.ndarray,
    found: Tables,
    words: torch.Tensor,
    lengths: torch.Tensor,
) -> None:
    wanted = plain.encode(symbols, classes, turns, found)[0]
    made = words[: int(lengths[: -(-symbols.shape[1] // plain.GROUP)].sum())]
    assert np.array_equal(made.cpu().numpy().view(np.uint16), wanted), "streams differ from numpy's"


def _bits(array: np.ndarray, device: torch.device) -> torch.Tensor:
    """An array on the device; unsigned words as signed ones of the same bits."""
    signed = {"uint16": np.int16, "uint32": np.int32}.get(array.dtype.name, array.dtype)
    return torch.from_numpy(array.view(signed)).to(device)
