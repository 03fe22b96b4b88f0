"""BLAKE2b as a checksum of frames. Put your hash in its place."""

from __future__ import annotations

import hashlib

from hexkv.ports import HashFunction


def digest(data: bytes | memoryview) -> bytes:
    """16 bytes, as many as a frame's header has room for. Releases the interpreter's lock."""
    return hashlib.blake2b(data, digest_size=16).digest()


# At most 16 characters of ASCII. Frames name it: it means the same bytes for ever.
ACME_CHECKSUM = HashFunction("acme-before", digest)
