"""The common payload of layer serdes: a part for each layer, each of which is made of blocks.

All numbers are little-endian and count bytes::

    0   8   magic, the last byte of which is the version of the codec's format
    8   8   of the chunk
    16  8   of the payload
    24  8   of each layer's part, one after another
    ..      the parts, in layer order

    part:   8 of each block; then the blocks

Bytes that would not shrink, or for which the codec has no part, are stored unchanged. The length
marks them: a payload of ``24 + chunk`` bytes goes on with the chunk itself, a part as long as its
layer is the layer, and where a block represents a plane (:class:`PlaneSerde`), one as long as its
plane is the plane. Anything longer, or that does not add up, is corrupt: no number in a payload is
trusted before it was compared to the layout.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from struct import Struct
from typing import Protocol

from hexkv.ports import CorruptFrame, DType, KVLayout, LayoutMismatch, Plane

_HEAD = Struct("<8sQQ")
_SIZE = 8


class LayerCodec(Protocol):
    """The coding of one layer of a chunk. Knows no lengths but of its own blocks."""

    @property
    def name(self) -> str:
        """The name of the serde in frames."""
        ...

    @property
    def magic(self) -> bytes:
        """The first 8 bytes of payloads."""
        ...

    def blocks(self, layer: int, layout: KVLayout) -> int:
        """Return the number of blocks of such a layer."""
        ...

    def encode(
        self, raw: memoryview, layer: int, layout: KVLayout, tokens: int
    ) -> list[list[memoryview]]:
        """Return the blocks of a layer, each in pieces, valid until this thread's next call."""
        ...

    def decode(
        self, blocks: list[memoryview], layer: int, layout: KVLayout, tokens: int, into: memoryview
    ) -> None:
        """Fill *into* with the layer.

        Raises:
            CorruptFrame: these are no blocks of such a layer.
        """
        ...


class LayerSerde:
    """A serde of a codec's layers. One can be decoded from its part of the payload."""

    lossless = True
    per_layer = True

    def __init__(self, codec: LayerCodec, dtypes: Collection[DType] = tuple(DType)) -> None:
        """Code with *codec*; leave KV whose dtype is not in *dtypes* unchanged."""
        self.name = codec.name
        self._codec = codec
        self._dtypes = frozenset(dtypes)

    def bound(self, raw_bytes: int) -> int:
        return _HEAD.size + raw_bytes

    def encode(self, chunk: memoryview, layout: KVLayout, tokens: int, into: memoryview) -> int:
        _expect(chunk, layout.chunk_bytes(tokens))
        if not chunk or layout.dtype not in self._dtypes:
            return self._unchanged(chunk, into)
        at = self.index_bytes(layout)
        sizes: list[int] = []
        for layer in range(layout.layers):
            start, stop = layout.layer_span(layer, tokens)
            pieces = self._part(chunk[start:stop], layer, layout, tokens)
            sizes.append(sum(map(len, pieces)))
            if at + sizes[-1] >= self.bound(len(chunk)):
                return self._unchanged(chunk, into)
            for piece in pieces:
                into[at : at + len(piece)] = piece
                at += len(piece)
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
        bounds = self._bounds(part, layer, layout, len(into))
        blocks = [part[start:stop] for start, stop in pairwise(bounds)]
        self._codec.decode(blocks, layer, layout, tokens, into)

    def _bounds(self, part: memoryview, layer: int, layout: KVLayout, raw: int) -> list[int]:
        """Return where the blocks of a part begin and end, of a layer of *raw* bytes."""
        count = self._codec.blocks(layer, layout)
        if layout.dtype not in self._dtypes or not _SIZE * count <= len(part) < raw:
            raise CorruptFrame(f"layer {layer}: {len(part)} bytes for one of {raw}")
        bounds = list(accumulate(_sizes(count).unpack_from(part), initial=_SIZE * count))
        if bounds[-1] != len(part):
            raise CorruptFrame(f"layer {layer}: {len(part)} bytes, and not {bounds[-1]}")
        return bounds

    def _part(self, raw: memoryview, layer: int, layout: KVLayout, tokens: int) -> list[memoryview]:
        """Return the bytes of a layer's part."""
        blocks = self._codec.encode(raw, layer, layout, tokens)
        sizes = [sum(map(len, block)) for block in blocks]
        if _SIZE * len(sizes) + sum(sizes) >= len(raw):
            return [raw]
        index = memoryview(_sizes(len(sizes)).pack(*sizes))
        return [index, *(piece for block in blocks for piece in block)]

    def _unchanged(self, chunk: memoryview, into: memoryview) -> int:
        end = self.bound(len(chunk))
        _HEAD.pack_into(into, 0, self._codec.magic, len(chunk), end)
        into[_HEAD.size : end] = chunk
        return end


