"""The common part of the serde contract: the fixtures, the chunks and the calls."""

from __future__ import annotations

from collections.abc import Callable, Collection
from random import Random

import pytest

from hexkv.contracts.kit.whole import Whole
from hexkv.contracts.serde._nearness import beyond
from hexkv.ports import DType, KVLayout, LayerGroup, LossySerde, Plane, Serde

Close = Callable[[bytes, bytes, KVLayout], bool]
"""True if decoded bytes, the second argument, are as near to a finite chunk as declared."""

Chunk = tuple[bytes, KVLayout, int]
"""Bytes, their layout, and their number of tokens."""

Bytes = bytes | bytearray | memoryview

GUARD = 64
"""Guard bytes before and behind each buffer, which must not change."""


def _mixed(dtype: DType) -> KVLayout:
    """Layers that differ, as in models with sliding windows; odd widths."""
    groups = (
        LayerGroup(1, (Plane("k", 1, 3), Plane("v", 1, 5))),
        LayerGroup(2, (Plane("k", 2, 16), Plane("v", 2, 16))),
    )
    return KVLayout(dtype, groups)


LAYOUTS: dict[str, Callable[[DType], KVLayout]] = {
    "attention": lambda dtype: KVLayout.attention(
        dtype, layers=3, heads=2, key_width=16, value_width=8
    ),
    "latent": lambda dtype: KVLayout.latent(dtype, layers=2, latent_width=33, rope_width=4),
    "mixed": _mixed,
}

_HIGH_BYTES = bytes([0x38, 0x3C, 0xBC, 0xB8] * 16 + [0x37, 0x39, 0x36, 0x3B] * 24 + [0x30] * 96)


def plausible(layout: KVLayout, tokens: int, seed: int = 0) -> bytes:
    """A chunk of finite elements: few exponents, noise below them, as real KV has."""
    random = Random(seed)  # noqa: S311 - nothing here is secret
    size, itemsize = layout.chunk_bytes(tokens), layout.dtype.itemsize
    chunk = bytearray(random.randbytes(size))
    chunk[itemsize - 1 :: itemsize] = random.randbytes(size // itemsize).translate(_HIGH_BYTES)
    return bytes(chunk)


def repeated(element: bytes) -> Callable[[KVLayout, int], bytes]:
    def fill(layout: KVLayout, tokens: int) -> bytes:
        size, itemsize = layout.chunk_bytes(tokens), layout.dtype.itemsize
        return element[-itemsize:] * (size // itemsize)

    return fill


def _not_numbers(layout: KVLayout, tokens: int) -> bytes:
    """Infinities, NaN with and without payload, both zeros, subnormal numbers."""
    size, itemsize = layout.chunk_bytes(tokens), layout.dtype.itemsize
    ends = [(low, high) for high in b"\x7f\xff\x7c\xfc\x7e\x00\x80" for low in b"\x00\x80\xff\x01"]
    elements = (bytes([low] * (itemsize - 1) + [high]) for low, high in ends)
    return (b"".join(elements) * (size // itemsize // len(ends) + 1))[:size]


def noise(layout: KVLayout, tokens: int) -> bytes:
    return Random(1).randbytes(layout.chunk_bytes(tokens))  # noqa: S311 - nothing here is secret


CONTENTS: dict[str, Callable[[KVLayout, int], bytes]] = {
    "zeros": repeated(bytes(4)),
    "a constant": repeated(b"\x12\x34\x56\x3c"),
    "negative zeros": repeated(b"\x00\x00\x00\x80"),
    "no numbers": _not_numbers,
    "noise": noise,
    "plausible": plausible,
}


def encoded(serde: Serde, chunk: Chunk) -> bytes:
    """Encode *chunk*; check that the payload keeps the bound."""
    __tracebackhide__ = True  # the test that calls tells more
    raw, layout, tokens = chunk
    room = bytearray(serde.bound(len(raw)))
    size = serde.encode(memoryview(raw), layout, tokens, memoryview(room))
    assert 0 <= size <= len(room), f"{size} bytes, where at most {len(room)} were announced"
    return bytes(room[:size])


def decoded(
    serde: Serde, payload: bytes, layout: KVLayout, tokens: int, fresh: int = 0xA5
) -> bytes:
    """Decode *payload* into a buffer filled with *fresh*; check that it is not overrun."""
    __tracebackhide__ = True  # the test that calls tells more
    size = layout.chunk_bytes(tokens)
    room = bytearray([fresh]) * (size + 2 * GUARD)
    with memoryview(room) as view:
        serde.decode(memoryview(payload), layout, tokens, view[GUARD : GUARD + size])
    guard = bytes([fresh]) * GUARD
    assert room[:GUARD] == room[-GUARD:] == guard, "bytes beside the buffer were written"
    return bytes(room[GUARD:-GUARD])


def free(buffer: bytearray, why: str) -> None:
    """Fail with the message *why* if a view of *buffer* still exists."""
    try:
        buffer.append(0)
    except BufferError:
        raise AssertionError(why) from None


class SerdeCase(Whole):
    """The fixtures that an author gives."""

    @pytest.fixture
    def serde(self) -> Serde:
        """The serde under test."""
        raise NotImplementedError(f"give {type(self).__name__} a `serde` fixture")

    @pytest.fixture
    def close(self, serde: Serde) -> Close:
        """The comparison of decoded bytes, see :data:`Close`: by the serde's declared bound."""
        if not isinstance(serde, LossySerde):
            raise NotImplementedError(f"{type(self).__name__} is lossy: give it a `close` fixture")
        return lambda raw, back, layout: not beyond(serde, raw, back, layout)

    @pytest.fixture
    def dtypes(self) -> Collection[DType]:
        """The dtypes that the serde takes."""
        return tuple(DType)

    @pytest.fixture
    def same(self, serde: Serde, request: pytest.FixtureRequest) -> Close:
        """The comparison: equal bytes, or near ones if the serde is lossy."""
        if serde.lossless:
            return lambda raw, back, _: raw == back
        close: Close = request.getfixturevalue("close")
        return close

    @pytest.fixture
    def chunk(self, dtypes: Collection[DType]) -> Chunk:
        """A small chunk of elements like those of real KV."""
        dtype = DType.BFLOAT16 if DType.BFLOAT16 in dtypes else min(dtypes)
        layout = KVLayout.attention(dtype, layers=3, heads=2, key_width=32)
        return plausible(layout, 40), layout, 40


def same(
    left: bytes | bytearray | memoryview, right: bytes | bytearray | memoryview, why: str
) -> None:
    """Fail with the message *why* unless both hold the same bytes.

    No bare assertion: if pytest shows everything (``CI`` is set), it would compare megabytes
    line by line for minutes.
    """
    a, b = bytes(left), bytes(right)
    if a != b:
        at = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), None)
        where = f"first at byte {at}" if at is not None else "one is longer"
        raise AssertionError(f"{why}: {len(a)} and {len(b)} bytes differ, {where}")
