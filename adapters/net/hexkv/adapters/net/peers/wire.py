"""The wire between peers, version 3: one connection, one request at a time.

All numbers are little-endian. A connection begins with the client::

    client  HELLO      magic, version, nonce, the client's name
    server  CHALLENGE  magic, version, verdict, limits, the server's generation, nonce

and the proofs of :mod:`hexkv.adapters.net.rpc.handshake`. Then requests, each a message of
:mod:`hexkv.adapters.net.messages`; frames follow messages, never within them::

    READ   key, start, size each   -> for the next few, until all have come: GROUP, their bytes
    OFFER  key, size each          -> one GRANT each
           granted frames, if any  -> one VERDICT each
    ASK    a question              -> an answer

A GROUP repeats the requested keys: an answer with another one is invalid. It gives the sizes of
several parts before the bytes of the first one, so that a reader receives small frames in one
system call, and is always of the same size, so that the next GROUP is received with them.

Where one end reaches the other's memory, both describe the way after the proofs (INTRODUCTION),
and::

    LEND   key, start, size each   -> for the next few, until all have come or the peer lends no
                                      more: REF each. RETURN gives them back
    OFFER  key, size each          -> one GRANT each
           PUSH with a REF each    -> PULLED, answered by HELD, where a closed connection
                                      is not seen at once; one VERDICT each

A REF gives the place of the bytes in the memory of its sender. They are leased until they are given
back, by RETURN or by the next LEND, or until the connection ends: so a copy counts only once the
connection was found open afterwards. Bytes outside such memory are ELSEWHERE, and sent as over TCP.

An answer to LEND marks by MORE that another one follows, which the owner makes while the reader
copies. The reader requests omitted parts again, once it has copied those that it was lent.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from struct import Struct

from hexkv.adapters.net.errors import BadMessage
from hexkv.adapters.net.messages import Framing, check_sum, summed
from hexkv.adapters.net.rpc.handshake import Handshake
from hexkv.ports import KEY_BYTES, MAX_QUESTION, ChunkKey

MAGIC = b"hexkvPER"
VERSION = 3
NAME_BYTES = 64

MAX_ENTRIES = 4096


class Kind(IntEnum):
    """The kind of a request; its answer repeats it."""

    READ = 1
    OFFER = 2
    ASK = 3
    INTRODUCTION = 4
    LEND = 5
    RETURN = 6
    PUSH = 7
    PULLED = 8
    HELD = 9


class Status(IntEnum):
    """The status of an answer."""

    DONE = 0
    BAD_REQUEST = 1
    FAILED = 2
    MORE = 3
    """Done, and another answer to it follows."""


class Grant(IntEnum):
    """The decision on one offered frame."""

    SEND = 0
    PRESENT = 1
    NO_ROOM = 2
    LATER = 3
    """Send others of the batch first."""


class Verdict(IntEnum):
    """The outcome of one frame that was sent."""

    KEPT = 0
    REFUSED = 1
    WRONG_KEY = 2


PARTS = Struct(f"<{KEY_BYTES}sQQ")
"""Key, first byte, and bytes; 0 bytes mean the whole frame."""

OFFERS = Struct(f"<{KEY_BYTES}sQ")

REFS = Struct(f"<{KEY_BYTES}sQQ")
"""Key, bytes or ``ABSENT``, and the offset of the first one, or ``ELSEWHERE``."""

_ITEM = Struct(f"<{KEY_BYTES}sQ")
_COUNT = Struct("<I")
TOGETHER = 16
"""Parts of a GROUP at most."""

_ROWS = _COUNT.size + TOGETHER * _ITEM.size
GROUP_BYTES = _ROWS + 4
AHEAD = 16 << 10
"""Bytes received with the head of a message, so that most take one system call."""

ABSENT = (1 << 64) - 1
ELSEWHERE = (1 << 64) - 1

FRAMING = Framing("hexkv peers'", b"hxpr", max(MAX_ENTRIES * PARTS.size, MAX_QUESTION))


def handshake(magic: bytes = MAGIC) -> Handshake:
    """Return the handshake of peers with one transport of frames.

    Its fields: the client's name in UTF-8, padded with zeros; entries of a request, bytes of a
    frame, and the server's generation.
    """
    return Handshake("hexkv peer", magic, VERSION, f"6xN{NAME_BYTES}s", "VxIQQN")


def pack_group(rows: Sequence[tuple[bytes, int]]) -> bytes:
    """Return the head of some parts: the key of each, and its size or ``ABSENT``."""
    items = b"".join([_ITEM.pack(key, size) for key, size in rows])
    return summed((_COUNT.pack(len(rows)) + items).ljust(_ROWS, b"\0"))


def read_group(data: memoryview, keys: Sequence[ChunkKey]) -> list[int]:
    """Return the sizes of the parts of the first of *keys*, one at least; ``ABSENT`` for none.

    Raises:
        BadMessage: it arrived damaged, or is an answer to another question.
    """
    bare = check_sum(bytes(data), "an answer")
    (count,) = _COUNT.unpack_from(bare)
    if not 0 < count <= min(TOGETHER, len(keys)):
        raise BadMessage(f"an answer about {count} of {len(keys)} chunks")
    rows = _ITEM.iter_unpack(bare[_COUNT.size : _COUNT.size + count * _ITEM.size])
    sizes: list[int] = []
    for key, (named, size) in zip(keys, rows, strict=False):
        if named != key:
            raise BadMessage(f"an answer about {named.hex()} instead of {key.hex()}")
        sizes.append(size)
    return sizes
