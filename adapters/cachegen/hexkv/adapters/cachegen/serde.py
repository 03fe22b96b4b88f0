"""The common part of the lossy serdes: they code numbers, and declare the error of these.

KV with elements that are opaque bytes stays as it is: 8-bit floats, and blocks of engines that
describe themselves as opaque. So does a plane with an element that is not finite.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from hexkv.kernels.coding.floats import FLOATS, Floats, Words, widened
from hexkv.kernels.coding.pieces import Piece, raw
from hexkv.kernels.payloads import CodedPlane, DevicePart, PlaneOfPayload, RawPlane, ScaledPlane
from hexkv.plugins.support.payload import Place, PlaneSerde
from hexkv.ports import ErrorBound, KVLayout, Plane


class NumberCodec(Protocol):
    """Codes the numbers of one plane of one layer in fewer bytes."""

    @property
    def name(self) -> str:
        """The serde's name in frames."""
        ...

    @property
    def magic(self) -> bytes:
        """The first 8 bytes of payloads."""
        ...

    def error(self, place: Place) -> ErrorBound:
        """How far off a decoded element may be."""
        ...

    def encode(self, values: Floats, place: Place) -> Sequence[Piece] | None:
        """The block for ``[tokens, row]`` *values*; ``None`` if they cannot be coded."""
        ...

    def decode(self, block: memoryview, place: Place) -> Words:
        """The elements' bits, ``[tokens, row]``.

        Raises:
            CorruptFrame: this is no block of such a plane.
        """
        ...

    def on_device(self, block: memoryview, place: Place, start: int) -> CodedPlane | ScaledPlane:
        """The places of a *block*'s parts, in a payload in which it begins at *start*.

        Raises:
            CorruptFrame: this is no block of such a plane.
        """
        ...


class LossySerde(PlaneSerde):
    """A serde of a codec's blocks, and of raw ones.

    A device can decode its payloads as they are; see ``hexkv.kernels.payloads``.
    """

    lossless = False

    def __init__(self, codec: NumberCodec) -> None:
        super().__init__(_Widened(codec), FLOATS)
        self._codec_of_numbers = codec

    def error(self, layout: KVLayout, layer: int, plane: Plane) -> ErrorBound:
        if layout.dtype not in FLOATS:
            return ErrorBound(0.0)
        return self._codec_of_numbers.error(Place(plane, layout.dtype, layer, layout.layers, 1))

    def device_planes(
        self, payload: memoryview, layout: KVLayout, tokens: int, layers: range
    ) -> DevicePart:
        planes: list[PlaneOfPayload] = []
        blocks = self.blocks(payload, layout, tokens, layers)
        first, last = min(b[1] for b in blocks), max(b[2] for b in blocks)
        for place, start, end in blocks:
            if end - start == place.size:
                planes.append(RawPlane(start - first))
            else:
                block = payload[start:end]
                planes.append(self._codec_of_numbers.on_device(block, place, start - first))
        return DevicePart(first, last, planes)


class _Widened:
    """A codec of numbers as one of bytes."""

    def __init__(self, codec: NumberCodec) -> None:
        self.name = codec.name
        self.magic = codec.magic
        self._codec = codec

    def encode(self, plane: memoryview, place: Place) -> Sequence[memoryview] | None:
        values = widened(plane, place.dtype).reshape(place.tokens, place.row)
        pieces = self._codec.encode(values, place)
        return None if pieces is None else [raw(piece) for piece in pieces]

    def decode(self, block: memoryview, place: Place) -> memoryview:
        return raw(self._codec.decode(block, place))
