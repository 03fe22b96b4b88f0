"""What is measured, on tensors of one device. On the CPU it runs, and its numbers mean nothing."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch

from hexkv.adapters.cuda.pinned import PinnedMemory
from hexkv.adapters.cuda.streams import CudaKV
from hexkv.kernels import PagedKV
from hexkv.kernels.coding import plain
from hexkv.kernels.coding.tables import Tables, tables
from hexkv.kernels.in_triton import lowbit, rans, rope
from hexkv.plugins.clock import SystemClock
from hexkv.ports import Deadline, DeviceKV, DType, KVLayout, Span, Transfer

HALF = 14
"""29 levels, those of the serde `cachegen`."""


@dataclass(frozen=True, slots=True)
class Size:
    """How much is moved: the KV of a model, and how many chunks of it."""

    layers: int = 32
    heads: int = 8
    width: int = 128
    block: int = 16
    chunk: int = 256
    chunks: int = 16
    repeats: int = 20

    @property
    def layout(self) -> KVLayout:
        return KVLayout.attention(
            DType.BFLOAT16, layers=self.layers, heads=self.heads, key_width=self.width
        )


@dataclass(frozen=True, slots=True)
class Rate:
    """One path beside its limit. GB are 10**9 bytes of bfloat16."""

    name: str
    limit: str
    gb_per_second: float
    limit_gb_per_second: float
    goal: float

    @property
    def share(self) -> float:
        return self.gb_per_second / self.limit_gb_per_second


def rates(device: torch.device, size: Size) -> Iterator[Rate]:
    """Everything, one after the other.

    Raises:
        AssertionError: a path gave other bytes than the reference, so it is not measured.
    """
    yield from paged(device, size)
    bus = _bus(device, size)
    yield from coded(device, size, bus)
    yield from numbers(device, size)


def paged(device: torch.device, size: Size) -> Iterator[Rate]:
    """Chunks between pages and pinned memory, beside one copy of as many bytes."""
    layout, tokens = size.layout, size.chunk * size.chunks
    blocks = 2 * tokens // size.block
    shape = (blocks, size.block, size.heads, size.width)
    pages = [
        [torch.randn(shape, device=device).to(torch.bfloat16) for _ in planes]
        for planes in layout.planes
    ]
    order = torch.randperm(blocks)[: tokens // size.block]
    slots = (order[:, None] * size.block + torch.arange(size.block)).flatten()
    bytes_ = layout.chunk_bytes(tokens)
    region = (PinnedMemory.near(device.index or 0) if _gpu(device) else PinnedMemory()).allocate(
        bytes_
    )
    one = layout.chunk_bytes(size.chunk)
    spans = [
        Span(at * size.chunk, (at + 1) * size.chunk, region.buffer[at * one : (at + 1) * one])
        for at in range(size.chunks)
    ]
    host = torch.frombuffer(region.buffer[:bytes_], dtype=torch.uint8)
    assert not _gpu(device) or host.is_pinned(), "torch does not know that the memory is pinned"
    there = torch.empty(bytes_, dtype=torch.uint8, device=device)
    for way, direct in (("", False), (", by the kernel itself", True)):
        window = _window(device, layout, pages, slots, direct=direct)
        _check_window(window, pages, slots, spans, host)
        for name, move, copy in (
            ("gather", window.gather, lambda: host.copy_(there, non_blocking=True)),
            ("scatter", window.scatter, lambda: there.copy_(host, non_blocking=True)),
        ):
            mine, limit = _alternate(
                device, size.repeats, lambda move=move: _done(move, spans), copy
            )
            yield Rate(
                f"paged {name}{way}, {size.chunks} chunks of {one >> 20} MiB",
                "one copy from or to pinned memory",
                bytes_ / mine / 1e9,
                bytes_ / limit / 1e9,
                0.0 if direct else 0.9,
            )


def _window(
    device: torch.device,
    layout: KVLayout,
    pages: list[list[torch.Tensor]],
    slots: torch.Tensor,
    *,
    direct: bool,
) -> DeviceKV:
    if _gpu(device):
        return CudaKV(device, direct=direct).paged(layout, pages, slots)
    # The CPU would take torch's way, and nothing of what a GPU does would be tried.
    return PagedKV(layout, pages, slots, fused=True, direct=direct)


def _done(move: Callable[[list[Span]], Transfer], spans: list[Span]) -> None:
    done = move(spans).wait(Deadline.after(SystemClock(), 60.0))
    assert done, "a copy was not done within a minute"


def _check_window(
    window: DeviceKV,
    pages: list[list[torch.Tensor]],
    slots: torch.Tensor,
    spans: list[Span],
    host: torch.Tensor,
) -> None:
    """There and back again, each time over other bytes than it should leave."""
    host.zero_()
    _done(window.gather, spans)
    _check_pages(pages, slots, spans)
    for planes in pages:
        for page in planes:
            page.add_(1)
    _done(window.scatter, spans)
    _check_pages(pages, slots, spans)


def coded(device: torch.device, size: Size, bus: float) -> Iterator[Rate]:
    """CacheGen's coder on the KV of one chunk, beside the bus that would bring it raw."""
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
    bytes_ = into.numel() * into.element_size()
    flat = into.view(-1, channels)
    for name, run in (
        ("quantise", lambda: lowbit.quantise(flat, HALF)),
        ("encode", lambda: rans.encode(*given)),
        ("decode and dequantise", lambda: rans.decode(*arguments)),
    ):
        seconds, _ = _alternate(device, size.repeats, run, None)
        yield Rate(
            f"CacheGen {name}, a chunk of {bytes_ >> 20} MiB",
            "the bus, bringing the chunk raw",
            bytes_ / seconds / 1e9,
            bus,
            1.0 if name.startswith("decode") else 0.0,
        )


