"""Named hash functions: for naming chunks, and for checking frames for damage."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HashFunction:
    """A hash function, under its name in identities and frame headers.

    A function that names chunks resists collisions and gives ``DIGEST_BYTES`` bytes. A checksum of
    frames detects damage, not malice: it need not be cryptographic, gives at most 16 bytes, and
    has a name of at most 16 ASCII characters, for instance ``xxh3-128``.
    """

    name: str

    digest: Callable[[bytes | memoryview], bytes]
    """Should release the GIL: payloads have tens of megabytes."""
