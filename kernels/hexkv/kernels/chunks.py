"""The bytes of chunks as tensors, and the checks that both device windows share."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import torch

from hexkv.kernels.dtypes import bits, torch_dtype
from hexkv.ports import InvalidRequest, KVLayout, LayerGroup, LayoutMismatch, Plane, Span


def check_memory(tensor: torch.Tensor, name: str) -> None:
    """Refuse what has no bytes that could be moved.

    Raises:
        LayoutMismatch: *tensor* is sparse, nested, or on ``meta``.
    """
    if tensor.is_nested or tensor.layout is not torch.strided:
        kind = "nested" if tensor.is_nested else tensor.layout
        raise LayoutMismatch(f"{name} is {kind}, not a dense tensor")
    if tensor.device.type == "meta":
        raise LayoutMismatch(f"{name} is on meta, where tensors have no data")


def check_planes(
    layout: KVLayout, tensors: Sequence[Sequence[torch.Tensor]]
) -> list[list[torch.Tensor]]:
    """*tensors* reinterpreted as integers, each of its plane's dtype and width.

    Raises:
        LayoutMismatch: layers, planes, dtype, rank or width differ from the layout's, or these
            are no dense tensors with data.
    """
    try:
        whole = all(isinstance(tensor, torch.Tensor) for planes in tensors for tensor in planes)
    except TypeError:
        whole = False
    if not whole:
        raise LayoutMismatch("KV is given as one tensor for each plane of each layer")
    if len(tensors) != layout.layers:
        raise LayoutMismatch(f"{len(tensors)} layers of KV, where the layout has {layout.layers}")
    dtype, word = torch_dtype(layout.dtype), bits(layout.dtype)
    for layer, (planes, given) in enumerate(zip(layout.planes, tensors, strict=True)):
        if len(given) != len(planes):
            raise LayoutMismatch(f"layer {layer} has {len(given)} planes, not {len(planes)}")
        for plane, tensor in zip(planes, given, strict=True):
            name = f"layer {layer} plane {plane.name!r}"
            check_memory(tensor, name)
            if tensor.dtype != dtype:
                raise LayoutMismatch(f"{name} is {tensor.dtype}, not {dtype}")
            if tensor.dim() != 4 or tensor.shape[-1] != plane.width:
                raise LayoutMismatch(
                    f"{name} has shape {tuple(tensor.shape)}; "
                    f"four dimensions are expected, the last of {plane.width}"
                )
    return [[tensor.detach().view(word) for tensor in planes] for planes in tensors]


def check_spans(
    layout: KVLayout,
    tokens: int,
    spans: Sequence[Span],
    layers: range | None,
    *,
    write: bool = False,
) -> range:
    """The layers to move, once the whole request is known to mean something.

    Raises:
        InvalidRequest: a span leaves ``[0, tokens)``, its data has another size than the
            chunk or is read-only where *write* wants to write it, or *layers* names a
            layer that is not there.
    """
    chosen = range(layout.layers) if layers is None else layers
    if chosen.step != 1 or not 0 <= chosen.start <= chosen.stop <= layout.layers:
        raise InvalidRequest(f"{chosen} is no run of layers in [0, {layout.layers})")
    for start, end, data in spans:
        if not 0 <= start <= end <= tokens:
            raise InvalidRequest(f"span [{start}, {end}) leaves the window's {tokens} tokens")
        if not data.c_contiguous or data.nbytes != layout.chunk_bytes(end - start):
            raise InvalidRequest(
                f"a chunk of {end - start} tokens takes {layout.chunk_bytes(end - start)} "
                f"contiguous bytes, not {data.nbytes}"
            )
        if write and data.readonly:
            raise InvalidRequest("the chunk's memory is read-only")
    return chosen


def places(layout: KVLayout, layers: range) -> list[tuple[int, int]]:
    """Each ``(layer, plane)`` of *layers*, in the order of :func:`rows`."""
    return [
        (layer, index)
        for chosen, group in _groups(layout, layers)
        for index in range(len(group.planes))
        for layer in chosen
    ]


def rows(layout: KVLayout, tokens: int, data: memoryview, layers: range) -> list[torch.Tensor]:
    """The ``[tokens, heads, width]`` of each of :func:`places` in a chunk's bytes, as integers.

    The tensors are views: writing to them writes the chunk, unless its memory is read-only.
    """
    flat = _flat(data, bits(layout.dtype)) if tokens else None
    return _cut(layout, tokens, layers, flat, 1, lambda plane: (tokens, plane.heads, plane.width))


def blocks(
    layout: KVLayout, tokens: int, data: memoryview, layers: range, count: int
) -> list[torch.Tensor]:
    """The same as ``[count, words]`` of 64 bits: *count* blocks of whole words each."""
    flat = _flat(data, torch.int64) if tokens else None
    share = 8 // layout.dtype.itemsize

    def shape(plane: Plane) -> tuple[int, ...]:
        return count, tokens * plane.heads * plane.width // share // count

    return _cut(layout, tokens, layers, flat, share, shape)


def _flat(data: memoryview, dtype: torch.dtype) -> torch.Tensor:
    if data.readonly:
        # torch has no read-only tensors, and warns about making a writable one of these.
        data = memoryview(bytearray(data))
    return torch.frombuffer(data, dtype=dtype)


def _cut(
    layout: KVLayout,
    tokens: int,
    layers: range,
    flat: torch.Tensor | None,
    share: int,
    shape: Callable[[Plane], tuple[int, ...]],
) -> list[torch.Tensor]:
    """Views of *flat*, whose elements are *share* of the layout's, one for each of the places."""
    if flat is None:
        return []
    views: list[torch.Tensor] = []
    for chosen, group in _groups(layout, layers):
        start, end = (at // layout.dtype.itemsize for at in layout.layer_span(chosen[0], tokens))
        at = start
        for plane in group.planes:
            size = shape(plane)
            # One view for all layers: views made one by one would cost a tenth of the copying.
            stack = flat.as_strided(
                (len(chosen), *size), ((end - start) // share, *_dense(size)), at // share
            )
            at += tokens * plane.heads * plane.width
            views.extend(stack.unbind(0))
    return views


def _dense(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of contiguous memory."""
    return tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))


def _groups(layout: KVLayout, layers: range) -> Iterator[tuple[range, LayerGroup]]:
    first = 0
    for group in layout.groups:
        chosen = range(max(first, layers.start), min(first + group.layers, layers.stop))
        first += group.layers
        if chosen:
            yield chosen, group
