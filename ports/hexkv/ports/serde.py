"""The serde port: encodings that make a chunk's bytes smaller."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, runtime_checkable

from hexkv.ports.layout import KVLayout, Plane


@runtime_checkable
class Serde(Protocol):
    """Encodes layer-major KV into a payload, and decodes it.

    Called from I/O threads, several at once; buffers are the caller's and are not kept.
    Apart from layout and token count, the payload describes itself. Hostile payloads give
    an error, never a crash or an allocation that their length does not justify.
    """

    @property
    def name(self) -> str:
        """The name in frame headers: up to 32 ASCII characters, version included."""
        ...

    @property
    def lossless(self) -> bool:
        """True if decoding returns exactly the bytes that were encoded."""
        ...

    @property
    def per_layer(self) -> bool:
        """True if one layer can be decoded from a part of the payload."""
        ...

    def bound(self, raw_bytes: int) -> int:
        """Return the most bytes that :meth:`encode` writes for a chunk of *raw_bytes*."""
        ...

    def encode(self, chunk: memoryview, layout: KVLayout, tokens: int, into: memoryview) -> int:
        """Write the payload of *chunk* at the start of *into*. Return its bytes.

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
            CorruptFrame: *payload* is not a valid encoding for this shape.
        """
        ...


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
