"""Checks of all device windows: tensors that are not the layout's, and invalid spans."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from operator import attrgetter

import torch

from hexkv.kernels.dtypes import torch_dtype
from hexkv.ports import InvalidRequest, KVLayout, LayoutMismatch, Span

_about = attrgetter("dtype", "layout", "device", "shape")


def check_memory(tensor: torch.Tensor, name: str) -> None:
    """Refuse a tensor without bytes that could be moved.

    Raises:
        LayoutMismatch: *tensor* is sparse, nested, or on ``meta``.
    """
    if _has_memory(tensor):
        return
    if tensor.is_nested or tensor.layout is not torch.strided:
        kind = "nested" if tensor.is_nested else tensor.layout
        raise LayoutMismatch(f"{name} is {kind}, not a dense tensor")
    raise LayoutMismatch(f"{name} is on meta, where tensors have no data")


def check_planes(layout: KVLayout, tensors: Sequence[Sequence[torch.Tensor]]) -> list[int]:
    """Refuse *tensors* unless each has four dimensions, and dtype and width of its plane.

    Returns:
        the layers that differ from the one before, in planes or in shape, dtype or device of their
            tensors: a property of all their tensors is one of all layers.

    Raises:
        LayoutMismatch: layers, planes, dtype, rank or width differ from the layout's, or these are
            no dense tensors with data.
    """
    try:
        found = {*map(type, chain.from_iterable(tensors))}
    except TypeError:
        found = {object}
    if not all(issubclass(one, torch.Tensor) for one in found):
        raise LayoutMismatch("KV is given as one tensor for each plane of each layer")
    if len(tensors) != layout.layers:
        raise LayoutMismatch(f"{len(tensors)} layers of KV, where the layout has {layout.layers}")
    kinds = layout.planes
    differ, rest = [0], range(1, layout.layers)
    try:
        about = [[*map(_about, given)] for given in tensors]
        if about.count(about[0]) < len(about) or kinds.count(kinds[0]) < len(kinds):
            differ += [i for i in rest if about[i] != about[i - 1] or kinds[i] != kinds[i - 1]]
    except RuntimeError:  # a nested one has no shape, or one that cannot be compared
        differ += rest
    for layer in differ:
        _check_layer(layout, layer, tensors[layer])
    return differ


def _check_layer(layout: KVLayout, layer: int, given: Sequence[torch.Tensor]) -> None:
    dtype, planes = torch_dtype(layout.dtype), layout.planes[layer]
    if len(given) != len(planes):
        raise LayoutMismatch(f"layer {layer} has {len(given)} planes, not {len(planes)}")
    for plane, tensor in zip(planes, given, strict=True):
        fits = tensor.dtype is dtype and tensor.dim() == 4 and tensor.shape[-1] == plane.width
        if fits and _has_memory(tensor):
            continue
        name = f"layer {layer} plane {plane.name!r}"
        check_memory(tensor, name)
        if tensor.dtype != dtype:
            raise LayoutMismatch(f"{name} is {tensor.dtype}, not {dtype}")
        raise LayoutMismatch(
            f"{name} has shape {tuple(tensor.shape)}; "
            f"four dimensions are expected, the last of {plane.width}"
        )


def _has_memory(tensor: torch.Tensor) -> bool:
    return not tensor.is_nested and tensor.layout is torch.strided and not tensor.is_meta


def check_spans(
    layout: KVLayout,
    tokens: int,
    spans: Sequence[Span],
    layers: range | None,
    *,
    write: bool = False,
) -> range:
    """Return the layers to move, after a check of the whole request.

    Raises:
        InvalidRequest: a span leaves ``[0, tokens)``, its data has another size than the chunk or
            is read-only although *write* is True, or *layers* names a layer that does not exist.
    """
    chosen = range(layout.layers) if layers is None else layers
    if chosen.step != 1 or not 0 <= chosen.start <= chosen.stop <= layout.layers:
        raise InvalidRequest(f"{chosen} is no run of layers in [0, {layout.layers})")
    size = layout.token_bytes
    for start, end, data in spans:
        if not 0 <= start <= end <= tokens:
            raise InvalidRequest(f"span [{start}, {end}) leaves the window's {tokens} tokens")
        if data.nbytes != size * (end - start) or not data.c_contiguous:
            raise InvalidRequest(
                f"a chunk of {end - start} tokens takes {size * (end - start)} "
                f"contiguous bytes, not {data.nbytes}"
            )
        if write and data.readonly:
            raise InvalidRequest("the chunk's memory is read-only")
    return chosen