@dataclass(frozen=True, slots=True)
class PlaneShape:
    """The position of a plane in a model, and its shape."""

    plane: Plane
    dtype: DType
    layer: int
    layers: int
    tokens: int

    @property
    def row(self) -> int:
        """The number of elements of one token."""
        return self.plane.heads * self.plane.width

    @property
    def size(self) -> int:
        """The bytes of the plane in a chunk."""
        return self.row * self.tokens * self.dtype.itemsize


class PlaneCodec(Protocol):
    """The coding of one plane of one layer. Knows no layouts and no lengths."""

    @property
    def name(self) -> str:
        """The name of the serde in frames."""
        ...

    @property
    def magic(self) -> bytes:
        """The first 8 bytes of payloads."""
        ...

    def encode(self, plane: memoryview, place: PlaneShape) -> Sequence[memoryview] | None:
        """Return the block for the bytes of a plane, in pieces; ``None`` if it cannot be coded."""
        ...

    def decode(self, block: memoryview, place: PlaneShape) -> memoryview:
        """Return the bytes of the plane.

        Raises:
            CorruptFrame: this is no block of such a plane.
        """
        ...


class PlaneSerde(LayerSerde):
    """A serde of a codec's planes. A block of a layer's part is one of them, in their order."""

    def __init__(self, codec: PlaneCodec, dtypes: Collection[DType] = tuple(DType)) -> None:
        super().__init__(_Planes(codec), dtypes)


class _Planes:
    """A codec of planes as one of layers."""

    def __init__(self, codec: PlaneCodec) -> None:
        self.name = codec.name
        self.magic = codec.magic
        self._codec = codec

    def blocks(self, layer: int, layout: KVLayout) -> int:
        return len(layout.planes[layer])

    def encode(
        self, raw: memoryview, layer: int, layout: KVLayout, tokens: int
    ) -> list[list[memoryview]]:
        blocks = []
        at = 0
        for place in _places(layer, layout, tokens):
            plane = raw[at : at + place.size]
            at += place.size
            blocks.append(self._block(plane, place))
        return blocks

    def decode(
        self, blocks: list[memoryview], layer: int, layout: KVLayout, tokens: int, into: memoryview
    ) -> None:
        at = 0
        for block, place in zip(blocks, _places(layer, layout, tokens), strict=True):
            raw = block if len(block) == place.size else self._codec.decode(block, place)
            into[at : at + place.size] = raw
            at += place.size

    def _block(self, plane: memoryview, place: PlaneShape) -> list[memoryview]:
        block = self._codec.encode(plane, place)
        return list(block) if block and sum(map(len, block)) < len(plane) else [plane]


def _places(layer: int, layout: KVLayout, tokens: int) -> list[PlaneShape]:
    planes = layout.planes[layer]
    return [PlaneShape(plane, layout.dtype, layer, layout.layers, tokens) for plane in planes]


def _sizes(count: int) -> Struct:
    return Struct(f"<{count}Q")


def _expect(buffer: memoryview, size: int) -> None:
    if len(buffer) != size:
        raise LayoutMismatch(f"{len(buffer)} bytes of KV, but the layout needs {size}")
