"""The serde port: how a chunk's bytes are made smaller, or left alone."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, runtime_checkable

from hexkv.ports.layout import KVLayout, Plane


@runtime_checkable
class Serde(Protocol):
    """Turns layer-major KV into a payload and back.

    Called from I/O threads, several at once; buffers are the caller's and are not kept.
    The payload describes itself beyond what layout and token count say. Hostile payloads
    give an error, never a crash or an allocation that their length does not justify.
    """

    @property
    def name(self) -> str:
        """What frame headers call it: up to 32 ASCII characters, version included."""
        ...

    @property
    def lossless(self) -> bool:
        """Whether decoding gives the very bytes that were encoded."""
        ...

    @property
    def per_layer(self) -> bool:
        """Whether one layer can be decoded from a part of the payload."""
        ...

    def bound(self, raw_bytes: int) -> int:
        """The most bytes :meth:`encode` writes for a chunk of *raw_bytes*."""
        ...

    def encode(self, chunk: memoryview, layout: KVLayout, tokens: int, into: memoryview) -> int:
        """Write the payload of *chunk* at the start of *into*. How many bytes it has.

        Args:
            chunk: ``layout.chunk_bytes(tokens)`` bytes, ``[layer][plane][token][head*width]``.
            layout: shape and dtype of the chunk.
            tokens: tokens in the chunk.
            into: at least ``bound(len(chunk))`` bytes.
        """
        ...

    def decode(self, payload: memoryview, layout: KVLayout, tokens: int, into: memoryview) -> None:
        """Fill *into*, ``layout.chunk_bytes(tokens)`` bytes, from *payload*.

        Raises:
            CorruptFrame: *payload* is not what :meth:`encode` writes for this shape.
        """
        ...


@runtime_checkable
class LayerSerde(Protocol):
    """What a serde that declares ``per_layer`` has besides: one layer from a part of a payload."""

    def index_bytes(self, layout: KVLayout) -> int:
        """How many bytes at a payload's start say where its layers lie."""
        ...

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
        ...

    def decode_layer(
        self, part: memoryview, layer: int, layout: KVLayout, tokens: int, into: memoryview
    ) -> None:
        """Fill *into* with one layer of a chunk, from that layer's part of the payload.

        Raises:
            CorruptFrame: *part* is not what ``encode`` writes for this layer.
        """
        ...


class ScaleGroup(StrEnum):
    """Which elements of one plane in one layer of a chunk share a scale."""

    HEAD = "head"
    """Those of one head of one token."""

    ROW = "row"
    """Those of all heads of one token."""

    CHANNEL = "channel"
    """Those at one place of all tokens."""


@dataclass(frozen=True, slots=True)
class ErrorBound:
    """How far a decoded element may be from the encoded one.

    At most ``share`` of the largest finite magnitude among its peers, and one of the
    smallest steps that the dtype has. Infinities and NaN come back bit for bit.
    """

    share: float
    """Rounding to the dtype included; zero for elements that come back as they were."""

    peers: ScaleGroup = ScaleGroup.ROW


@runtime_checkable
class LossySerde(Protocol):
    """What a serde that is not lossless has besides: a bound that every element keeps."""

    def error(self, layout: KVLayout, layer: int, plane: Plane) -> ErrorBound:
        """The bound for *plane* of *layer*; :class:`ErrorBound` with share 0 where it is exact."""
        ...