def numbers(device: torch.device, size: Size) -> Iterator[Rate]:
    """Element by element, beside a copy within the GPU's memory."""
    rows = size.layers * size.chunk * size.heads
    keys = torch.randn(rows, size.width, device=device).to(torch.bfloat16)
    other = torch.empty_like(keys)
    angles = torch.arange(size.width // 2, dtype=torch.float64) / 7
    cosines, sines = angles.cos().float().to(device), angles.sin().float().to(device)
    kind = keys.dtype
    int8, fp8, int4 = lowbit.to_int8(keys), lowbit.to_float8(keys), lowbit.to_int4(keys)
    bytes_ = keys.numel() * keys.element_size()
    for name, run in (
        ("RoPE by an offset", lambda: rope.rotate(keys, cosines, sines, interleaved=False)),
        ("int8 quantise", lambda: lowbit.to_int8(keys)),
        ("int8 dequantise", lambda: lowbit.from_int8(*int8, kind)),
        ("fp8 quantise", lambda: lowbit.to_float8(keys)),
        ("fp8 dequantise", lambda: lowbit.from_float8(*fp8, kind)),
        ("int4 quantise", lambda: lowbit.to_int4(keys)),
        ("int4 dequantise", lambda: lowbit.from_int4(*int4, size.width, kind)),
    ):
        mine, limit = _alternate(device, size.repeats, run, lambda: other.copy_(keys))
        yield Rate(
            name, "a copy in the device's memory", bytes_ / mine / 1e9, bytes_ / limit / 1e9, 0.0
        )


def _bus(device: torch.device, size: Size) -> float:
    """GB/s of one large copy from pinned memory."""
    bytes_ = size.layout.chunk_bytes(size.chunk * size.chunks)
    host = torch.empty(bytes_, dtype=torch.uint8, pin_memory=_gpu(device))
    there = torch.empty(bytes_, dtype=torch.uint8, device=device)
    seconds, _ = _alternate(
        device, size.repeats, lambda: there.copy_(host, non_blocking=True), None
    )
    return bytes_ / seconds / 1e9


def _alternate(
    device: torch.device,
    repeats: int,
    path: Callable[[], object],
    limit: Callable[[], object] | None,
) -> tuple[float, float]:
    """Seconds of either, the median of *repeats*, one after the other so that both see the same."""
    took: tuple[list[float], list[float]] = ([], [])
    for _ in range(repeats + 1):
        for run, times in ((path, took[0]), (limit, took[1])):
            if run is not None:
                _synchronise(device)
                start = time.perf_counter()
                run()
                _synchronise(device)
                times.append(time.perf_counter() - start)
    mine, other = (statistics.median(times[1:]) if times else 0.0 for times in took)
    return mine, other


def _check_pages(pages: list[list[torch.Tensor]], slots: torch.Tensor, spans: list[Span]) -> None:
    flat = slots.to(pages[0][0].device)
    for start, end, data in spans:
        at = flat[start:end]
        rows = [page.flatten(0, 1)[at] for planes in pages for page in planes]
        whole = torch.stack(rows).cpu().view(torch.uint8).flatten()
        kept = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        assert torch.equal(whole, kept), f"tokens [{start}, {end}) differ from the pages"


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


def _gpu(device: torch.device) -> bool:
    return device.type == "cuda"


def _synchronise(device: torch.device) -> None:
    if _gpu(device):
        torch.cuda.synchronize(device)
