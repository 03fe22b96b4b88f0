"""A device in plain memory, whose KV identifies the tokens that it was computed from."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256

from hexkv.ports import Finished, InvalidRequest, KVLayout, Span, Transfer


class HeapKV:
    """A window on KV memory made of bytearrays, one per layer and plane.

    :meth:`compute` plays the model: the KV of a token depends on the whole prefix, on the
    layer and on the plane, as in a real one, so that any mix-up shows.
    """

    background = False
    """See :class:`hexkv.ports.SupportsBackground`: may be set to True."""

    def __init__(self, layout: KVLayout, tokens: int) -> None:
        self.layout = layout
        self.tokens = tokens
        self.memory = [
            [bytearray(tokens * self._row(layer, plane)) for plane in range(len(planes))]
            for layer, planes in enumerate(layout.planes)
        ]

    def compute(self, tokens: Sequence[int], *, seed: str = "") -> HeapKV:
        """Fill every position with the KV of *tokens*. *seed* stands for the model's weights."""
        prefix = sha256(seed.encode())
        for position, token in enumerate(tokens):
            prefix.update(int(token).to_bytes(4, "little"))
            for layer, planes in enumerate(self.memory):
                for plane, memory in enumerate(planes):
                    row = self._row(layer, plane)
                    value = sha256(prefix.digest() + bytes([layer, plane])).digest()
                    start = position * row
                    memory[start : start + row] = (value * (row // len(value) + 1))[:row]
        return self

    def agrees(self, other: HeapKV, end: int, start: int = 0) -> bool:
        """True if both hold the same KV at positions ``[start, end)``."""
        for layer, planes in enumerate(self.memory):
            for plane, memory in enumerate(planes):
                row = self._row(layer, plane)
                part = slice(start * row, end * row)
                if memory[part] != other.memory[layer][plane][part]:
                    return False
        return True

    def gather(self, spans: Sequence[Span], layers: range | None = None) -> Transfer:
        chosen = self._checked(spans, layers)
        if any(span.data.readonly for span in spans):
            raise InvalidRequest("a chunk's memory is read-only")
        for start, end, data in spans:
            for (a, b), memory, row in self._places(end - start, chosen):
                data[a:b] = memory[start * row : end * row]
        return Finished()

    def scatter(self, spans: Sequence[Span], layers: range | None = None) -> Transfer:
        chosen = self._checked(spans, layers)
        for start, end, data in spans:
            for (a, b), memory, row in self._places(end - start, chosen):
                memory[start * row : end * row] = data[a:b]
        return Finished()

    def _checked(self, spans: Sequence[Span], layers: range | None) -> range:
        """Check the request and return the layers to move."""
        chosen = range(self.layout.layers) if layers is None else layers
        if chosen.step != 1 or not 0 <= chosen.start <= chosen.stop <= self.layout.layers:
            raise InvalidRequest(f"{chosen} is no run of {self.layout.layers} layers")
        for start, end, data in spans:
            if not 0 <= start <= end <= self.tokens:
                raise InvalidRequest(f"[{start}, {end}) is not within {self.tokens} tokens")
            if not data.c_contiguous or data.nbytes != self.layout.chunk_bytes(end - start):
                raise InvalidRequest(f"{data.nbytes} bytes for a chunk of {end - start} tokens")
        return chosen

    def _row(self, layer: int, plane: int) -> int:
        shape = self.layout.planes[layer][plane]
        return shape.heads * shape.width * self.layout.dtype.itemsize

    def _places(self, tokens: int, layers: range) -> list[tuple[tuple[int, int], bytearray, int]]:
        """For each plane: its range in a chunk of *tokens*, its memory, its bytes per token."""
        places = []
        for layer in layers:
            at, _ = self.layout.layer_span(layer, tokens)
            for plane, memory in enumerate(self.memory[layer]):
                row = self._row(layer, plane)
                places.append(((at, at + tokens * row), memory, row))
                at += tokens * row
        return places
