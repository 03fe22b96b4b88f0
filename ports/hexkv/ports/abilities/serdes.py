"""Optional abilities of serdes: to decode single layers, and to bound the error of each element."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, runtime_checkable

from hexkv.ports.layout import KVLayout, Plane


@runtime_checkable
class LayerSerde(Protocol):
    """A serde with ``per_layer`` True, which decodes one layer from a part of a payload."""

    def index_bytes(self, layout: KVLayout) -> int:
        """Return the bytes of the index of layers at a payload's start."""
        ...

    def layer_parts(
        self, start: memoryview, payload_bytes: int, layout: KVLayout, tokens: int
    ) -> list[tuple[int, int]]:
        """Return ``(start, end)`` of each layer's part in a payload, from its first bytes alone.

        Args:
            start: the payload's first ``index_bytes(layout)`` bytes, or all if it has fewer.
            payload_bytes: bytes of the whole payload.
            layout: shape and dtype of the chunk.
            tokens: tokens in the chunk.

        Raises:
            CorruptFrame: *start* does not begin a valid payload of such a chunk.
        """
        ...

    def decode_layer(
        self, part: memoryview, layer: int, layout: KVLayout, tokens: int, into: memoryview
    ) -> None:
        """Fill *into* with one layer of a chunk, from that layer's part of the payload.

        Raises:
            CorruptFrame: *part* is not a valid encoding of this layer.
        """
        ...


class ScaleGroup(StrEnum):
    """The elements of one plane in one layer of a chunk that share a scale."""

    HEAD = "head"
    """The elements of one head of one token."""

    ROW = "row"
    """The elements of all heads of one token."""

    CHANNEL = "channel"
    """The elements at one place of all tokens."""


@dataclass(frozen=True, slots=True)
class ErrorBound:
    """The largest difference between a decoded element and the encoded one.

    At most ``share`` of the largest finite magnitude among its peers, plus one of the
    smallest steps of the dtype. Infinities and NaN are preserved bit for bit.
    """

    share: float
    """Includes rounding to the dtype; zero for elements that are preserved."""

    peers: ScaleGroup = ScaleGroup.ROW


@runtime_checkable
class LossySerde(Protocol):
    """A serde that is not lossless, with an error bound for every element."""

    def error(self, layout: KVLayout, layer: int, plane: Plane) -> ErrorBound:
        """Return the bound for *plane* of *layer*; with share 0 if that is exact."""
        ...
