"""Keys as the directory knows them: 8 bytes each.

A tag is the sum of a key's six words of 8 bytes, little-endian, the n-th of them (from 1) times the
n-th power of 0x9E3779B97F4A7C15, modulo 2**64; 1 in place of 0. Keys are digests, so of a million
chunks two share a tag with a probability of 3e-8; then each seems to be where the other is, and a
query to a peer misses.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from hexkv.ports import KEY_BYTES, ChunkKey, InvalidRequest

TAG_BYTES = 8

_FACTORS = np.array([pow(0x9E3779B97F4A7C15, n, 1 << 64) for n in range(1, 7)], np.uint64)

Tags = npt.NDArray[np.uint64]
"""One per key, none of them 0."""


def tags_of(keys: Sequence[ChunkKey]) -> Tags:
    """Return the tag of each key.

    Raises:
        InvalidRequest: these are no keys.
    """
    data = b"".join(keys)
    if len(data) != len(keys) * KEY_BYTES:
        raise InvalidRequest(f"a key has {KEY_BYTES} bytes")
    words = np.frombuffer(data, "<u8").reshape(len(keys), KEY_BYTES // TAG_BYTES)
    tags: Tags = np.maximum((words * _FACTORS).sum(axis=1), np.uint64(1))
    return tags


def tags_in(data: bytes | memoryview) -> Tags:
    """Return the tags of a message; a 0, which no key has, is read as 1."""
    tags: Tags = np.maximum(np.frombuffer(data, "<u8"), np.uint64(1))
    return tags
