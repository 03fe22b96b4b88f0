"""Promises about the error of decoded elements: at most what the serde declares."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection
from math import inf
from random import Random
from struct import pack

import pytest

from hexkv.contracts.kit.cases import each
from hexkv.contracts.kit.promise import not_offered, promise
from hexkv.contracts.serde._base import CONTENTS, LAYOUTS, SerdeCase, decoded, encoded, plausible
from hexkv.contracts.serde._nearness import FLOATS, beyond
from hexkv.ports import DType, ErrorBound, KVLayout, LossySerde, Plane, Serde


def _element(number: float, dtype: DType) -> bytes:
    """*number* as an element; the dtype's largest number if it is too large."""
    if dtype is DType.BFLOAT16:
        return pack("<f", number)[2:]
    if dtype is DType.FLOAT32:
        return pack("<f", number)
    return pack("<e", max(-65504.0, min(65504.0, number)))


def _outliers(layout: KVLayout, tokens: int, random: Random) -> bytes:
    """Elements around zero; some channels and some tokens far larger; a few of any size."""
    kinds = [0.0, 1e-40, 1e-6, 0.1, 1.0, 300.0, 3e38]
    elements = bytearray()
    for planes in layout.planes:
        for plane in planes:
            row = plane.heads * plane.width
            scales = [
                random.choice(kinds[1:-1]) if random.random() < 0.2 else 1.0 for _ in range(row)
            ]
            for _ in range(tokens):
                loud = random.choice(kinds) if random.random() < 0.2 else 1.0
                for scale in scales:
                    size = min(3e38, max(-3e38, random.gauss(0, 1) * scale * loud))
                    elements += _element(size, layout.dtype)
    return bytes(elements)


def _poisoned(layout: KVLayout, tokens: int, random: Random) -> bytes:
    """Plausible elements, with a few that are not finite."""
    raw = bytearray(plausible(layout, tokens, random.randrange(1 << 30)))
    size = layout.dtype.itemsize
    for bad in (inf, -inf, float("nan")):
        at = random.randrange(len(raw) // size) * size
        raw[at : at + size] = _element(bad, layout.dtype) if bad == bad else b"\xff" * size
    return bytes(raw)


def _tiny(layout: KVLayout, tokens: int, random: Random) -> bytes:
    """Elements near the smallest that the dtype has: their scales underflow."""
    size = layout.dtype.itemsize
    units = array("B", bytes(layout.chunk_bytes(tokens)))
    for at in range(0, len(units), size):
        units[at] = random.choice((0, 0, 1, 2, 3, 255))
        units[at + size - 1] = random.choice((0, 0x80))
    return units.tobytes()


_LARGEST = {
    DType.BFLOAT16: b"\x7f\x7f",
    DType.FLOAT16: b"\xff\x7b",
    DType.FLOAT32: b"\xff\xff\x7f\x7f",
}
"""The largest finite element of a dtype."""


def _largest(layout: KVLayout, tokens: int, random: Random) -> bytes:
    """The largest finite elements, of either sign, some of zero, and one below the largest."""
    largest = _LARGEST[layout.dtype]
    below = bytes([largest[0] - 1]) + largest[1:]
    some = [largest, largest[:-1] + bytes([largest[-1] | 0x80]), below, bytes(len(largest))]
    return b"".join(random.choices(some, k=layout.chunk_bytes(tokens) // len(largest)))


_MADE: dict[str, Callable[[KVLayout, int, Random], bytes]] = {
    "outliers": _outliers,
    "infinities and NaN": _poisoned,
    "hardly more than zero": _tiny,
    "the largest finite numbers": _largest,
}


class _Exact:
    """The bound that a lossless serde implies: no error."""

    def error(self, layout: KVLayout, layer: int, plane: Plane) -> ErrorBound:
        del layout, layer, plane
        return ErrorBound(0.0)


class Bounds(SerdeCase):
    """The maximum error of decoded elements, which a user may rely on."""

    @pytest.fixture
    def bounded(self, serde: Serde) -> LossySerde:
        """The declared bound of the serde under test: lossless, or a maximum error."""
        if serde.lossless:
            return _Exact()
        if not isinstance(serde, LossySerde):
            not_offered("a bound on its error")
        return serde

    @each("tokens", [1, 3, 20])
    @each("content", [*CONTENTS, *_MADE])
    @promise(
        "serde.23",
        "brings no element back further off than it declares, and every other bit as it was",
        clause="LossySerde.error",
        why="a model that gets other KV than the serde answers for gives other answers",
        hint="zeros, constants, outliers and subnormal scales; leave a layer with NaN as it is",
    )
    def test_no_element_is_further_off_than_declared(
        self,
        serde: Serde,
        bounded: LossySerde,
        dtypes: Collection[DType],
        content: str,
        tokens: int,
    ) -> None:
        for dtype in dtypes:
            made = _MADE.get(content)
            if made is not None and dtype not in FLOATS:
                continue
            for shape in LAYOUTS.values():
                layout = shape(dtype)
                for seed in range(3 if made else 1):
                    random = Random(seed)  # noqa: S311 - nothing here is secret
                    raw = (
                        made(layout, tokens, random) if made else CONTENTS[content](layout, tokens)
                    )
                    back = decoded(serde, encoded(serde, (raw, layout, tokens)), layout, tokens)
                    wrong = beyond(bounded, raw, back, layout)
                    assert not wrong, f"{dtype}, {tokens} tokens: {wrong}"

    @promise(
        "serde.24",
        "declares bounds that are numbers, not negative, and less than all of it",
        clause="ErrorBound.share",
        why="a bound of 1 is kept by a serde that gives zeros",
    )
    def test_a_bound_says_something(self, bounded: LossySerde, dtypes: Collection[DType]) -> None:
        for dtype in dtypes:
            for shape in LAYOUTS.values():
                layout = shape(dtype)
                for layer, planes in enumerate(layout.planes):
                    for plane in planes:
                        bound = bounded.error(layout, layer, plane)
                        assert 0 <= bound.share < 1, f"{plane.name} in {dtype}: {bound}"
