"""The serde ``zstd``: each layer's byte planes, each a zstd frame (RFC 8878) or as it was.

A payload of format 1; all numbers are little-endian and count bytes::

    0   8   magic, the last byte of which is the format's version
    8   8   of the chunk
    16  8   of the payload
    24  8   of each layer's part, one after another
    ..      the parts, in layer order

    part:   8 of each plane, the least significant first; then the planes in that order
    plane:  a zstd frame that says how long its content is

On each of the three levels what would not have shrunk stands there unchanged, and that is
told by its length: a payload of ``24 + chunk`` bytes goes on with the chunk itself, a part as
long as its layer is the layer, a plane as long as there are elements is the plane. What is
longer than that, or does not add up, is corrupt. So no number in a payload is ever believed
before it was compared to what the layout says.
"""

from __future__ import annotations

from itertools import accumulate, pairwise
from struct import Struct
from threading import local

import numpy as np
import zstandard

from hexkv.adapters.lossless._planes import Room, join, split
from hexkv.ports import CorruptFrame, KVLayout, LayoutMismatch

_HEAD = Struct("<8sQQ")
_MAGIC = b"hexkvzp\x01"
_SIZE = 8

_WORTH = 64
"""A plane stays as it is unless it shrinks by one part in so many: raw planes decode for free."""

_LEAST_WINDOW = 1024
"""The smallest window there is, even for a frame with less content (RFC 8878, 3.1.1.1.2)."""


class _Worker(local):
    """What one thread uses again and again: zstd's contexts, and room for planes."""

    def __init__(self, level: int) -> None:
        if level:
            self.compressor = zstandard.ZstdCompressor(level)
        else:
            # Exponents mostly repeat by accident. A table of 64 entries rather than 8,192 skips
            # these accidents, leaves the entropy coder to work, and is three times as fast.
            fast = zstandard.ZstdCompressionParameters.from_level(1, hash_log=6, min_match=7)
            self.compressor = zstandard.ZstdCompressor(compression_params=fast)
        self.decompressor = zstandard.ZstdDecompressor()
        self._room = np.empty(0, np.uint8)

    def room(self, size: int) -> Room:
        """At least *size* bytes, until this thread's next call."""
        if len(self._room) < size:
            self._room = np.empty(size, np.uint8)
        return self._room


class ZstdSerde:
    """Every bit comes back. One layer can be decoded from its part of the payload."""

    name = "zstd-planes/1"
    lossless = True
    per_layer = True

    def __init__(self, level: int = 0) -> None:
        self._worker = _Worker(level)

    def bound(self, raw_bytes: int) -> int:
        return _HEAD.size + raw_bytes

    def encode(self, chunk: memoryview, layout: KVLayout, tokens: int, into: memoryview) -> int:
        _expect(chunk, layout.chunk_bytes(tokens))
        end = self.bound(len(chunk))
        at = self.index_bytes(layout)
        sizes = []
        for layer in range(layout.layers):
            start, stop = layout.layer_span(layer, tokens)
            pieces = self._part(chunk[start:stop], layout.dtype.itemsize)
            sizes.append(sum(map(len, pieces)))
            if at + sizes[-1] >= end:
                _HEAD.pack_into(into, 0, _MAGIC, len(chunk), end)
                into[_HEAD.size : end] = chunk
                return end
            for piece in pieces:
                into[at : at + len(piece)] = piece
                at += len(piece)
        _HEAD.pack_into(into, 0, _MAGIC, len(chunk), at)
        _sizes(layout.layers).pack_into(into, _HEAD.size, *sizes)
        return at

    def decode(self, payload: memoryview, layout: KVLayout, tokens: int, into: memoryview) -> None:
        _expect(into, layout.chunk_bytes(tokens))
        parts = self.layer_parts(payload, len(payload), layout, tokens)
        for layer, (start, stop) in enumerate(parts):
            first, last = layout.layer_span(layer, tokens)
            self.decode_layer(payload[start:stop], layer, layout, tokens, into[first:last])

    def index_bytes(self, layout: KVLayout) -> int:
        """How many bytes at a payload's start say where its layers lie."""
        return _HEAD.size + _SIZE * layout.layers

    def layer_parts(
        self, start: memoryview, payload_bytes: int, layout: KVLayout, tokens: int
    ) -> list[tuple[int, int]]:
        """``(start, end)`` of each layer's part in a payload, from its first bytes alone.

        Args:
            start: the payload's first ``index_bytes(layout)`` bytes, or all if it has fewer.
            payload_bytes: bytes of the whole payload.
            layout: shape and dtype of the chunk.
            tokens: tokens in the chunk.

        Raises:
            CorruptFrame: this is no payload of such a chunk.
        """
        raw_bytes = layout.chunk_bytes(tokens)
        if len(start) < _HEAD.size:
            raise CorruptFrame(f"a payload of {payload_bytes} bytes")
        if _HEAD.unpack_from(start) != (_MAGIC, raw_bytes, payload_bytes):
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
        """Fill *into* with one layer of a chunk, from that layer's part of the payload.

        Raises:
            CorruptFrame: *part* is not what :meth:`encode` writes for this layer.
        """
        first, last = layout.layer_span(layer, tokens)
        _expect(into, last - first)
        if len(part) == len(into):
            into[:] = part
            return
        itemsize = layout.dtype.itemsize
        at = _SIZE * itemsize
        if not at <= len(part) < len(into):
            raise CorruptFrame(f"layer {layer}: {len(part)} bytes for one of {len(into)}")
        bounds = list(accumulate(_sizes(itemsize).unpack_from(part), initial=at))
        if bounds[-1] != len(part):
            raise CorruptFrame(f"layer {layer}: {len(part)} bytes, and not {bounds[-1]}")
        elements = len(into) // itemsize
        planes = [self._plane(part[start:end], elements) for start, end in pairwise(bounds)]
        join(planes, into)

    def _part(self, layer: memoryview, itemsize: int) -> list[memoryview]:
        """The bytes of a layer's part, in pieces that hold until this thread's next call."""
        pieces = []
        for plane in split(layer, itemsize, self._worker.room(len(layer))):
            frame = self._worker.compressor.compress(plane)
            shrunk = len(frame) < len(plane) - len(plane) // _WORTH
            pieces.append(memoryview(frame) if shrunk else plane)
        sizes = _sizes(itemsize).pack(*map(len, pieces))
        if len(sizes) + sum(map(len, pieces)) >= len(layer):
            return [layer]
        return [memoryview(sizes), *pieces]

    def _plane(self, piece: memoryview, elements: int) -> memoryview:
        if len(piece) == elements:
            return piece
        if len(piece) > elements:
            raise CorruptFrame("a plane that grew")
        try:
            frame = zstandard.get_frame_parameters(piece)
            # zstd would believe both numbers, and allocate what they say.
            if frame.content_size != elements or frame.window_size > max(elements, _LEAST_WINDOW):
                raise CorruptFrame("a plane of another length")
            plane = self._worker.decompressor.decompress(piece, allow_extra_data=False)
        except zstandard.ZstdError as error:
            raise CorruptFrame(f"a damaged plane: {error}") from error
        return memoryview(plane)


def _sizes(count: int) -> Struct:
    return Struct(f"<{count}Q")


def _expect(buffer: memoryview, size: int) -> None:
    if len(buffer) != size:
        raise LayoutMismatch(f"{len(buffer)} bytes of KV, where the layout says {size}")
