"""Deflate as a serde. Put your codec in its place."""

from __future__ import annotations

import zlib

from hexkv.ports import CorruptFrame, KVLayout, Serde


class AcmeSerde:
    """Gives back every bit; a payload is one stream of zlib's."""

    name = "acme-before/1"  # at most 32 characters of ASCII
    lossless = True
    per_layer = False

    def bound(self, raw_bytes: int) -> int:
        return raw_bytes + (raw_bytes >> 12) + (raw_bytes >> 14) + (raw_bytes >> 25) + 13

    def encode(self, chunk: memoryview, layout: KVLayout, tokens: int, into: memoryview) -> int:
        del layout, tokens
        payload = zlib.compress(chunk, 1)
        into[: len(payload)] = payload
        return len(payload)

    def decode(self, payload: memoryview, layout: KVLayout, tokens: int, into: memoryview) -> None:
        size = layout.chunk_bytes(tokens)
        stream = zlib.decompressobj()
        try:
            # One byte more than there may be: whatever the payload claims, no more is made.
            chunk = stream.decompress(payload, size + 1)
        except zlib.error as error:
            raise CorruptFrame(f"no deflated chunk: {error}") from error
        if len(chunk) != size or not stream.eof or stream.unused_data:
            raise CorruptFrame(f"no deflated chunk of {size} bytes")
        into[:] = chunk


def _is_a_serde(serde: AcmeSerde) -> Serde:
    return serde  # a type checker checks here that AcmeSerde has the port's methods
