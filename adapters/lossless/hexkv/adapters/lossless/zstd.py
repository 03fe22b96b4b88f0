"""The serde ``zstd``: each layer's byte planes, each a zstd frame (RFC 8878) or as it was.

A payload of format 1 is one of :mod:`hexkv.plugins.support.payload`. A layer's blocks are its byte
planes, the least significant first: a zstd frame that has the length of its content, or the
plane itself, which is recognised by its length: as many bytes as there are elements.
"""

from __future__ import annotations

from threading import local

import numpy as np
import zstandard

from hexkv.adapters.lossless._planes import ByteArray, join, split
from hexkv.plugins.support.payload import LayerSerde
from hexkv.ports import CorruptFrame, KVLayout

_WORTH = 64
"""A plane stays as it is unless it shrinks by one part in this: raw planes decode for free."""

_LEAST_WINDOW = 1024
"""The smallest window there is, even for a frame with less content (RFC 8878, 3.1.1.1.2)."""


class _Worker(local):
    """The objects that one thread uses again and again: zstd's contexts, and room for planes."""

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

    def room(self, size: int) -> ByteArray:
        """At least *size* bytes, until this thread's next call."""
        if len(self._room) < size:
            self._room = np.empty(size, np.uint8)
        return self._room


class ZstdSerde(LayerSerde):
    """Every bit comes back."""

    def __init__(self, level: int = 0) -> None:
        super().__init__(_Zstd(level))


class _Zstd:
    name = "zstd-planes/1"
    magic = b"hexkvzp\x01"

    def __init__(self, level: int) -> None:
        self._worker = _Worker(level)

    def blocks(self, layer: int, layout: KVLayout) -> int:
        del layer
        return layout.dtype.itemsize

    def encode(
        self, raw: memoryview, layer: int, layout: KVLayout, tokens: int
    ) -> list[list[memoryview]]:
        del layer, tokens
        blocks = []
        for plane in split(raw, layout.dtype.itemsize, self._worker.room(len(raw))):
            frame = self._worker.compressor.compress(plane)
            shrunk = len(frame) < len(plane) - len(plane) // _WORTH
            blocks.append([memoryview(frame) if shrunk else plane])
        return blocks

    def decode(
        self, blocks: list[memoryview], layer: int, layout: KVLayout, tokens: int, into: memoryview
    ) -> None:
        del layer, tokens
        elements = len(into) // layout.dtype.itemsize
        join([self._plane(block, elements) for block in blocks], into)

    def _plane(self, piece: memoryview, elements: int) -> memoryview:
        if len(piece) == elements:
            return piece
        if len(piece) > elements:
            raise CorruptFrame("a plane that grew")
        try:
            frame = zstandard.get_frame_parameters(piece)
            # zstd would trust both numbers, and allocate as much.
            if frame.content_size != elements or frame.window_size > max(elements, _LEAST_WINDOW):
                raise CorruptFrame("a plane of another length")
            plane = self._worker.decompressor.decompress(piece, allow_extra_data=False)
        except zstandard.ZstdError as error:
            raise CorruptFrame(f"a damaged plane: {error}") from error
        return memoryview(plane)
