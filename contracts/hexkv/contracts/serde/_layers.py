"""Promises about the optional ability to decode one layer from a part of the payload."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from random import Random

import pytest

from hexkv.contracts.kit.cases import each
from hexkv.contracts.kit.promise import not_offered, promise
from hexkv.contracts.serde._base import (
    CONTENTS,
    GUARD,
    LAYOUTS,
    Chunk,
    SerdeCase,
    decoded,
    encoded,
    same,
)
from hexkv.contracts.serde._hostile import damage
from hexkv.ports import CorruptFrame, DType, KVLayout, LayerSerde, Serde


class Layers(SerdeCase):
    """For serdes that declare ``per_layer``, so that loading can begin with the first layer."""

    @pytest.fixture
    def layered(self, serde: Serde) -> LayerSerde:
        """The serde under test, if it declares ``per_layer``."""
        if not serde.per_layer:
            not_offered("per_layer")
        assert isinstance(serde, LayerSerde), "per_layer is declared, its methods are missing"
        return serde

    @each("content", CONTENTS)
    @each("shape", LAYOUTS)
    @promise(
        "serde.20",
        "gives each layer from its own part of the payload, as decoding all of them does",
        clause="LayerSerde.decode_layer",
        why="loading layer by layer would give other KV than loading all",
        hint="`layer_parts` sees the first index_bytes(layout) bytes only",
    )
    def test_a_layer_comes_from_its_part(
        self,
        serde: Serde,
        layered: LayerSerde,
        dtypes: Collection[DType],
        shape: str,
        content: str,
    ) -> None:
        for dtype in dtypes:
            layout, tokens = LAYOUTS[shape](dtype), 9
            raw = CONTENTS[content](layout, tokens)
            payload = encoded(serde, (raw, layout, tokens))
            whole = decoded(serde, payload, layout, tokens)
            parts = _parts(layered, payload, layout, tokens)
            assert len(parts) == layout.layers
            for layer, (start, end) in reversed(list(enumerate(parts))):
                first, last = layout.layer_span(layer, tokens)
                back = _layer(layered, payload[start:end], layer, layout, tokens)
                same(back, whole[first:last], f"layer {layer} of {shape} in {dtype}")

    @pytest.mark.thorough
    @each("size", [1 << 16, 1 << 24])
    @promise(
        "serde.25",
        "gives back layers of any size, of more than 64 KiB and of more than 16 MiB",
        clause="Serde.encode",
        why="chunks of a large model would be stored, and never be a hit",
        hint="64 bits for lengths and places, in tables of layers and of blocks, too",
    )
    def test_layers_may_be_large(self, serde: Serde, dtypes: Collection[DType], size: int) -> None:
        dtype = DType.BFLOAT16 if DType.BFLOAT16 in dtypes else min(dtypes)
        layout = KVLayout.attention(dtype, layers=2, heads=4, key_width=64)
        tokens = 2 * size // layout.token_bytes + 1
        half = layout.chunk_bytes(tokens) // 2
        raw = Random(2).randbytes(half) + bytes(half)  # noqa: S311 - nothing here is secret
        payload = encoded(serde, (raw, layout, tokens))
        back = decoded(serde, payload, layout, tokens)
        if serde.lossless:
            same(back, raw, f"layers of {half} bytes")
        if not (serde.per_layer and isinstance(serde, LayerSerde)):
            return
        for layer, (start, end) in enumerate(_parts(serde, payload, layout, tokens)):
            part = _layer(serde, payload[start:end], layer, layout, tokens)
            same(part, back[layer * half : (layer + 1) * half], f"layer {layer} of {half} bytes")

    @promise(
        "serde.21",
        "reads a part of the payload for a layer, not all of it",
        clause="LayerSerde.layer_parts",
        why="the first layer could not be used before the last has come",
        hint="parts of neighbouring layers do not overlap",
    )
    def test_parts_do_not_overlap(self, serde: Serde, layered: LayerSerde, chunk: Chunk) -> None:
        _, layout, tokens = chunk
        payload = encoded(serde, chunk)
        end = 0
        for start, stop in _parts(layered, payload, layout, tokens):
            assert end <= start <= stop <= len(payload)
            end = stop

    @promise(
        "serde.22",
        "calls a damaged index or part CorruptFrame, or gives bytes; nothing else",
        level="L2",
        clause="LayerSerde.decode_layer",
        why="damage in one layer would end the process",
    )
    def test_damaged_layers_are_corrupt(
        self, serde: Serde, layered: LayerSerde, chunk: Chunk
    ) -> None:
        _, layout, tokens = chunk
        payload = encoded(serde, chunk)
        for bad in damage(payload):
            with suppress(CorruptFrame):
                for start, end in _parts(layered, bad, layout, tokens):
                    assert 0 <= start <= end <= len(payload), "a part outside the payload"
        start, end = _parts(layered, payload, layout, tokens)[1]
        part = payload[start:end]
        for bad in damage(part):
            with suppress(CorruptFrame):
                _layer(layered, bad, 1, layout, tokens)
        for other in (b"", part[:-1], part + b"\0", payload):
            with pytest.raises(CorruptFrame):
                _layer(layered, other, 1, layout, tokens)


def _parts(
    serde: LayerSerde, payload: bytes, layout: KVLayout, tokens: int
) -> list[tuple[int, int]]:
    start = memoryview(payload[: serde.index_bytes(layout)])
    return serde.layer_parts(start, len(payload), layout, tokens)


def _layer(serde: LayerSerde, part: bytes, layer: int, layout: KVLayout, tokens: int) -> bytes:
    first, last = layout.layer_span(layer, tokens)
    room = bytearray(b"\xa5") * (last - first + 2 * GUARD)
    with memoryview(room) as view:
        into = view[GUARD : GUARD + last - first]
        serde.decode_layer(memoryview(part), layer, layout, tokens, into)
    assert set(room[:GUARD] + room[-GUARD:]) == {0xA5}, "bytes beside the layer were written"
    return bytes(room[GUARD:-GUARD])
