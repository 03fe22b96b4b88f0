"""The serde port: encodings that make a chunk's bytes smaller."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from hexkv.ports.layout import KVLayout


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

        Equal chunks of one layout have equal payloads, on each thread: no salt, no time.

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
