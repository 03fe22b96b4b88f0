"""What serdes of planes have in common: a payload of layers, which are made of planes.

A payload; all numbers are little-endian and count bytes::

    0   8   magic, the last byte of which is the version of the codec's format
    8   8   of the chunk
    16  8   of the payload
    24  8   of each layer's part, one after another
    ..      the parts, in layer order

    part:   8 of each plane's block; then the blocks, in the order of the planes
    block:  what the codec made of the plane, or the plane

What would not have shrunk, or what the codec has no block for, stands there unchanged. That is
told by its length: a payload of ``24 + chunk`` bytes goes on with the chunk itself, a part as
long as its layer is the layer, a block as long as its plane is the plane. What is longer than
that, or does not add up, is corrupt.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from struct import Struct
from typing import Protocol, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from hexkv.kernels.coding.floats import Floats, widened
from hexkv.ports import CorruptFrame, DType, KVLayout, LayoutMismatch, Plane

_HEAD = Struct("<8sQQ")
_SIZE = 8

Piece: TypeAlias = bytes | memoryview | npt.NDArray[np.generic]
Number = TypeVar("Number", np.int8, np.uint8, np.uint16, np.uint32)


@dataclass(frozen=True, slots=True)
class Place:
    """Which plane of which model this is."""

    plane: Plane
    dtype: DType
    layer: int
    layers: int
    tokens: int

    @property
    def row(self) -> int:
        """Elements of one token."""
        return self.plane.heads * self.plane.width

    @property
    def size(self) -> int:
        """Bytes of the plane in a chunk."""
        return self.row * self.tokens * self.dtype.itemsize


class PlaneCodec(Protocol):
    """How one plane of one layer is made smaller. Knows no layouts and no lengths."""

    @property
    def name(self) -> str:
        """What frames call the serde."""
        ...

    @property
    def magic(self) -> bytes:
        """How payloads start: 8 bytes."""
        ...

    def encode(self, plane: memoryview, place: Place) -> Sequence[Piece] | None:
        """The block for the bytes of a plane; ``None`` if they cannot be coded."""
        ...

    def decode(self, block: memoryview, place: Place) -> npt.NDArray[np.generic]:
        """The bytes of the plane, as numbers of any kind.

        Raises:
            CorruptFrame: this is no block of such a plane.
        """
        ...


class PlaneSerde:
    """A serde of a codec's blocks. One layer can be decoded from its part of the payload."""

    lossless = True
    per_layer = True

    def __init__(self, codec: PlaneCodec, dtypes: Collection[DType] = tuple(DType)) -> None:
        """Code with *codec*; leave KV as it is whose dtype is not one of *dtypes*."""
        self.name = codec.name
        self._codec = codec
        self._dtypes = frozenset(dtypes)

    def bound(self, raw_bytes: int) -> int:
        return _HEAD.size + raw_bytes

    def encode(self, chunk: memoryview, layout: KVLayout, tokens: int, into: memoryview) -> int:
        _expect(chunk, layout.chunk_bytes(tokens))
        end = self.bound(len(chunk))
        at = self.index_bytes(layout)
        sizes: list[int] = []
        for layer in range(layout.layers):
            if layout.dtype not in self._dtypes or not chunk or at >= end:
                break
            start, stop = layout.layer_span(layer, tokens)
            pieces = self._part(chunk[start:stop], layer, layout, tokens)
            size = sum(len(piece) for piece in pieces)
            if at + size >= end:
                break
            for piece in pieces:
                into[at : at + len(piece)] = piece
                at += len(piece)
            sizes.append(size)
        if len(sizes) < layout.layers:
            _HEAD.pack_into(into, 0, self._codec.magic, len(chunk), end)
            into[_HEAD.size : end] = chunk
            return end
        _HEAD.pack_into(into, 0, self._codec.magic, len(chunk), at)
        _sizes(layout.layers).pack_into(into, _HEAD.size, *sizes)
        return at

    def decode(self, payload: memoryview, layout: KVLayout, tokens: int, into: memoryview) -> None:
        _expect(into, layout.chunk_bytes(tokens))
        parts = self.layer_parts(payload, len(payload), layout, tokens)
        for layer, (start, stop) in enumerate(parts):
            first, last = layout.layer_span(layer, tokens)
            self.decode_layer(payload[start:stop], layer, layout, tokens, into[first:last])

    def index_bytes(self, layout: KVLayout) -> int:
        return _HEAD.size + _SIZE * layout.layers

    def layer_parts(
        self, start: memoryview, payload_bytes: int, layout: KVLayout, tokens: int
    ) -> list[tuple[int, int]]:
        raw_bytes = layout.chunk_bytes(tokens)
        if len(start) < _HEAD.size:
            raise CorruptFrame(f"a payload of {payload_bytes} bytes")
        if _HEAD.unpack_from(start) != (self._codec.magic, raw_bytes, payload_bytes):
            raise CorruptFrame(
                f"not a {self.name} payload of {payload_bytes} bytes, for {raw_bytes} of KV"
            )
        if payload_bytes == self.bound(raw_bytes):
            spans = (layout.layer_span(layer, tokens) for layer in range(layout.layers))
            return [(_HEAD.size + first, _HEAD.size + last) for first, last in spans]
        if len(start) < self.index_bytes(layout):
            raise CorruptFrame("the payload ends within its index")
        sizes = _sizes(layout.layers).unpack_from(start, _HEAD.size)
        bounds = list(accumulate(sizes, initial=self.index_bytes(layout)))
        if bounds[-1] != payload_bytes:
            raise CorruptFrame(f"{payload_bytes} bytes, but the index speaks of {bounds[-1]}")
        return list(pairwise(bounds))

    def decode_layer(
        self, part: memoryview, layer: int, layout: KVLayout, tokens: int, into: memoryview
    ) -> None:
        first, last = layout.layer_span(layer, tokens)
        _expect(into, last - first)
        if len(part) == len(into):
            into[:] = part
            return
        places = _places(layer, layout, tokens)
        at = _SIZE * len(places)
        if layout.dtype not in self._dtypes or not at <= len(part) < len(into):
            raise CorruptFrame(f"layer {layer}: {len(part)} bytes for one of {len(into)}")
        bounds = list(accumulate(_sizes(len(places)).unpack_from(part), initial=at))
        if bounds[-1] != len(part):
            raise CorruptFrame(f"layer {layer}: {len(part)} bytes, and not {bounds[-1]}")
        to = 0
        for place, (start, stop) in zip(places, pairwise(bounds), strict=True):
            block = part[start:stop]
            if len(block) != place.size:
                block = _raw(self._codec.decode(block, place))
            into[to : to + place.size] = block
            to += place.size

    def _part(self, raw: memoryview, layer: int, layout: KVLayout, tokens: int) -> list[memoryview]:
        """The bytes of a layer's part."""
        sizes: list[int] = []
        blocks: list[memoryview] = []
        at = 0
        for place in _places(layer, layout, tokens):
            plane = raw[at : at + place.size]
            at += place.size
            block = self._block(plane, place)
            sizes.append(sum(map(len, block)))
            blocks += block
        if _SIZE * len(sizes) + sum(sizes) >= len(raw):
            return [raw]
        return [memoryview(_sizes(len(sizes)).pack(*sizes)), *blocks]

    def _block(self, plane: memoryview, place: Place) -> list[memoryview]:
        pieces = self._codec.encode(plane, place)
        if pieces is None:
            return [plane]
        block = [_raw(piece) for piece in pieces]
        return block if sum(map(len, block)) < len(plane) else [plane]


