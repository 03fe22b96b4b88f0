"""The protocol between a node and its engines, over a Unix socket.

A connection begins with a handshake (:mod:`hexkv.adapters.net.rpc.handshake`), without proofs: the
kernel identifies the client. With its part of it, the node passes the descriptor of its pool
(``SCM_RIGHTS``). Then come numbered requests (:mod:`hexkv.adapters.net.rpc.wire`).

A lease is named by the request that leased it and its place there, so a client can give back a
lease whose answer it never received. A client never sends addresses.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from enum import IntEnum
from itertools import chain, repeat
from struct import Struct, calcsize, error, pack, unpack_from
from typing import NamedTuple, cast

from hexkv.adapters.net.errors import BadMessage
from hexkv.adapters.net.rpc.handshake import Handshake
from hexkv.ports import KEY_BYTES, ChunkKey, KVLayout

VERSION = 2
HANDSHAKE = Handshake("node", b"hexkvnd\n", VERSION, "HI", "HQQQQII")
"""Its fields. The client's: frame version, and a reserved zero. The node's: frame version,
generation, bytes of the pool, bytes that this client may lease, the largest frame that fits the
pool, requests that it may have under way, and bytes of a body. Zero bytes of pool: the client is
turned away."""

MAX_BODY = 4 << 20
"""Bytes of a body: the keys of a prompt of twenty million tokens fit it."""

MAX_SPACES = 1024
"""Namespaces that a client may name at a time."""
MAX_LAYERS = 1 << 16
_MAX_GROUPS, _TEXT = 1 << 12, 255

_KEY = Struct(f"{KEY_BYTES}s")
_KEYS = Struct(f"{KEY_BYTES}s" * 32)
"""Many keys at a time: cutting them one by one takes eight times as long."""
_ROW = KEY_BYTES + 2 + 4 + 8


class Verb(IntEnum):
    """The verb of a message. An old node does not know the last ones."""

    SPACE = 1
    """Defines a number for later requests: identity, layout, serde."""
    RELEASE = 2
    """Gives back leases. Not answered, like ``SPACE``, ``LASTS``, ``LAYERS``, ``ENCODED``,
    ``COMPUTES`` and ``USED``."""

    PING = 3
    MATCH = 4
    HOLD = 5
    ALLOCATE = 6
    PUBLISH = 7
    FORGET = 8
    PIN = 9
    UNPIN = 10
    FLUSH = 11
    CLEAR = 12
    HEALTH = 13
    """Its body may have the tokens per second that the client's host computes."""
    LIST = 14
    ANNOUNCE = 15
    WITHDRAW = 16
    EXPECT = 17
    NAMED = 18
    PUSH_TO = 19
    SEEK = 20
    LASTS = 21
    """Sets the seconds that a request's leases last, unless a ``KEEP`` comes before."""
    KEEP = 22
    LAYERS = 23
    """Sets the groups of layers of the ``HOLD`` behind it. Not answered by itself: its own number
    is that of the answer about the groups behind the first one, if they come later."""

    ENCODED = 24
    """Sets the serdes whose payloads the ``HOLD`` behind it may leave encoded."""

    COMPUTES = 25
    """Sets the tokens per second that the client's host computes: tiers that are slower are left
    out of the ``HOLD`` behind it."""

    USED = 26
    """Names chunks that one request used, though the client left out their tiers."""


MINOR = frozenset(
    (
        Verb.PIN,
        Verb.UNPIN,
        Verb.ANNOUNCE,
        Verb.WITHDRAW,
        Verb.EXPECT,
        Verb.PUSH_TO,
        Verb.SEEK,
    )
)
"""Verbs with a deadline of their own: a second, whatever the deadlines of calls are."""


class State(IntEnum):
    """The state of one chunk of a hold."""

    COMING = 0
    """With a place: only the first group of its layers is here."""
    HERE = 1
    MISSING = 2


class Space(NamedTuple):
    """The common properties of the chunks of one namespace."""

    identity: str
    layout: KVLayout
    serde: str


class Wanted(NamedTuple):
    """Chunks as a request names them, by column."""

    owner: str
    keys: Sequence[ChunkKey]
    spaces: Sequence[int]
    tokens: Sequence[int]
    positions: Sequence[int]
    """-1 where it is not known."""


