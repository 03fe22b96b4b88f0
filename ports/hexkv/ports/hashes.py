"""Named hash functions: those that name chunks, and those that guard frames against damage."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HashFunction:
    """A hash function, by the name that identities and frame headers give it.

    One that names chunks resists collisions and gives ``DIGEST_BYTES`` bytes. One that guards
    frames guards against damage, not malice: it need not be cryptographic, gives at most 16 bytes,
    and has a name of at most 16 ASCII characters, for instance ``xxh3-128``.
    """

    name: str

    digest: Callable[[bytes | memoryview], bytes]
    """Should release the GIL: payloads have tens of megabytes."""
