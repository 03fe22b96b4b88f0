"""KV in torch tensors on the CPU: the window that hexkv gets, and the bare copy of the same bytes.

The views of the bare copy are made beforehand, so it is nothing but torch's copying. Both
sides read and write the same tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
import xxhash

from hexkv.kernels import ContiguousKV, PagedKV
from hexkv.kernels.dtypes import bits, torch_dtype
from hexkv.kernels.paged import PagedMemory
from hexkv.ports import DeviceKV, KVLayout, Plane

PAGE_TOKENS = 16
"""Tokens in a page of paged KV: vLLM's default."""


@dataclass(frozen=True, slots=True)
class BareCopy:
    """Copies one chunk between the device and a buffer, and does nothing else."""

    gather: Callable[[], object]
    scatter: Callable[[], object]


def one_by_one(copies: Sequence[BareCopy]) -> tuple[Callable[[], None], Callable[[], None]]:
    """What gathers all of *copies*, one after the other, and what scatters them."""

    def gather() -> None:
        for copy in copies:
            copy.gather()

    def scatter() -> None:
        for copy in copies:
            copy.scatter()

    return gather, scatter


@dataclass(frozen=True, slots=True)
class Device:
    """The KV of one prompt, filled with random bits."""

    window: DeviceKV
    tensors: list[list[torch.Tensor]]

    fresh: Callable[[], DeviceKV]
    """Makes another window, as a host does for each request."""

    bare: Callable[[int, memoryview], BareCopy]
    """The bare copy of chunk *i*, from and to a buffer of its size."""

    def fingerprint(self) -> bytes:
        """A checksum over all KV."""
        digest = xxhash.xxh3_128()
        for planes in self.tensors:
            for tensor in planes:
                digest.update(tensor.view(torch.uint8).flatten().numpy().data)
        return digest.digest()

    def wipe(self) -> None:
        """Zero all KV."""
        for planes in self.tensors:
            for tensor in planes:
                tensor.zero_()


def contiguous(layout: KVLayout, tokens: int, chunk: int) -> Device:
    """One tensor ``[1, heads, tokens, width]`` per layer and plane, as transformers has it."""
    tensors = _filled(layout, lambda plane: (1, plane.heads, tokens, plane.width))

    def bare(i: int, buffer: memoryview) -> BareCopy:
        pairs = []
        for layer, index, part in _parts(layout, chunk, buffer):
            view = tensors[layer][index][0].transpose(0, 1).narrow(0, i * chunk, chunk)
            pairs.append((part.view_as(view), view))

        def gather() -> None:
            for part, view in pairs:
                part.copy_(view)

        def scatter() -> None:
            for part, view in pairs:
                view.copy_(part)

        return BareCopy(gather, scatter)

    def fresh() -> DeviceKV:
        return ContiguousKV(layout, tensors)

    return Device(fresh(), tensors, fresh, bare)


def in_one(layout: KVLayout, tokens: int, chunk: int) -> Device:
    """One tensor ``[layers, planes, tokens, heads * width]``, for planes that are all alike.

    The bare copy of a chunk is one call.
    """
    ((heads, width),) = {(plane.heads, plane.width) for planes in layout.planes for plane in planes}
    shape, word = (layout.layers, len(layout.planes[0]), tokens, heads * width), bits(layout.dtype)
    whole = torch.empty(shape, dtype=word).random_().view(torch_dtype(layout.dtype))
    tensors = [
        [one.view(tokens, heads, width).transpose(0, 1)[None] for one in planes] for planes in whole
    ]

    def bare(i: int, buffer: memoryview) -> BareCopy:
        view = whole[:, :, i * chunk : (i + 1) * chunk]
        part = torch.frombuffer(buffer, dtype=whole.dtype).view_as(view)
        return BareCopy(lambda: part.copy_(view), lambda: view.copy_(part))

    def fresh() -> DeviceKV:
        return ContiguousKV(layout, tensors)

    return Device(fresh(), tensors, fresh, bare)


def paged(layout: KVLayout, tokens: int, chunk: int) -> Device:
    """Pages ``[blocks, block_size, heads, width]`` in random order, as vLLM has them.

    The bare copy moves whole pages by number, in one call per layer and plane: torch's
    ``copy_`` of single pages is never faster, and up to 1.6 times slower.
    """
    size = PAGE_TOKENS
    blocks = torch.randperm(tokens // size)
    tensors = _filled(layout, lambda plane: (len(blocks), size, plane.heads, plane.width))
    slots = (blocks[:, None] * size + torch.arange(size)).flatten()

    def bare(i: int, buffer: memoryview) -> BareCopy:
        chosen = blocks[i * chunk // size : (i + 1) * chunk // size]
        pairs = []
        for layer, index, part in _parts(layout, chunk, buffer):
            rows = tensors[layer][index].flatten(1).view(torch.int64)
            pairs.append((part.view(torch.int64).view(len(chosen), -1), rows))

        def gather() -> None:
            for part, rows in pairs:
                torch.index_select(rows, 0, chosen, out=part)

        def scatter() -> None:
            for part, rows in pairs:
                rows.index_copy_(0, chosen, part)

        return BareCopy(gather, scatter)

    memory = PagedMemory(layout, tensors)

    def fresh() -> DeviceKV:
        return PagedKV.on(memory, slots)

    return Device(fresh(), tensors, fresh, bare)


def _filled(
    layout: KVLayout, shape: Callable[[Plane], tuple[int, ...]]
) -> list[list[torch.Tensor]]:
    word, dtype = bits(layout.dtype), torch_dtype(layout.dtype)
    return [
        [torch.empty(shape(plane), dtype=word).random_().view(dtype) for plane in planes]
        for planes in layout.planes
    ]


def _parts(
    layout: KVLayout, tokens: int, buffer: memoryview
) -> Iterator[tuple[int, int, torch.Tensor]]:
    """``(layer, plane, elements)`` of a chunk's bytes, in order."""
    flat = torch.frombuffer(buffer, dtype=torch_dtype(layout.dtype))
    at = 0
    for layer, planes in enumerate(layout.planes):
        for index, plane in enumerate(planes):
            count = tokens * plane.heads * plane.width
            yield layer, index, flat[at : at + count]
            at += count
