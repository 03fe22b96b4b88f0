"""The ``hexkv://`` wire, version 1: one connection, one request at a time. Little-endian.

A connection begins with a handshake (:mod:`hexkv.adapters.net.rpc.handshake`).

Then requests. Each begins with a head that is checked by CRC-32 together with its body; the
body is ``count`` entries of the kind's size. Values follow messages, never within them::

    CONTAINS  keys              -> one byte each: 0 or 1
    DELETE    keys              -> one byte each: whether it was there
    READ      keys              -> for each: SIZE, value
    RANGE     key, start, size  -> SIZE, value
    SCAN      key, or zeros     -> entries after that key, in order; none: that was all
    WRITE     key, size each    -> one GRANT each
              granted values    -> one VERDICT each

So a value is sent only once there is room for it, which is the back-pressure. If the handshake
requests it, the XXH3-128 of each value follows it. Without it, values rely on TCP and on the
checksum that every frame carries and the core verifies.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from struct import Struct

from hexkv.adapters.net.messages import Framing, check_sum, summed
from hexkv.adapters.net.rpc.handshake import Handshake
from hexkv.ports import KEY_BYTES, ChunkKey

MAGIC = b"hexkvTCP"
HANDSHAKE = Handshake("hexkv server", MAGIC, 1, "H4xN", "VxIQN")
"""Its fields: the client's flags; entries per request, and bytes per value."""

DIGEST_BYTES = 16

CHECKED = 1
"""The flag that requests a digest behind every value."""

MAX_ENTRIES = 4096
"""Per request. So a body has at most a quarter of a megabyte, from any sender."""

SLICE = 1 << 20
"""Bytes digested at a time, while they are in the CPU's cache."""


class Kind(IntEnum):
    """The kind of a request, which its answer repeats."""

    CONTAINS = 1
    READ = 2
    WRITE = 3
    DELETE = 4
    RANGE = 5
    SCAN = 6


class AnswerStatus(IntEnum):
    """The status of an answer: the request was valid or not."""

    DONE = 0
    BAD_REQUEST = 1


class ValueGrant(IntEnum):
    """The server's reply to the wish to send one value."""

    SEND = 0
    LATER = 1
    """No room to receive it now; others of the batch come first."""

    TOO_LARGE = 2


class ValueVerdict(IntEnum):
    """The result for one value that a client sent."""

    STORED = 0
    FULL = 1
    DAMAGED = 2
    FAILED = 3


KEYS = Struct(f"<{KEY_BYTES}s")
WISHES = Struct(f"<{KEY_BYTES}sQ")
RANGES = Struct(f"<{KEY_BYTES}sQQ")
ENTRIES = Struct(f"<{KEY_BYTES}sQd")
"""Of an answer to SCAN: key, bytes, wall-clock seconds at which it was stored."""

REQUESTS: dict[Kind, Struct] = {
    Kind.CONTAINS: KEYS,
    Kind.READ: KEYS,
    Kind.WRITE: WISHES,
    Kind.DELETE: KEYS,
    Kind.RANGE: RANGES,
    Kind.SCAN: KEYS,
}
MAX_BODY = MAX_ENTRIES * max(entry.size for entry in (*REQUESTS.values(), ENTRIES))

SIZE = Struct("<QI")
"""Before each value: its bytes, or one of the two below, and the CRC-32 of these eight."""

ABSENT = (1 << 64) - 1
UNREADABLE = ABSENT - 1


FRAMING = Framing("hexkv", b"hxkv", MAX_BODY)
message, head = FRAMING.message, FRAMING.head


def pack_size(size: int) -> bytes:
    """The bytes before a value: its size and their CRC-32."""
    return summed(size.to_bytes(8, "little"))


def unpack_size(data: bytes) -> int:
    """The size before a value.

    Raises:
        BadMessage: it arrived damaged.
    """
    return int.from_bytes(check_sum(data, "a size"), "little")


def pack_keys(keys: Sequence[ChunkKey]) -> bytes:
    """Keys, one after the other.

    Raises:
        ValueError: a key has the wrong length.
    """
    packed = b"".join(keys)
    if len(packed) != KEY_BYTES * len(keys) or any(len(key) != KEY_BYTES for key in keys):
        raise ValueError(f"a key has {KEY_BYTES} bytes")
    return packed
