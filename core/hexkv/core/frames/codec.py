"""The frame codec: how a frame describes its chunk, and how damage is detected.

A frame is a header page and the payload, padded with zeros to whole pages. The header is
little-endian, at fixed offsets; text is printable ASCII, padded with zeros:

    ====== ===== ==========================================================
    offset bytes field
    ====== ===== ==========================================================
         0     8 ``MAGIC``
         8     4 format version, unsigned
        12     4 length of the identity, unsigned
        16     8 tokens in the chunk, unsigned
        24     8 bytes of the chunk before the serde, unsigned
        32     8 bytes of the payload, unsigned
        40     8 moment of creation, IEEE 754 seconds since 1970-01-01 UTC
        48    48 key
        96    32 name of the serde
       128    16 name of the checksum algorithm
       144    16 checksum of the digests of all parts, one after another
       160    16 checksum of this page with this field zero
       176     4 parts of the payload, 1 to 128, unsigned
       180     8 token position that the keys are rotated for, unsigned; all ones: not known
       188    68 zeros, for later versions
       256   768 where each part ends in the payload, unsigned, 6 bytes each
      1024  1024 the first 8 bytes of each part's digest
      2048  2048 identity: canonical JSON of the namespace
    ====== ===== ==========================================================

Each part has at least one byte, unless the payload has none; the last one's digest covers
the padding, too. So every byte is hashed once, and a reader that has the page can verify
one part, say one layer, without the others. Digests and checksums are of the algorithm that
the header names; shorter ones are padded with zeros. A reader of another version refuses
the frame, but never finds one: a version has keys of its own (``KEY_FORMAT``).
"""

from __future__ import annotations

import math
import zlib
from collections import deque
from collections.abc import Iterable
from itertools import pairwise
from struct import Struct
from struct import error as StructError  # noqa: N812 - it is a class
from typing import NamedTuple

from hexkv.core.frames.opening import (
    CHECKSUM_BYTES,
    DIGEST_BYTES,
    DIGESTS_AT,
    OWN_CHECKSUM,
    PAYLOAD_CHECKSUM,
    HeaderPage,
    Opening,
    checked,
    digest_at,
    digest_of,
    part_span,
)
from hexkv.ports import (
    FRAME_VERSION,
    IDENTITY_BYTES,
    KEY_BYTES,
    MAGIC,
    PAGE,
    ChunkKey,
    ConfigError,
    CorruptFrame,
    FrameHeader,
    HashFunction,
    KVLayout,
    StoreError,
    frame_bytes,
)

_FIELDS = Struct(f"<8sIIQQQd{KEY_BYTES}s32s16s16s16sIQ")
_SERDE_BYTES = 32
_CHECKSUM_NAME = slice(128, 144)
_ENDS_AT = 256
_END_BYTES = 6
_IDENTITY_AT = PAGE - IDENTITY_BYTES

_BEFORE_DIGESTS = f"<40sd{KEY_BYTES}s48s16x{CHECKSUM_BYTES}s4sQ836s"
"""The page up to the digests: the fields of each frame (moment, key, both checksums, position), and
the bytes between them. The payload's checksum is verified with the payload."""

_UNKNOWN = 2**64 - 1
"""The position of a frame without one."""

_NO_CHECKSUM = bytes(CHECKSUM_BYTES)

PARTS = (_IDENTITY_AT - DIGESTS_AT) // DIGEST_BYTES
"""The most parts that a header has room for."""


