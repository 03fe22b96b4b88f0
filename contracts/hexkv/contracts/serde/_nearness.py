"""The distance of decoded elements from the originals, in plain Python."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import isfinite
from struct import unpack

from hexkv.ports import DType, ErrorBound, KVLayout, LossySerde, Plane, ScaleGroup

FLOATS = (DType.BFLOAT16, DType.FLOAT16, DType.FLOAT32)

_SMALLEST = {DType.BFLOAT16: 2.0**-133, DType.FLOAT16: 2.0**-24, DType.FLOAT32: 2.0**-149}
"""The smallest step between two numbers of a dtype."""

_SLACK = 1 + 2.0**-20
"""Tolerance for the arithmetic of a serde that computes in single precision."""


def numbers(raw: bytes, dtype: DType) -> Sequence[float]:
    """The elements of *raw*, of one of ``FLOATS``."""
    if dtype is DType.FLOAT32:
        return unpack(f"<{len(raw) // 4}f", raw)
    if dtype is DType.FLOAT16:
        return unpack(f"<{len(raw) // 2}e", raw)
    wide = bytearray(2 * len(raw))
    wide[2::4], wide[3::4] = raw[::2], raw[1::2]
    return unpack(f"<{len(raw) // 2}f", wide)


def _peers(plane: Plane, tokens: int, peers: ScaleGroup) -> Iterator[range]:
    """The places in a plane, group by group, whose elements share a scale."""
    row = plane.heads * plane.width
    if peers is ScaleGroup.CHANNEL:
        yield from (range(place, row * tokens, row) for place in range(row))
    else:
        length = plane.width if peers is ScaleGroup.HEAD else row
        yield from (range(at, at + length) for at in range(0, row * tokens, length))


def _too_far(
    before: Sequence[float],
    after: Sequence[float],
    peers: range,
    share: float,
    by: float,
) -> str:
    """Describe the first decoded element that is too far off; return "" if there is none."""
    most = max((abs(before[i]) for i in peers if isfinite(before[i])), default=0.0)
    room = most * share * _SLACK + by
    for i in peers:
        if isfinite(before[i]) and not abs(after[i] - before[i]) <= room:
            return f"{before[i]!r} came back as {after[i]!r}, which is not within {room!r}"
    return ""


def beyond(serde: LossySerde, raw: bytes, back: bytes, layout: KVLayout) -> str:
    """Describe the first element of *back*, decoded from *raw*, beyond the bound; "" if none."""
    tokens, itemsize = len(raw) // layout.token_bytes, layout.dtype.itemsize
    at = 0
    for layer, planes in enumerate(layout.planes):
        for plane in planes:
            size = plane.heads * plane.width * tokens * itemsize
            old, new = raw[at : at + size], back[at : at + size]
            at += size
            bound = serde.error(layout, layer, plane)
            if wrong := _plane_beyond(bound, old, new, layout.dtype, plane, tokens):
                return f"layer {layer}, plane {plane.name}: {wrong}"
    return ""


def _plane_beyond(
    bound: ErrorBound, old: bytes, new: bytes, dtype: DType, plane: Plane, tokens: int
) -> str:
    if old == new:
        return ""
    if dtype not in FLOATS or not bound.share:
        return "declared exact, and other bytes came back"
    before, after = numbers(old, dtype), numbers(new, dtype)
    size = dtype.itemsize
    for i, number in enumerate(before):
        if (
            not isfinite(number)
            and old[i * size : (i + 1) * size] != new[i * size : (i + 1) * size]
        ):
            return f"{number!r} came back as {after[i]!r}"
    places = _peers(plane, tokens, bound.peers)
    wrongs = (_too_far(before, after, some, bound.share, _SMALLEST[dtype]) for some in places)
    return next((wrong for wrong in wrongs if wrong), "")
