"""The common part of the lossy serdes: they code numbers, and declare the error of these.

KV with elements that are opaque bytes stays as it is: 8-bit floats, and blocks of engines that
describe themselves as opaque. So does a plane with an element that is not finite.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from hexkv.kernels.coding.floats import FLOATS, Floats, Words, widened
from hexkv.kernels.coding.pieces import Piece, raw
from hexkv.kernels.payloads import Numbers, PlaneForm, plane_blocks
from hexkv.plugins.support.payload import PlaneSerde, PlaneShape
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

    def error(self, place: PlaneShape) -> ErrorBound:
        """How far off a decoded element may be."""
        ...

    def encode(self, values: Floats, place: PlaneShape) -> Sequence[Piece] | None:
        """The block for ``[tokens, row]`` *values*; ``None`` if they cannot be coded."""
        ...

    def decode(self, block: memoryview, place: PlaneShape) -> Words:
        """The elements' bits, ``[tokens, row]``.

        Raises:
            CorruptFrame: this is no block of such a plane.
        """
        ...

    def device_form(self, plane: Plane) -> PlaneForm:
        """How a device reads the blocks of *plane*."""
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
        return self._codec_of_numbers.error(
            PlaneShape(plane, layout.dtype, layer, layout.layers, 1)
        )

    def device_forms(self, layout: KVLayout) -> Sequence[PlaneForm]:
        codec = self._codec_of_numbers
        return [codec.device_form(plane) for planes in layout.planes for plane in planes]

    def device_blocks(
        self,
        payloads: Sequence[memoryview],
        layout: KVLayout,
        tokens: Sequence[int],
        layers: range,
    ) -> Numbers:
        return plane_blocks(payloads, self._codec_of_numbers.magic, layout, tokens, layers)


class _Widened:
    """A codec of numbers as one of bytes."""

    def __init__(self, codec: NumberCodec) -> None:
        self.name = codec.name
        self.magic = codec.magic
        self._codec = codec

    def encode(self, plane: memoryview, place: PlaneShape) -> Sequence[memoryview] | None:
        values = widened(plane, place.dtype).reshape(place.tokens, place.row)
        pieces = self._codec.encode(values, place)
        return None if pieces is None else [raw(piece) for piece in pieces]

    def decode(self, block: memoryview, place: PlaneShape) -> memoryview:
        return raw(self._codec.decode(block, place))
