"""The contract of windows that decode chunks themselves, on any device."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from random import Random
from typing import Protocol

import pytest

from hexkv.contracts.device import Holed, RawKV
from hexkv.contracts.device._base import chunk, fill, same
from hexkv.contracts.doubles import deadline
from hexkv.contracts.kit.promise import not_offered, promise
from hexkv.contracts.kit.whole import Whole
from hexkv.contracts.serde._base import free
from hexkv.ports import (
    CorruptFrame,
    DeviceKV,
    EncodedSpan,
    InvalidRequest,
    KVLayout,
    LayerSerde,
    Serde,
    SupportsEncoded,
    SupportsEncodedLayers,
)

TOKENS = 24
"""The least that the window of the ``device`` fixture must have."""


class DecodingKV(DeviceKV, SupportsEncoded, Protocol):
    """A window that decodes."""


class Foreign:
    """A serde that no device knows."""

    name, lossless, per_layer = "foreign/0", True, False

    def bound(self, raw_bytes: int) -> int:
        """The size of the raw chunk."""
        return raw_bytes

    def encode(self, chunk: memoryview, layout: KVLayout, tokens: int, into: memoryview) -> int:
        """Copy the chunk unchanged."""
        del layout, tokens
        into[: len(chunk)] = chunk
        return len(chunk)

    def decode(self, payload: memoryview, layout: KVLayout, tokens: int, into: memoryview) -> None:
        """Copy the payload unchanged."""
        del layout, tokens
        into[:] = payload


class EncodedContract(Whole):
    """Subclass this and give it the fixtures ``device``, ``raw`` and ``serde``.

    ``device`` is a window of 24 tokens or more that decodes what ``serde`` encodes, ``raw`` the
    back door to its memory as of :class:`~hexkv.contracts.device.DeviceContract`. Optional is
    ``holed``, such a window in which some positions have no place.
    """

    @pytest.fixture
    def device(self) -> DecodingKV:
        """A window of 24 tokens or more; every position has a place."""
        raise NotImplementedError(f"give {type(self).__name__} a `device` fixture")

    @pytest.fixture
    def raw(self) -> RawKV:
        """The back door to the memory of this very window."""
        raise NotImplementedError(f"give {type(self).__name__} a `raw` fixture")

    @pytest.fixture
    def serde(self) -> Serde:
        """The serde that the window decodes."""
        raise NotImplementedError(f"give {type(self).__name__} a `serde` fixture")

    @pytest.fixture
    def holed(self) -> Holed:
        """A window that decodes, in which some positions have no place."""
        not_offered("holed")

    @promise(
        "encoded.1",
        "returns for each serde if it decodes it, False for an unknown one",
        level="L1",
        clause="SupportsEncoded.decodes",
        why="it would be given payloads that it takes for something else",
    )
    def test_it_says_what_it_decodes(self, device: DecodingKV, serde: Serde) -> None:
        """The answer is a bool, the same each time."""
        assert isinstance(device, SupportsEncoded)
        for _ in range(2):
            assert device.decodes(serde) is True
            assert device.decodes(Foreign()) is False

    @promise(
        "encoded.2",
        "puts the decoded KV at the span's place, bit for bit, and nothing beside it",
        level="L1",
        clause="SupportsEncoded.scatter_encoded",
        why="a model would go on with other KV than the host would have given it",
    )
    def test_what_arrives_is_what_the_serde_decodes(
        self, device: DecodingKV, raw: RawKV, serde: Serde
    ) -> None:
        """Several spans in one call, with gaps and in no order: of one token, two of six."""
        fill(device, raw)
        cuts = [(9, 17), (0, 1), (2, 8), (18, 24)]
        spans = [_span(device, serde, *cut, seed=i) for i, cut in enumerate(cuts)]
        wanted = [_decoded(device, serde, span) for span in spans]
        beside = {p: chunk(device, raw, p, p + 1) for p in _rest(device, cuts)}
        assert device.scatter_encoded(serde, spans).wait(deadline()) is True
        for span, data in zip(spans, wanted, strict=True):
            same(chunk(device, raw, span.start, span.end), data, f"tokens {span.start} and on")
        for position, data in beside.items():
            same(chunk(device, raw, position, position + 1), data, f"beside them, at {position}")

    @promise(
        "encoded.3",
        "leaves a payload as it is, takes one that is read-only, and needs none once it has waited",
        level="L2",
        clause="SupportsEncoded.scatter_encoded",
        why="what a tier keeps would be damaged, or what comes next into that memory would arrive",
    )
    def test_a_payload_is_read_until_the_wait_is_over(
        self, device: DecodingKV, raw: RawKV, serde: Serde
    ) -> None:
        """Its memory is used for something else afterwards."""
        span = _span(device, serde, 0, 8, seed=5)
        wanted, kept = _decoded(device, serde, span), bytes(span.payload)
        memory = bytearray(kept)
        lent = EncodedSpan(0, 8, memoryview(memory).toreadonly())
        assert device.scatter_encoded(serde, [lent]).wait(deadline()) is True
        same(bytes(memory), kept, "the payload")
        memory[:] = bytes(len(kept))
        same(chunk(device, raw, 0, 8), wanted, "after its memory was used again")
        del lent
        gc.collect()
        free(memory, "a view of the payload is kept after the wait")

    @promise(
        "encoded.4",
        "refuses a span that leaves the window before anything moves",
        level="L1",
        clause="SupportsEncoded.scatter_encoded",
        why="another request's KV would be overwritten",
    )
    def test_a_span_outside_of_the_window_moves_nothing(
        self, device: DecodingKV, raw: RawKV, serde: Serde
    ) -> None:
        """The other spans of that call do not move either."""
        good, end = _span(device, serde, 0, 4, seed=1), device.tokens
        fill(device, raw)
        before = raw.everything()
        for start, stop in ((end - 2, end + 2), (end, end + 4), (-4, 0)):
            wrong = EncodedSpan(start, stop, good.payload)
            with pytest.raises(InvalidRequest):
                device.scatter_encoded(serde, [good, wrong]).wait(deadline())
        same(raw.everything(), before, "after it was refused")

    @promise(
        "encoded.5",
        "takes a payload that was damaged for corrupt where the serde does, and else decodes as it",
        level="L2",
        clause="SupportsEncoded.scatter_encoded",
        why="a hostile peer could have anything put anywhere, or end the engine",
    )
    def test_a_damaged_payload_is_corrupt_or_what_the_serde_makes_of_it(
        self, device: DecodingKV, raw: RawKV, serde: Serde
    ) -> None:
        """Cut, longer, empty, zeroed, and with bytes changed. Positions beside it are unchanged."""
        good = bytes(_span(device, serde, 4, 12, seed=2).payload)
        dice = Random(3)  # noqa: S311 - nothing here is secret
        damaged = [good[:-1], good + b"\0", b"", bytes(len(good)), good[: len(good) // 2]]
        for _ in range(24):
            changed = bytearray(good)
            changed[dice.randrange(len(good))] ^= 1 << dice.randrange(8)
            damaged.append(bytes(changed))
        fill(device, raw)
        beside = [chunk(device, raw, p, p + 1) for p in _rest(device, [(4, 12)])]
        for payload in damaged:
            span = EncodedSpan(4, 12, memoryview(bytearray(payload)))
            try:
                wanted = _decoded(device, serde, span)
            except CorruptFrame:
                with pytest.raises(CorruptFrame):
                    device.scatter_encoded(serde, [span]).wait(deadline())
            else:
                assert device.scatter_encoded(serde, [span]).wait(deadline()) is True
                same(chunk(device, raw, 4, 12), wanted, "of what the serde takes")
        there = [chunk(device, raw, p, p + 1) for p in _rest(device, [(4, 12)])]
        assert there == beside, "something beside the span was written"

    @promise(
        "encoded.6",
        "passes over positions that have no place",
        level="L1",
        clause="SupportsEncoded.scatter_encoded",
        why="KV that a host does not keep would land in another request's block",
    )
    def test_positions_without_a_place_are_passed_over(self, holed: Holed, serde: Serde) -> None:
        """The other positions of the span are written."""
        device, raw, holes = holed
        assert isinstance(device, SupportsEncoded)
        end = max(holes) + 2
        fill(device, raw, without=holes)
        span = _span(device, serde, 0, end, seed=4)
        wanted = _decoded(device, serde, span)
        assert device.scatter_encoded(serde, [span]).wait(deadline()) is True
        at = 0
        for layer, planes in enumerate(device.layout.planes):
            for index, plane in enumerate(planes):
                row = plane.heads * plane.width * device.layout.dtype.itemsize
                for position in range(end):
                    if position not in holes:
                        same(raw.get(layer, index, position), wanted[at : at + row], f"{position}")
                    at += row

    @promise(
        "encoded.7",
        "brings the layers that it is asked for alone, looking at nothing of a payload but them",
        level="L2",
        clause="SupportsEncodedLayers.scatter_encoded_layers",
        why="layers that were given before would change under the model, or wait for later ones",
    )
    def test_layers_come_alone(self, device: DecodingKV, raw: RawKV, serde: Serde) -> None:
        """The last layers first; the rest of the payload is overwritten with 0xff."""
        if not isinstance(device, SupportsEncodedLayers) or not isinstance(serde, LayerSerde):
            not_offered("SupportsEncodedLayers")
        layout, tokens = device.layout, 8
        fill(device, raw)
        span = _span(device, serde, 3, 3 + tokens, seed=6)
        wanted, held = _decoded(device, serde, span), bytearray(chunk(device, raw, 3, 3 + tokens))
        payload, index = bytes(span.payload), serde.index_bytes(layout)
        parts = serde.layer_parts(span.payload, len(payload), layout, tokens)
        middle = layout.layers // 2
        for layers in (range(middle, layout.layers), range(middle)):
            if not layers:
                continue
            begin, end = parts[layers.start][0], parts[layers.stop - 1][1]
            there = bytearray(b"\xff" * len(payload))
            there[:index], there[begin:end] = payload[:index], payload[begin:end]
            some = span._replace(payload=memoryview(there))
            assert device.scatter_encoded_layers(serde, [some], layers).wait(deadline()) is True
            first = layout.layer_span(layers.start, tokens)[0]
            last = layout.layer_span(layers.stop - 1, tokens)[1]
            held[first:last] = wanted[first:last]
            same(chunk(device, raw, 3, 3 + tokens), bytes(held), f"after {layers}")
        for wrong in (range(layout.layers, layout.layers + 1), range(-1, 1)):
            with pytest.raises(InvalidRequest):
                device.scatter_encoded_layers(serde, [span], wrong).wait(deadline())
        same(chunk(device, raw, 3, 3 + tokens), bytes(held), "after layers that there are not")


def _span(device: DeviceKV, serde: Serde, start: int, end: int, seed: int) -> EncodedSpan:
    """A span of small numbers, which every dtype has, encoded by *serde*."""
    layout, tokens = device.layout, end - start
    dice = Random(seed)  # noqa: S311 - nothing here is secret
    # Bytes below 0x3c: finite and moderate as elements of any float.
    raw = bytes(dice.randrange(0x3C) for _ in range(layout.chunk_bytes(tokens)))
    payload = memoryview(bytearray(serde.bound(len(raw))))
    size = serde.encode(memoryview(bytearray(raw)), layout, tokens, payload)
    return EncodedSpan(start, end, payload[:size])


def _decoded(device: DeviceKV, serde: Serde, span: EncodedSpan) -> bytes:
    tokens = span.end - span.start
    into = memoryview(bytearray(device.layout.chunk_bytes(tokens)))
    serde.decode(span.payload, device.layout, tokens, into)
    return bytes(into)


def _rest(device: DeviceKV, cuts: Sequence[tuple[int, int]]) -> list[int]:
    inside = {position for start, end in cuts for position in range(start, end)}
    return [position for position in range(device.tokens) if position not in inside]