class Chunks(NamedTuple):
    """The chunks of an answer, by column."""

    states: bytes
    """A :class:`State` each."""

    offsets: Sequence[int]
    sizes: Sequence[int]
    words: Sequence[str]
    """The tier from which each came, or why it is missing."""

    serdes: Sequence[str | None] = ()
    """The serde of each that is encoded, whose size is that of header and payload, without padding.
    Empty if none is."""


class Reader:
    """Parses a body. Missing or extra bytes are an error."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._at = 0

    def number(self, form: str = "I") -> int:
        """Return the next number, by default of 32 bits."""
        return int(self.column(form, 1)[0])

    def column(self, form: str, count: int) -> tuple[int, ...]:
        """Return the next *count* numbers."""
        shape = f"<{count}{form}"
        try:
            found = unpack_from(shape, self._body, self._at)
        except error as wrong:
            raise BadMessage(f"a body of {len(self._body)} bytes is too short") from wrong
        self._at += calcsize(shape)
        return found

    def text(self) -> str:
        """Return the next short text."""
        return self.plain(self.number("B"))

    def plain(self, size: int | None = None) -> str:
        """Return the next *size* bytes as text, by default all the rest."""
        try:
            return self.data(self.left if size is None else size).decode()
        except UnicodeDecodeError as wrong:
            raise BadMessage("no text") from wrong

    def data(self, size: int) -> bytes:
        """Return the next *size* bytes."""
        found = self._body[self._at : self._at + size]
        if len(found) != size:
            raise BadMessage(f"a body of {len(self._body)} bytes is too short")
        self._at += size
        return found

    def keys(self, count: int) -> list[ChunkKey]:
        """Return the next *count* keys."""
        data = memoryview(self.data(count * KEY_BYTES))
        runs = len(data) // _KEYS.size * _KEYS.size
        found: list[ChunkKey] = []
        for shape, part in ((_KEYS, data[:runs]), (_KEY, data[runs:])):
            found.extend(chain.from_iterable(shape.iter_unpack(part)))
        return found

    @property
    def left(self) -> int:
        """The number of bytes not yet read."""
        return len(self._body) - self._at

    def count(self, each: int) -> int:
        """Return the number of rows of at least *each* bytes that follow, checked to fit."""
        count = self.number()
        if count * each > self.left:
            raise BadMessage(f"{count} rows in a body of {len(self._body)} bytes")
        return count

    def json(self) -> object:
        """Return all the rest, parsed as JSON."""
        try:
            return json.loads(self.plain())
        except (ValueError, RecursionError) as wrong:
            raise BadMessage("no JSON") from wrong

    def end(self) -> None:
        """Raise ``BadMessage`` if bytes are left."""
        if self.left:
            raise BadMessage(f"{self.left} bytes too many")


def text(value: str) -> bytes:
    """Return a short text as bytes, cut to 255 bytes."""
    data = value.encode(errors="replace")[:_TEXT].decode(errors="ignore").encode()
    return bytes([len(data)]) + data


def pack_space(number: int, space: Space) -> bytes:
    """Return the body of ``SPACE``."""
    identity = space.identity.encode()
    layout = json.dumps(space.layout.describe(), separators=(",", ":")).encode()
    return pack("<HH", number, len(identity)) + identity + text(space.serde) + layout


def read_space(body: bytes) -> tuple[int, Space]:
    """Read the body of ``SPACE``.

    Raises:
        BadMessage: it is no namespace, or one over the limits.
    """
    reader = Reader(body)
    number, size = reader.number("H"), reader.number("H")
    identity, serde = reader.plain(size), reader.text()
    described = reader.json()
    groups = described.get("groups") if isinstance(described, dict) else None
    if number >= MAX_SPACES or not isinstance(groups, list) or len(groups) > _MAX_GROUPS:
        raise BadMessage("no namespace")
    try:
        # Before anything allocates by the number of layers.
        if not 0 < sum(int(group[0]) for group in groups) <= MAX_LAYERS:
            raise BadMessage("a layout beyond all measure")
        return number, Space(identity, KVLayout.parse(described), serde)
    except (ValueError, TypeError, LookupError, OverflowError) as wrong:
        raise BadMessage("no layout") from wrong


def pack_wanted(wanted: Wanted) -> bytes:
    """Return chunks as the body of ``HOLD`` and ``ALLOCATE``."""
    count = len(wanted.keys)
    return b"".join(
        (
            text(wanted.owner),
            pack("<I", count),
            *wanted.keys,
            pack(f"<{count}H", *wanted.spaces),
            pack(f"<{count}I", *wanted.tokens),
            pack(f"<{count}q", *wanted.positions),
        )
    )


def read_wanted(body: bytes) -> Wanted:
    """Read the body of ``HOLD`` and ``ALLOCATE``.

    Raises:
        BadMessage: it is none.
    """
    reader = Reader(body)
    owner, count = reader.text(), reader.count(_ROW)
    found = Wanted(
        owner,
        reader.keys(count),
        reader.column("H", count),
        reader.column("I", count),
        reader.column("q", count),
    )
    reader.end()
    if count and not min(found.tokens):
        raise BadMessage("a chunk of no tokens")
    return found


def pack_keys(keys: Sequence[ChunkKey], before: bytes = b"") -> bytes:
    """Return keys, after the other fields of a verb."""
    return b"".join((before, pack("<I", len(keys)), *keys))


def pack_words(words: Iterable[str | None]) -> bytes:
    """Return a word, or none, for each row: a table of the words, and a byte a row."""
    rows = list(words)
    known = [word for word in dict.fromkeys(rows) if word is not None][:_TEXT]
    table = b"".join((bytes([len(known)]), *map(text, known)))
    if known and rows.count(known[0]) == len(rows):  # the common case, and the long one
        return table + b"\1" * len(rows)
    place: dict[str | None, int] = {word: i for i, word in enumerate(known, start=1)}
    return table + bytes(map(place.get, rows, repeat(0)))


def read_words(reader: Reader, count: int) -> list[str | None]:
    """Read the bytes of :func:`pack_words` for *count* rows."""
    known: list[str | None] = [None, *(reader.text() for _ in range(reader.number("B")))]
    data = reader.data(count)
    try:
        return list(map(known.__getitem__, data))
    except IndexError as wrong:
        raise BadMessage("a word that is in no table") from wrong


def pack_chunks(chunks: Chunks) -> bytes:
    """Return the answer to ``HOLD`` and ``ALLOCATE``."""
    count = len(chunks.states)
    shape = f"<I{count}s{2 * count}Q"
    columns = pack(shape, count, chunks.states, *chunks.offsets, *chunks.sizes)
    return (
        columns + pack_words(chunks.words) + (pack_words(chunks.serdes) if chunks.serdes else b"")
    )


def read_chunks(body: bytes, most: int) -> Chunks:
    """Read the answer to ``HOLD`` and ``ALLOCATE`` for at most *most* chunks.

    Raises:
        BadMessage: it is none.
    """
    reader = Reader(body)
    count = reader.count(18)
    states = reader.data(count)
    if max(states, default=0) > State.MISSING:
        raise BadMessage("an unknown state")
    offsets, sizes = reader.column("Q", count), reader.column("Q", count)
    words = [word or "" for word in read_words(reader, count)]
    serdes = read_words(reader, count) if reader.left else [None] * count
    reader.end()
    if count > most:
        raise BadMessage(f"{count} chunks for {most}")
    return Chunks(states, offsets, sizes, words, serdes)


def pack_encoded(request: int, serdes: Collection[str]) -> bytes:
    """Return the body of ``ENCODED``."""
    names = list(serdes)[:_TEXT]
    return b"".join((pack("<QB", request, len(names)), *map(text, names)))


def read_encoded(body: bytes) -> tuple[int, list[str]]:
    """Read the body of ``ENCODED``: the number of the ``HOLD``, and serdes.

    Raises:
        BadMessage: it is none.
    """
    reader = Reader(body)
    request = reader.number("Q")
    serdes = [reader.text() for _ in range(reader.number("B"))]
    reader.end()
    return request, serdes


def pack_release(names: Iterable[tuple[int, int]]) -> bytes:
    """Return the body of ``RELEASE``: requests, and a place in each, or ``ALL``."""
    return b"".join(pack("<QI", request, place) for request, place in names)


def read_release(body: bytes) -> list[tuple[int, int]]:
    """Read the body of ``RELEASE``.

    Raises:
        BadMessage: it is none.
    """
    if len(body) % 12:
        raise BadMessage("half a name of a lease")
    return cast("list[tuple[int, int]]", list(Struct("<QI").iter_unpack(body)))


ALL = 0xFFFF_FFFF
"""Every lease of a request, and those still to come."""
