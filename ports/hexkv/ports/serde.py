"""The serde port: how a chunk's bytes are made smaller, or left alone."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from hexkv.ports.layout import KVLayout


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
