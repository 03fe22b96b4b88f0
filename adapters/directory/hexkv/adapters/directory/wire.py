"""Messages between a directory and the nodes that report to it or query it.

After the handshake come numbered requests (:mod:`hexkv.adapters.net.rpc`), whose verb is their
kind; parts of a snapshot are messages without an answer. Bodies begin with a head of their own, all
numbers little-endian::

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
from struct import Struct, error
from typing import NamedTuple

from hexkv.adapters.directory.tags import TAG_BYTES, Tags, tags_in
from hexkv.adapters.net.errors import BadMessage
from hexkv.adapters.net.rpc.handshake import Handshake
from hexkv.ports import REPORT_KEYS, InvalidRequest, Member

HANDSHAKE = Handshake("directory", b"hexkvDIR", 3, "N", "dN")
"""The server's field: seconds between two heartbeats."""

_HEAD = Struct("<BBHIIqQ")
HEAD_BYTES = _HEAD.size
_MEMBER = Struct("<HBHBQ")

MOST_TAGS = REPORT_KEYS
"""Tags of one message."""

_LONGEST_TEXT = _MEMBER.size + 255 + 1024 + 255
LARGEST = HEAD_BYTES + _LONGEST_TEXT + MOST_TAGS * TAG_BYTES
"""Bytes of a request at most."""

WORDS = 16
"""Words of a row that a client accepts: 1,024 members."""

LARGEST_ANSWER = HEAD_BYTES + MOST_TAGS * WORDS * TAG_BYTES + (16 << 20)
"""Bytes of an answer that a client accepts: rows, and members."""


class RequestKind(IntEnum):
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


class DirectoryHead(NamedTuple):
    """The start of a message."""

    kind: RequestKind
    words: int = 0
    text: int = 0
    first: int = 0
    second: int = 0
    sequence: int = 0
    number: int = 0

    def pack(self) -> bytes:
        """Return the head as bytes."""
        return _HEAD.pack(*self)


def unpack(data: bytes) -> DirectoryHead:
    """Return the head at the start of *data*.

    Raises:
        BadMessage: it is none.
    """
    try:
        kind, *rest = _HEAD.unpack_from(data)
        return DirectoryHead(RequestKind(kind), *rest)
    except (ValueError, error) as wrong:
        raise BadMessage("no message of a directory begins like this") from wrong


def unpack_request(body: bytes) -> tuple[DirectoryHead, bytes, Tags]:
    """Return the head of a request, its text, and its tags.

    Raises:
        BadMessage: it is none, or its sizes are wrong.
    """
    head = unpack(body)
    text, tags = body[HEAD_BYTES : HEAD_BYTES + head.text], body[HEAD_BYTES + head.text :]
    if len(text) != head.text or len(tags) != (head.first + head.second) * TAG_BYTES:
        raise BadMessage("a request of another size")
    return head, text, tags_in(memoryview(tags))


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
        except (UnicodeDecodeError, InvalidRequest) as wrong:
            raise BadMessage("a member means nothing") from wrong


def _ends(start: int, sizes: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Yield the end of each of consecutive texts, and its size."""
    for size in sizes:
        start += size
        yield start, size