def layers_per_part(layout: KVLayout) -> int:
    """The number of neighbouring layers in one part of a raw payload: one, if there is room."""
    return -(-layout.layers // PARTS)


def layer_parts(layout: KVLayout, tokens: int) -> tuple[int, ...]:
    """The ends of the parts of a raw payload of *tokens* tokens: those of its layers."""
    step = layers_per_part(layout)
    last = layout.layers - 1
    ends = range(step - 1, last + step, step)
    return tuple(layout.layer_span(min(layer, last), tokens)[1] for layer in ends)


def _crc32(data: bytes | memoryview) -> bytes:
    return zlib.crc32(data).to_bytes(4, "little")


CRC32 = HashFunction("crc32", _crc32)
"""Part of every Python. Misses one damaged frame in 2**32: for tests, and where nothing better is
installed."""


class _Alike(NamedTuple):
    """A header page that was parsed field by field, as a pattern for the next ones."""

    fields: Struct
    """The fields of each frame in a page with this number of parts, and the bytes between."""

    same: tuple[bytes, ...]
    """The bytes between."""

    header: FrameHeader
    algorithm: HashFunction

    @classmethod
    def of(cls, page: HeaderPage) -> _Alike:
        """Make a pattern of an undamaged page."""
        digests = DIGEST_BYTES * len(page.header.parts)
        fields = Struct(f"{_BEFORE_DIGESTS}{digests}x{PAGE - DIGESTS_AT - digests}s")
        start, _, _, middle, _, parts, _, end, rest = fields.unpack(page.data)
        return cls(fields, (start, middle, parts, end, rest), page.header, page.algorithm)

    def read(self, page: bytearray) -> HeaderPage | None:
        """Parse another *page*, if it differs from this one in nothing else, and is undamaged.

        Otherwise return ``None`` and leave *page* unchanged: it has to be parsed field by field.
        """
        like = self.header
        start, created, key, middle, own, parts, position, end, rest = self.fields.unpack(page)
        if (start, middle, parts, end, rest) != self.same:
            return None
        if not (math.isfinite(created) and created >= 0):
            return None
        page[OWN_CHECKSUM] = _NO_CHECKSUM
        if digest_of(self.algorithm, memoryview(page)) != own:
            page[OWN_CHECKSUM] = own
            return None
        known = None if position == _UNKNOWN else position
        # The fields in their order: replacing some by name takes three times as long.
        header = FrameHeader(ChunkKey(key), *like[1:6], created, known, *like[8:])
        return HeaderPage(header, self.algorithm, page)


class FrameCodec:
    """Seals frames with one checksum algorithm, and opens those of every known one.

    Any thread may use it. Frames are views of format ``B``.

    Args:
        checksum: the algorithm to seal frames with.
        known: further algorithms that frames may have been sealed with.

    Raises:
        ConfigError: an algorithm's name or digest does not fit into a header.
    """

    __slots__ = ("_alike", "_known", "_own")

    def __init__(self, checksum: HashFunction, known: Iterable[HashFunction] = ()) -> None:
        self._own = checksum
        self._alike: _Alike | None = None
        """The last page that was parsed field by field."""

        self._known: dict[bytes, HashFunction] = {}
        for algorithm in (*known, checksum):
            try:
                name = _padded("its name", algorithm.name, CHECKSUM_BYTES)
                digest_of(algorithm, memoryview(b""))
            except (ValueError, StoreError) as error:
                raise ConfigError(f"checksum {algorithm.name!r}: {error}") from error
            self._known[name] = algorithm

    def seal(self, frame: memoryview, header: FrameHeader) -> None:
        """Make *frame*, which holds the payload after its first page, a whole frame.

        Zeroes the padding, then writes the header page in one copy. The field ``checksum`` of
        *header* is ignored: the frame gets the codec's own.

        Args:
            frame: ``frame_bytes(header.payload_bytes)`` writable bytes.
            header: the fields of the frame.

        Raises:
            ValueError: *header* does not fit into a header page, or *frame* has another length than
                it requires.
        """
        if not header.parts:
            header = header._replace(parts=(header.payload_bytes,))
        page = _page(header)
        padding = PAGE + header.payload_bytes
        if len(frame) != frame_bytes(header.payload_bytes):
            raise ValueError(f"a frame of {len(frame)} bytes is not one of {header.payload_bytes}")
        frame[padding:] = bytes(len(frame) - padding)
        digests: deque[bytes] = deque()
        # From its end: the bytes copied last are still in the CPU's cache, and so are the
        # first ones when the frame is written.
        for index in reversed(range(len(header.parts))):
            digest = digest_of(self._own, frame[slice(*part_span(header.parts, index))])
            page[digest_at(index)] = digest[:DIGEST_BYTES]
            digests.appendleft(digest)
        page[_CHECKSUM_NAME] = _padded("checksum", self._own.name, CHECKSUM_BYTES)
        page[PAYLOAD_CHECKSUM] = digest_of(self._own, memoryview(b"".join(digests)))
        page[OWN_CHECKSUM] = digest_of(self._own, memoryview(page))
        frame[:PAGE] = page

    def open(self, frame: memoryview, key: ChunkKey | None = None) -> FrameHeader:
        """Return the header of *frame*, if every byte of it is as it was sealed.

        Args:
            frame: the whole frame, without further bytes.
            key: the key that it must have, if known.

        Raises:
            CorruptFrame: it is not a frame, is damaged, has another length than when it was sealed,
                or was put under another key.
        """
        return Opening(self, frame).end(key)

    def peek(self, page: memoryview) -> FrameHeader:
        """Return the header in a header page, if that is undamaged; the payload is not verified.

        Args:
            page: the first ``PAGE`` bytes of a frame, or more.

        Raises:
            CorruptFrame: it is no header page, or a damaged one.
        """
        return self.page(page).header

    def check_part(self, page: memoryview, index: int, data: memoryview) -> None:
        """Verify one part of a payload without the others.

        Args:
            page: the frame's header page, in which :meth:`peek` found no damage.
            index: the number of the part.
            data: the bytes in the frame's :func:`part_span` of it.

        Raises:
            CorruptFrame: they are not as they were sealed.
        """
        checked(self._known[bytes(page[_CHECKSUM_NAME])], page, index, data)

    @staticmethod
    def is_sealed(frame: memoryview) -> bool:
        """True if *frame* starts like a sealed one. Verifies nothing."""
        return frame[: len(MAGIC)] == MAGIC

    def page(self, frame: memoryview) -> HeaderPage:
        """Return the verified header page of *frame*, with the means to verify the rest.

        Raises:
            CorruptFrame: it is no header page, or a damaged one.
        """
        if len(frame) < PAGE:
            raise CorruptFrame(f"{len(frame)} bytes are too few for a frame's header")
        page = bytearray(frame[:PAGE])
        if self._alike is not None and (found := self._alike.read(page)) is not None:
            return found
        (
            magic,
            version,
            identity_bytes,
            tokens,
            raw_bytes,
            payload_bytes,
            created,
            key,
            serde,
            checksum_name,
            _payload_checksum,
            own_checksum,
            parts,
            position,
        ) = _FIELDS.unpack_from(page)
        if magic != MAGIC:
            raise CorruptFrame("not a frame: it does not start with the magic bytes")
        if version != FRAME_VERSION:
            raise CorruptFrame(f"the frame has version {version}, not {FRAME_VERSION}")
        algorithm = self._known.get(checksum_name)
        if algorithm is None:
            raise CorruptFrame(f"the frame's checksum algorithm is not known: {checksum_name!r}")
        page[OWN_CHECKSUM] = bytes(CHECKSUM_BYTES)
        if digest_of(algorithm, memoryview(page)) != own_checksum:
            raise CorruptFrame("the header is damaged: its checksum differs")

        # The header is as its writer left it. The checks below refuse a faulty writer.
        if not 1 <= parts <= PARTS:
            raise CorruptFrame(f"the payload has {parts} parts")
        identity_end = _IDENTITY_AT + identity_bytes
        unused = b"".join(
            (
                page[_FIELDS.size : _ENDS_AT],
                page[_ENDS_AT + parts * _END_BYTES : DIGESTS_AT],
                page[DIGESTS_AT + parts * DIGEST_BYTES : _IDENTITY_AT],
                page[identity_end:],
            )
        )
        # Compared as a whole: comparing byte by byte takes as long as hashing 256 KiB.
        if identity_end > PAGE or unused != bytes(len(unused)):
            raise CorruptFrame("the header has bytes where none belong")
        if not (math.isfinite(created) and created >= 0):
            raise CorruptFrame(f"the header's moment of creation is {created}")
        ends = tuple(int.from_bytes(page[_end_at(i)], "little") for i in range(parts))
        if not _add_up(ends, payload_bytes):
            raise CorruptFrame(f"the parts do not make up a payload of {payload_bytes} bytes")
        header = FrameHeader(
            key=ChunkKey(key),
            identity=_text("identity", page[_IDENTITY_AT:identity_end]),
            tokens=tokens,
            serde=_text("serde", serde.rstrip(b"\0")),
            raw_bytes=raw_bytes,
            payload_bytes=payload_bytes,
            created=created,
            position=None if position == _UNKNOWN else position,
            parts=ends,
            checksum=algorithm.name,
            version=version,
        )
        read = HeaderPage(header, algorithm, page)
        self._alike = _Alike.of(read)
        return read


def _page(header: FrameHeader) -> bytearray:
    """Return the header page, its checksums and digests still zero."""
    if header.version != FRAME_VERSION:
        raise ValueError(f"version {header.version} is not {FRAME_VERSION}")
    if len(header.key) != KEY_BYTES:
        raise ValueError(f"a key has {KEY_BYTES} bytes, not {len(header.key)}")
    if not (math.isfinite(header.created) and header.created >= 0):
        raise ValueError(f"{header.created} is no moment of creation")
    if len(header.parts) > PARTS or not _add_up(header.parts, header.payload_bytes):
        raise ValueError(f"these are no parts of {header.payload_bytes} bytes: {header.parts}")
    if header.position == _UNKNOWN:
        raise ValueError(f"{header.position} is no position of a token")
    identity = _padded("identity", header.identity, IDENTITY_BYTES)
    try:
        fields = _FIELDS.pack(
            MAGIC,
            header.version,
            len(header.identity),
            header.tokens,
            header.raw_bytes,
            header.payload_bytes,
            header.created,
            header.key,
            _padded("serde", header.serde, _SERDE_BYTES),
            b"",
            b"",
            b"",
            len(header.parts),
            _UNKNOWN if header.position is None else header.position,
        )
        ends = b"".join(end.to_bytes(_END_BYTES, "little") for end in header.parts)
    except (StructError, OverflowError) as error:
        raise ValueError(f"a count of the header does not fit: {error}") from error
    return bytearray((fields.ljust(_ENDS_AT, b"\0") + ends).ljust(_IDENTITY_AT, b"\0") + identity)


def _add_up(ends: tuple[int, ...], payload_bytes: int) -> bool:
    """True if parts with these ends make up the payload, and none is empty."""
    if ends == (payload_bytes,):
        return True
    ascending = all(start < end for start, end in pairwise(ends))
    return ascending and ends[0] > 0 and ends[-1] == payload_bytes


def _end_at(index: int) -> slice:
    return slice(_ENDS_AT + index * _END_BYTES, _ENDS_AT + (index + 1) * _END_BYTES)


def _padded(what: str, text: str, room: int) -> bytes:
    if not (text and text.isascii() and text.isprintable() and len(text) <= room):
        raise ValueError(f"{what} must be 1 to {room} printable ASCII characters: {text!r}")
    return text.encode("ascii").ljust(room, b"\0")


def _text(what: str, data: bytes | bytearray) -> str:
    text = data.decode("latin-1")
    if not (text and text.isascii() and text.isprintable()):
        raise CorruptFrame(f"the header's {what} is not printable ASCII")
    return text
