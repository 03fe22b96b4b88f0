"""Messages between a directory and the nodes that report to it or query it.

A connection begins with a handshake (:mod:`hexkv.adapters.net.rpc.handshake`). Then each request is
answered before the next one is sent, except that parts of a snapshot are not answered. Both begin
with a head, all numbers little-endian::

    kind:u8  words:u8  text:u16  first:u32  second:u32  sequence:i64  number:u64

| request | text | first, second | sequence | number | the answer's |
| --- | --- | --- | --- | --- | --- |
| JOIN | a member | | | proof | kind, number of the membership |
| PART | | tags | | membership | none |
| JOINED | | | | membership | kind |
| REPORT | | tags added, removed | of the report | membership | kind |
| HEARTBEAT | | | of the last report | membership | kind |
| LEAVE | | | | membership | kind |
| LOCATE | | tags | version that the client knows | | rows, each of *words* words, and members |
| MEMBERS | nothing, or a name | | | | members that are alive, or that node's last life |

The proof is a number that a client chooses and keeps: while a node sends heartbeats, its name can
be joined again only by the same proof.

The answer to LOCATE has the version as its sequence, as many rows as there were tags, and after
them the members of that version, with their columns, unless the client knows it. *first* is the
number of rows, *second* the bytes of the members.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import IntEnum
from struct import Struct
from typing import NamedTuple

from hexkv.adapters.net.errors import BadMessage
from hexkv.adapters.net.rpc.handshake import Handshake
from hexkv.ports import REPORT_KEYS, InvalidRequest, Member

HANDSHAKE = Handshake("directory", b"hexkvDIR", 2, "N", "dN")
"""The server's field: seconds between two heartbeats."""

_HEAD = Struct("<BBHIIqQ")
HEAD_BYTES = _HEAD.size
_MEMBER = Struct("<HBHBQ")

MOST_TAGS = REPORT_KEYS
"""Tags of one message."""

AHEAD = 8 << 10
"""Bytes received with the head of a message, so that most take one system call."""

_LONGEST_TEXT = _MEMBER.size + 255 + 1024 + 255
MOST_MEMBERS_BYTES = 16 << 20
"""Bytes of the members in an answer that a client accepts."""


class Kind(IntEnum):
    """The kind of a request, and of an answer."""

    JOIN = 1
    PART = 2
    JOINED = 3
    REPORT = 4
    HEARTBEAT = 5
    LEAVE = 6
    LOCATE = 7
    MEMBERS = 8

    YES = 32
    NO = 33
    """The node must join again, or is a life that has ended."""

    FULL = 34
    """The directory has its limit of members."""

    TAKEN = 35
    """Another process has the name, and sends heartbeats: joining requires its proof."""


class Head(NamedTuple):
    """The start of a message."""

    kind: Kind
    words: int = 0
    text: int = 0
    first: int = 0
    second: int = 0
    sequence: int = 0
    number: int = 0

    def pack(self) -> bytes:
        """Return the head as bytes."""
        return _HEAD.pack(*self)


def unpack(data: bytes) -> Head:
    """Return the head in *data*.

    Raises:
        BadMessage: it is none.
    """
    kind, *rest = _HEAD.unpack(data)
    try:
        return Head(Kind(kind), *rest)
    except ValueError as error:
        raise BadMessage(f"no message of a directory is of kind {kind}") from error


def unpack_request(data: bytes) -> Head:
    """Return the head of a request.

    Raises:
        BadMessage: it is none, or its sizes are over the limit.
    """
    head = unpack(data)
    if head.text > _LONGEST_TEXT or head.first + head.second > MOST_TAGS:
        raise BadMessage("a request is longer than any may be")
    return head


def pack_members(columns: Iterable[tuple[int, Member]]) -> bytes:
    """Return members with their columns as bytes."""
    parts = []
    for column, member in columns:
        texts = [text.encode() for text in (member.name, member.address, member.admin)]
        parts.append(_MEMBER.pack(column, *map(len, texts), member.generation))
        parts += texts
    return b"".join(parts)


def unpack_members(data: bytes) -> Iterator[tuple[int, Member]]:
    """Yield the members and columns packed by :func:`pack_members`.

    Raises:
        BadMessage: these are no members.
    """
    at = 0
    while at < len(data):
        start = at + _MEMBER.size
        if start > len(data):
            raise BadMessage("a member is cut")
        column, *sizes, generation = _MEMBER.unpack_from(data, at)
        at = start + sum(sizes)
        if at > len(data):
            raise BadMessage("a member is cut")
        try:
            texts = [data[end - size : end].decode() for end, size in _ends(start, sizes)]
            yield column, Member(texts[0], generation, *texts[1:])
        except (UnicodeDecodeError, InvalidRequest) as error:
            raise BadMessage("a member means nothing") from error


def _ends(start: int, sizes: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Yield the end of each of consecutive texts, and its size."""
    for size in sizes:
        start += size
        yield start, size
