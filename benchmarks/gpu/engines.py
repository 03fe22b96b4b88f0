"""What the adapters of vLLM and SGLang do on a GPU, on tensors of the engines' own shapes.

Stand-ins: no scheduler and no model, but the adapters' windows, streams and copies as they are.
Where an engine is installed, ``make test-vllm`` and ``make test-sglang`` try it whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib.util import find_spec

import torch

from benchmarks.gpu.timing import Rate, Size, Value, finish, pinned, rate, synchronise
from hexkv.adapters.sglang.pages.devices import copy_layers, device_pages
from hexkv.adapters.vllm.configuration.windows import LayerShape, Pages, pages_of
from hexkv.adapters.vllm.worker.streams import beside
from hexkv.kernels import PagedKV, PagedMemory
from hexkv.ports import KVLayout, Span

_LIMIT = "one copy from or to pinned memory"


def engines(device: torch.device, size: Size) -> Iterator[Rate | Value]:
    for name in ("vllm", "sglang"):
        yield Value(f"{name} itself", "is here" if find_spec(name) else "is not installed")
    yield from vllm(device, size)
    yield from sglang(device, size)


def vllm(device: torch.device, size: Size) -> Iterator[Rate]:
    """The memory of FlashAttention's backend, in its two orders, FlashMLA's, and whole blocks."""
    blocks = 2 * size.chunk * size.chunks // size.block
    heads, width, block = size.heads, size.width, size.block
    item = torch.bfloat16.itemsize
    row = 2 * heads * width * block * item
    attends = LayerShape(row, heads, width, width)
    latent = LayerShape(576 * block * item, 1, 576, 0, 512)
    for name, make, shape, apart in (
        ("tokens first", _ordered(blocks, block, heads, width, device), attends, True),
        ("heads first", _ordered(blocks, heads, block, width, device, swap=True), attends, True),
        ("latent", lambda: _random(blocks, block, 576, device=device), latent, True),
        ("whole blocks", _ordered(blocks, block, heads, width, device), attends, False),
    ):
        caches = {f"layer.{i}": make() for i in range(size.layers)}
        shapes = dict.fromkeys(caches, shape)
        found = pages_of(caches, shapes, count=blocks, block=block, apart=apart)
        yield from _vllm(device, size, f"vLLM, {name}", caches, found)


def _vllm(
    device: torch.device,
    size: Size,
    name: str,
    caches: dict[str, torch.Tensor],
    pages: Pages,
) -> Iterator[Rate]:
    order = torch.randperm(2 * size.chunk * size.chunks // size.block)
    mine = order[: len(order) // 2].tolist()
    window = pages.window(mine, 0)
    spans, host, there, region = _chunks(device, size, pages.layout)
    finish(window.gather(spans))
    before = {key: cache.clone() for key, cache in caches.items()}
    for cache in caches.values():
        cache[torch.tensor(mine, device=device)] = 0  # queued, and not waited for
    made = beside(device)()
    with made:  # begins behind what the model's stream had queued when it was made
        finish(window.scatter(spans))
    synchronise(device)
    for key, cache in caches.items():
        assert torch.equal(cache, before[key]), f"{name}: {key} is not what it was"
    yield rate(
        device,
        size.repeats,
        f"{name}: load",
        lambda: finish(window.scatter(spans)),
        (_LIMIT, lambda: there.copy_(host, non_blocking=True)),
        size=len(host),
    )
    del region


class MHATokenToKVPool:
    """As SGLang's: for each layer ``[slots, heads, width]`` of keys, and of values."""

    def __init__(self, size: Size, slots: int, device: torch.device) -> None:
        def made() -> list[torch.Tensor]:
            return [
                _random(slots, size.heads, size.width, device=device) for _ in range(size.layers)
            ]

        self.k_buffer, self.v_buffer = made(), made()

    @property
    def planes(self) -> list[torch.Tensor]:
        return [*self.k_buffer, *self.v_buffer]


class MLATokenToKVPool:
    """As SGLang's: for each layer ``[slots, 1, 576]``."""

    kv_lora_rank, qk_rope_head_dim = 512, 64

    def __init__(self, size: Size, slots: int, device: torch.device) -> None:
        self.kv_buffer = [_random(slots, 1, 576, device=device) for _ in range(size.layers)]

    @property
    def planes(self) -> list[torch.Tensor]:
        return self.kv_buffer


def sglang(device: torch.device, size: Size) -> Iterator[Rate]:
    """The linker's copies, layer by layer, and its windows."""
    page = size.chunk  # a chunk is a page
    for kind in (MHATokenToKVPool, MLATokenToKVPool):
        pool = kind(size, 2 * page * size.chunks, device)
        pages = device_pages(pool, page)
        order = torch.randperm(2 * size.chunks)[: size.chunks]
        slots = (order[:, None] * page + torch.arange(page)).flatten()
        spans, host, there, region = _chunks(device, size, pages.layout)
        finish(PagedKV.on(pages, slots).gather(spans))
        before = [plane.clone() for plane in pool.planes]
        for plane in pool.planes:
            plane[slots.to(device)] = 0
        loads = [(slots, [span.data for span in spans])]

        def load(
            pages: PagedMemory = pages,
            loads: Sequence[tuple[torch.Tensor, Sequence[memoryview]]] = loads,
        ) -> None:
            ready = torch.get_device_module(device).Event()
            ready.record()
            copy_layers(pages, loads, ready, lambda *_: None)

        load()
        for plane, old in zip(pool.planes, before, strict=True):
            assert torch.equal(plane, old), f"{kind.__name__}: a plane is not what it was"
        yield rate(
            device,
            max(1, size.repeats // 4),
            f"SGLang, {kind.__name__}: load by layers",
            load,
            (_LIMIT, partial(there.copy_, host, non_blocking=True)),
            size=len(host),
            goal=0.9,
        )
        del region


def _chunks(
    device: torch.device, size: Size, layout: KVLayout
) -> tuple[list[Span], torch.Tensor, torch.Tensor, object]:
    """Spans in pinned memory, that memory, as much of the device, and what holds it."""
    one = layout.chunk_bytes(size.chunk)
    region, host = pinned(device, one * size.chunks)
    data = region.buffer
    spans = [
        Span(at * size.chunk, (at + 1) * size.chunk, data[at * one : (at + 1) * one])
        for at in range(size.chunks)
    ]
    return spans, host, torch.empty(len(host), dtype=torch.uint8, device=device), region


def _ordered(
    blocks: int, first: int, second: int, width: int, device: torch.device, *, swap: bool = False
) -> Callable[[], torch.Tensor]:
    """Makes ``[blocks, heads, tokens, content]``, in memory as ``[blocks, first, second, ...]``."""

    def make() -> torch.Tensor:
        made = _random(blocks, first, second, 2 * width, device=device)
        return made if swap else made.transpose(1, 2)

    return make


def _random(*shape: int, device: torch.device) -> torch.Tensor:
    return torch.randn(shape, device=device).to(torch.bfloat16)
