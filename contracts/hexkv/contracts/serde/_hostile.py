"""Promises about damaged or malicious payloads."""

from __future__ import annotations

import resource
import tracemalloc
from collections.abc import Iterator
from contextlib import suppress
from random import Random

import pytest

from hexkv.contracts.kit.cases import each
from hexkv.contracts.kit.promise import promise
from hexkv.contracts.serde._base import CONTENTS, Chunk, SerdeCase, decoded, encoded
from hexkv.ports import CorruptFrame, Serde

SLACK = 1 << 20
"""Bytes that decoding may allocate besides a small multiple of the chunk's size."""

HUGE = (1 << 28, (1 << 31) - 1, (1 << 32) - 1, (1 << 40) - 1, (1 << 63) - 1, (1 << 64) - 1)


def damage(payload: bytes) -> Iterator[bytes]:
    """*payload* with flipped bits and overwritten ranges, the same ones every time."""
    random = Random(len(payload))  # noqa: S311 - nothing here is secret
    places = [*range(min(len(payload), 48)), *(random.randrange(len(payload)) for _ in range(150))]
    for place in places:
        bad = bytearray(payload)
        bad[place] ^= 1 << random.randrange(8)
        yield bytes(bad)
        end = min(place + 8, len(bad))
        bad[place:end] = random.randbytes(end - place)
        yield bytes(bad)


def claims(payload: bytes) -> Iterator[bytes]:
    """*payload* with a huge number at every place near its start that may hold a number."""
    for place in range(min(len(payload) - 8, 80)):
        for number in HUGE:
            number_bytes = number.to_bytes(8, "little")
            for field in (number_bytes, number_bytes[::-1], number_bytes[:4], number_bytes[3::-1]):
                yield payload[:place] + field + payload[place + len(field) :]


class Hostile(SerdeCase):
    """A cache directory or a server may hold any bytes. None of them may do harm."""

    @promise(
        "serde.12",
        "calls a payload that was cut CorruptFrame",
        level="L2",
        clause="Serde.decode",
        why="a torn write would be taken for KV",
        hint="compare every length with the bytes there are before slicing",
    )
    def test_a_cut_payload_is_corrupt(self, serde: Serde, chunk: Chunk) -> None:
        for content in ("plausible", "noise", "zeros"):
            _, layout, tokens = chunk
            payload = encoded(serde, (CONTENTS[content](layout, tokens), layout, tokens))
            steps = max(1, len(payload) // 200)
            for length in {*range(min(len(payload), 80)), *range(0, len(payload), steps)}:
                with pytest.raises(CorruptFrame):
                    decoded(serde, payload[:length], layout, tokens)

    @each("tail", [b"\0", b"\xff" * 9, bytes(5000)], ids=len)
    @promise(
        "serde.13",
        "calls a payload that goes on after its end CorruptFrame",
        level="L2",
        clause="Serde.decode",
        why="two payloads in one place would be taken for one",
    )
    def test_a_tail_is_corrupt(self, serde: Serde, chunk: Chunk, tail: bytes) -> None:
        _, layout, tokens = chunk
        payload = encoded(serde, chunk)
        for longer in (payload + tail, payload + payload):
            with pytest.raises(CorruptFrame):
                decoded(serde, longer, layout, tokens)

    @promise(
        "serde.14",
        "calls the payload of a chunk of another size CorruptFrame",
        level="L2",
        clause="Serde.decode",
        why="a frame with a wrong header would be scattered into the wrong places",
    )
    def test_another_shape_is_corrupt(self, serde: Serde, chunk: Chunk) -> None:
        _, layout, tokens = chunk
        payload = encoded(serde, chunk)
        for others in (1, tokens - 1, tokens + 1, 2 * tokens):
            with pytest.raises(CorruptFrame):
                decoded(serde, payload, layout, others)

    @each("content", CONTENTS)
    @promise(
        "serde.15",
        "answers damage with CorruptFrame, or with bytes; with nothing else",
        level="L2",
        clause="Serde.decode",
        why="one flipped bit on a disk would end the request, or the process",
        hint="the errors of struct, zlib and numpy are translated: raise CorruptFrame(...) from",
    )
    def test_damage_is_corrupt_or_goes_unnoticed(
        self, serde: Serde, chunk: Chunk, content: str
    ) -> None:
        _, layout, tokens = chunk
        for bad in damage(encoded(serde, (CONTENTS[content](layout, tokens), layout, tokens))):
            with suppress(CorruptFrame):
                decoded(serde, bad, layout, tokens)

    @promise(
        "serde.16",
        "answers noise with CorruptFrame, or with bytes; with nothing else",
        level="L2",
        clause="Serde.decode",
        why="a writer to a tier could stop every engine that reads it",
    )
    def test_noise_is_corrupt(self, serde: Serde, chunk: Chunk) -> None:
        raw, layout, tokens = chunk
        random = Random(0)  # noqa: S311 - nothing here is secret
        payload = encoded(serde, chunk)
        for length in (0, 1, 7, 8, 15, 16, 24, 100, len(payload), len(raw), serde.bound(len(raw))):
            for kept in (0, 4, 8, 16, 24, 40, 64):
                with suppress(CorruptFrame):
                    noise = (payload[:kept] + random.randbytes(length))[:length]
                    decoded(serde, noise, layout, tokens)

    @promise(
        "serde.17",
        "allocates a few times the chunk at most, whatever sizes a payload names",
        level="L2",
        clause="Serde.decode",
        why="a few hostile bytes would take all of a host's memory",
        hint="compare what the payload claims with the layout before allocating",
    )
    def test_claims_are_not_believed(self, serde: Serde, chunk: Chunk) -> None:
        raw, layout, tokens = chunk
        payload = encoded(serde, chunk)
        decoded(serde, payload, layout, tokens)  # allocations made only once are made now
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        tracemalloc.start()
        try:
            for claim in claims(payload):
                with suppress(CorruptFrame):
                    decoded(serde, claim, layout, tokens)
                _, peak = tracemalloc.get_traced_memory()
                assert peak < 8 * len(raw) + SLACK, f"{peak} bytes for a chunk of {len(raw)}"
        finally:
            tracemalloc.stop()
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        assert grown < 64 << 10, f"the process grew by {grown} KiB"
