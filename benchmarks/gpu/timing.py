"""What the parts that measure have in common: sizes, rates, and times in turns."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from hexkv.adapters.cuda.pinned import PinnedMemory
from hexkv.adapters.cuda.streams import CudaKV
from hexkv.kernels import PagedKV
from hexkv.plugins.clock import SystemClock
from hexkv.ports import Deadline, DeviceKV, DType, KVLayout, MemoryRegion, Span, Transfer


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


TINY = Size(2, 2, 16, 4, 8, 2, 1)
"""To see whether it runs."""


@dataclass(frozen=True, slots=True)
class Rate:
    """One path beside its limit. GB are 10**9 bytes of raw KV."""

    name: str
    limit: str
    gb_per_second: float
    limit_gb_per_second: float
    share: float
    """The median of the rounds' shares."""

    low: float
    """The lower quartile."""

    high: float
    goal: float = 0.0


@dataclass(frozen=True, slots=True)
class Value:
    """Something measured that is no rate."""

    name: str
    value: object


_SECONDS = 2.0
"""Of all rounds, from which no further one begins."""

_ROUNDS = 4
"""The least number of rounds, with the first, which does not count."""


def alternate(
    device: torch.device,
    repeats: int,
    path: Callable[[], object],
    limit: Callable[[], object],
) -> tuple[list[float], list[float]]:
    """Seconds of either in each round, one after the other so that both see the same.

    A path that is far from its limit is measured in fewer rounds: the other parts need their time.
    """
    took: tuple[list[float], list[float]] = ([], [])
    over = time.perf_counter() + _SECONDS
    while len(took[0]) <= repeats and (len(took[0]) < _ROUNDS or time.perf_counter() < over):
        for run, times in ((path, took[0]), (limit, took[1])):
            times.append(timed(device, run))
    return took[0][1:], took[1][1:]  # the first compiled, and touched memory


def timed(device: torch.device, run: Callable[[], object]) -> float:
    """Seconds that *run* takes, with its work on the device."""
    synchronise(device)
    start = time.perf_counter()
    run()
    synchronise(device)
    return time.perf_counter() - start


def rate(
    device: torch.device,
    repeats: int,
    name: str,
    path: Callable[[], object],
    limit: tuple[str, Callable[[], object]],
    *,
    size: int,
    limit_size: int | None = None,
    goal: float = 0.0,
) -> Rate:
    """*path*, which moves *size* bytes, beside a limit, which moves as many or *limit_size*."""
    mine, others = alternate(device, repeats, path, limit[1])
    other_size = size if limit_size is None else limit_size
    return share(name, limit[0], (mine, size), (others, other_size), goal)


def share(
    name: str,
    limit: str,
    path: tuple[Sequence[float], int],
    other: tuple[Sequence[float], int],
    goal: float,
) -> Rate:
    """Seconds of a *path* in each round, and its bytes, beside those of its limit."""
    (mine, size), (others, limit_size) = path, other
    scale = size / limit_size
    shares = sorted(other / one * scale for one, other in zip(mine, others, strict=True))
    low, _, high = statistics.quantiles(shares, n=4) if len(shares) > 1 else shares * 3
    return Rate(
        name,
        limit,
        size / statistics.median(mine) / 1e9,
        size / scale / statistics.median(others) / 1e9,
        statistics.median(shares),
        low,
        high,
        goal,
    )


def pages_of(
    layout: KVLayout, blocks: int, block: int, device: torch.device
) -> list[list[torch.Tensor]]:
    """Pages of random numbers, ``[layer][plane]`` of ``[blocks, block, heads, width]``."""
    return [
        [
            torch.randn((blocks, block, plane.heads, plane.width), device=device).to(torch.bfloat16)
            for plane in planes
        ]
        for planes in layout.planes
    ]


def scattered_slots(blocks: int, block: int) -> torch.Tensor:
    """Slots of *blocks* blocks of twice as many, in no order."""
    order = torch.randperm(2 * blocks)[:blocks]
    return (order[:, None] * block + torch.arange(block)).flatten()


def window_on(
    device: torch.device,
    layout: KVLayout,
    pages: Sequence[Sequence[torch.Tensor]],
    slots: torch.Tensor,
    *,
    direct: bool = False,
) -> DeviceKV:
    """A window as an engine's adapter makes it."""
    if on_gpu(device):
        return CudaKV(device, direct=direct).paged(layout, pages, slots)
    # The CPU would take torch's way, and nothing of what a GPU does would be tried.
    return PagedKV(layout, pages, slots, fused=True, direct=direct)


def pinned(device: torch.device, size: int) -> tuple[MemoryRegion, torch.Tensor]:
    """Memory as the pool's is, pinned where there is a GPU, and as bytes of torch's."""
    provider = PinnedMemory.near(device.index or 0) if on_gpu(device) else PinnedMemory()
    region = provider.allocate(size)
    host = torch.frombuffer(region.buffer[:size], dtype=torch.uint8)
    assert not on_gpu(device) or host.is_pinned(), "torch does not know that the memory is pinned"
    return region, host


_MOST = 512 << 20
"""Bytes of the bare copy that stands for a longer one."""


def bare_copy(device: torch.device, most: int) -> tuple[int, Callable[[], object], object]:
    """The bytes of a copy from pinned memory, the copy, and what holds its memory."""
    size = min(most, _MOST)
    region, host = pinned(device, size)
    there = torch.empty(size, dtype=torch.uint8, device=device)
    return size, lambda: there.copy_(host, non_blocking=True), region


def finish(transfer: Transfer) -> None:
    """Wait for a copy."""
    done = transfer.wait(Deadline.after(SystemClock(), 60.0))
    assert done, "a copy was not done within a minute"


def check_pages(
    pages: Sequence[Sequence[torch.Tensor]], slots: torch.Tensor, spans: Sequence[Span]
) -> None:
    """What the pages hold is what the chunks do, byte by byte, by torch's indexing alone."""
    flat = slots.to(pages[0][0].device)
    for start, end, data in spans:
        at = flat[start:end]
        rows = [page.flatten(0, 1)[at].flatten() for planes in pages for page in planes]
        whole = torch.cat(rows).cpu().view(torch.uint8)
        kept = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        assert torch.equal(whole, kept), f"tokens [{start}, {end}) differ from the pages"


def on_gpu(device: torch.device) -> bool:
    return device.type == "cuda"


def synchronise(device: torch.device) -> None:
    if on_gpu(device):
        torch.cuda.synchronize(device)
