"""Serdes as the core uses them: all their answers are checked here.

Like stores they are foreign code. A serde with an invalid answer has failed, which its callers
expect.
"""

from __future__ import annotations

from typing import Any

from hexkv.ports import ConfigError, KVLayout, LayerSerde, Serde, StoreError

_NAME_BYTES = 32
_MOST_INDEX = 1 << 20


class CheckedSerde:
    """A serde whose every answer has the type and the range that the port defines.

    Raises:
        ConfigError: its name does not fit into a frame.
    """

    __slots__ = ("_inner", "_layers", "name")

    def __init__(self, inner: Serde) -> None:
        name = inner.name
        if type(name) is not str or not (name.isascii() and name.isprintable() and name):
            raise ConfigError(f"a serde's name is no printable ASCII: {_kind(name)}")
        if len(name) > _NAME_BYTES:
            raise ConfigError(f"serde {name!r}: frames have {_NAME_BYTES} bytes for a name")
        self.name = name
        self._inner = inner
        layered = inner.per_layer is True and isinstance(inner, LayerSerde)
        self._layers: LayerSerde | None = inner if layered else None  # type: ignore[assignment]

    @classmethod
    def of(cls, serde: Serde) -> CheckedSerde:
        """Return *serde*, wrapped unless it already is."""
        return serde if isinstance(serde, CheckedSerde) else cls(serde)

    @property
    def inner(self) -> Serde:
        """The serde itself, for a device that decodes in its place."""
        return self._inner

    @property
    def lossless(self) -> bool:
        return self._inner.lossless is True

    @property
    def per_layer(self) -> bool:
        """True if it can decode one layer, and implements the methods for this."""
        return self._layers is not None

    def bound(self, raw_bytes: int) -> int:
        # This size is allocated: a bound far above the chunk's size would take all memory.
        return self._size("bound", self._inner.bound(raw_bytes), 8 * raw_bytes + _MOST_INDEX)

    def encode(self, chunk: memoryview, layout: KVLayout, tokens: int, into: memoryview) -> int:
        used = self._inner.encode(chunk, layout, tokens, into)
        return self._size("encode", used, len(into))

    def decode(self, payload: memoryview, layout: KVLayout, tokens: int, into: memoryview) -> None:
        answer: Any = self._inner.decode(payload, layout, tokens, into)  # type: ignore[func-returns-value]
        self._nothing("decode", answer)

    def index_bytes(self, layout: KVLayout) -> int:
        size = self._layer().index_bytes(layout)
        return self._size("index_bytes", size, _MOST_INDEX)

    def layer_parts(
        self, start: memoryview, payload_bytes: int, layout: KVLayout, tokens: int
    ) -> list[tuple[int, int]]:
        parts: Any = self._layer().layer_parts(start, payload_bytes, layout, tokens)
        if type(parts) not in (list, tuple) or len(parts) != layout.layers:
            raise StoreError(f"serde {self.name} answered layer_parts with {_kind(parts)}")
        for part in parts:
            if not isinstance(part, tuple) or len(part) != 2:
                raise StoreError(f"serde {self.name}: a layer's part is {_kind(part)}")
            first = self._size("layer_parts", part[0], payload_bytes)
            if first > self._size("layer_parts", part[1], payload_bytes):
                raise StoreError(f"serde {self.name}: a layer's part ends before it starts")
        return list(parts)

    def decode_layer(
        self, part: memoryview, layer: int, layout: KVLayout, tokens: int, into: memoryview
    ) -> None:
        answer: Any = self._layer().decode_layer(part, layer, layout, tokens, into)  # type: ignore[func-returns-value]
        self._nothing("decode_layer", answer)

    def _layer(self) -> LayerSerde:
        if self._layers is None:
            raise StoreError(f"serde {self.name} decodes no layers")
        return self._layers

    def _size(self, what: str, size: object, most: int) -> int:
        if type(size) is not int:
            raise StoreError(f"serde {self.name} answered {what} with {_kind(size)}")
        if not 0 <= size <= most:
            raise StoreError(f"serde {self.name} answered {what} with {size}, not 0 to {most}")
        return size

    def _nothing(self, what: str, answer: object) -> None:
        if answer is not None:
            raise StoreError(f"serde {self.name} answered {what} with {_kind(answer)}")


def _kind(what: object) -> str:
    return f"a {type(what).__qualname__}"