class Cursor:
    """Takes a block apart, in the order in which it was put together."""

    def __init__(self, block: memoryview) -> None:
        self._block = block
        self._at = 0

    @property
    def left(self) -> int:
        """Bytes that were not taken yet."""
        return len(self._block) - self._at

    def take(self, kind: type[Number], count: int) -> npt.NDArray[Number]:
        """The next *count* numbers, in memory of their own.

        Raises:
            CorruptFrame: there are not so many.
        """
        dtype = np.dtype(kind).newbyteorder("<")
        size = count * dtype.itemsize
        if size > self.left:
            raise CorruptFrame(f"a block of {len(self._block)} bytes ends too early")
        found = np.frombuffer(self._block, dtype, count, self._at)
        self._at += size
        return found.astype(kind)

    def end(self) -> None:
        """Be sure that all was taken.

        Raises:
            CorruptFrame: it was not.
        """
        if self.left:
            raise CorruptFrame(f"a block of {len(self._block)} bytes goes on after its end")

    def peaks(self, place: Place, count: int) -> Floats:
        """The next *count* numbers of the layout's dtype, which are finite.

        Raises:
            CorruptFrame: they are not.
        """
        size = count * place.dtype.itemsize
        found = widened(self.take(np.uint8, size).data, place.dtype)
        if not np.isfinite(found).all():
            raise CorruptFrame("a scale that is no number")
        return found


def _places(layer: int, layout: KVLayout, tokens: int) -> list[Place]:
    planes = layout.planes[layer]
    return [Place(plane, layout.dtype, layer, layout.layers, tokens) for plane in planes]


def _raw(piece: Piece) -> memoryview:
    """The bytes of *piece*, without a copy."""
    if isinstance(piece, bytes | memoryview):
        return memoryview(piece)
    return np.ascontiguousarray(piece).reshape(-1).view(np.uint8).data


def _sizes(count: int) -> Struct:
    return Struct(f"<{count}Q")


def _expect(buffer: memoryview, size: int) -> None:
    if len(buffer) != size:
        raise LayoutMismatch(f"{len(buffer)} bytes of KV, where the layout says {size}")
