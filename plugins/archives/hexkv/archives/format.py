r"""The format of an archive: a head page, frames as they are, an end page.

All of it is in pages of 4096 bytes, numbers are little-endian, and a page that is not a frame's
has the first 16 bytes of its SHA-256, taken with that field zero::

    head   0  magic b"hexkv\xf1\r\n"       end   0  magic b"hexkv\xf2\r\n"
           8  version, u32                       8  version, u32
          12  bytes of JSON, u32                12  zero, u32
          16  checksum                          16  checksum
          32  JSON: of what it is an archive    32  frames, u64
                                                40  bytes of the frames, u64
                                                48  SHA-256 of the frames' keys, in order

Frames (:mod:`hexkv.core.frames.codec`) follow each other without gaps; each has its own length and
checksums. So a file that was cut is an archive up to the last whole frame, and the frames behind
damage are found again at the next page that begins as a frame does. The end page proves that
nothing is missing. A version never changes its meaning.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from struct import Struct
from typing import TYPE_CHECKING, BinaryIO

from hexkv.core.frames.codec import FrameCodec
from hexkv.ports import MAGIC, PAGE, CorruptFrame, FrameHeader, InvalidRequest, frame_bytes

if TYPE_CHECKING:
    from hashlib import _Hash

VERSION = 1
HEAD, END = b"hexkv\xf1\r\n", b"hexkv\xf2\r\n"

_FIELDS = Struct("<8sII16s")
_TOTALS = Struct("<QQ32s")
_CHECKSUM = slice(16, 32)
_ROOM = PAGE - _FIELDS.size
_PIECE = 1 << 20


@dataclass(slots=True)
class Totals:
    """The content of an archive so far."""

    frames: int = 0
    bytes: int = 0
    keys: _Hash = field(default_factory=sha256)
    """Hash of the frames' keys, one after another."""

    def add(self, header: FrameHeader) -> None:
        """Count a frame."""
        self.frames += 1
        self.bytes += frame_bytes(header.payload_bytes)
        self.keys.update(header.key)


def head_page(about: Mapping[str, object]) -> bytes:
    """Return the first page of an archive.

    Raises:
        InvalidRequest: *about* does not fit it.
    """
    text = json.dumps(about, sort_keys=True, separators=(",", ":")).encode()
    if len(text) > _ROOM:
        raise InvalidRequest(f"the archive's identity takes {len(text)} bytes, not {_ROOM}")
    return _page(HEAD, len(text), text)


def end_page(totals: Totals) -> bytes:
    """Return the last page of an archive."""
    return _page(END, 0, _TOTALS.pack(totals.frames, totals.bytes, totals.keys.digest()))


def _page(magic: bytes, length: int, body: bytes) -> bytes:
    page = bytearray(_FIELDS.pack(magic, VERSION, length, bytes(16)) + body).ljust(PAGE, b"\0")
    page[_CHECKSUM] = sha256(page).digest()[:16]
    return bytes(page)


def _body(page: bytes, magic: bytes) -> tuple[int, bytes]:
    """Return the number in a page and the bytes that follow it.

    Raises:
        InvalidRequest: the page is no such one, of another version, or damaged.
    """
    found, version, length, checksum = _FIELDS.unpack_from(page)
    if len(page) < PAGE or found != magic:
        raise InvalidRequest("not an archive of hexkv")
    if version != VERSION:
        raise InvalidRequest(f"an archive of version {version}, not {VERSION}")
    bare = bytearray(page)
    bare[_CHECKSUM] = bytes(16)
    if sha256(bare).digest()[:16] != checksum or length > _ROOM:
        raise InvalidRequest("a damaged page of an archive")
    return length, page[_FIELDS.size :]


class ArchiveReader:
    """Reads an archive once, from its beginning, from a file or a pipe.

    Trusts no size in it: a frame that does not fit into the rest of a file is cut off, and no
    memory is taken here but for pages.
    """

    def __init__(self, file: BinaryIO, codec: FrameCodec) -> None:
        """Read the head.

        Raises:
            InvalidRequest: it is none.
        """
        self._file = file
        self._codec = codec
        self.size = _size(file)
        """Bytes of the file; ``None`` of a pipe."""

        self.at = 0
        """Bytes that were read or skipped."""

        self.whole = 0
        """The end of the last whole frame before any damage."""

        self.totals = Totals()
        self.cut = False
        """True once the file has ended without an end page."""

        self.damage: list[tuple[int, str]] = []
        """Offset and kind of each damage in the middle; the first thousand."""

        self._ended = False
        self._left = 0
        first = self._read(PAGE)
        if len(first) < PAGE:
            raise InvalidRequest("not an archive of hexkv")
        length, body = _body(first, HEAD)
        try:
            about = json.loads(body[:length])
        except (ValueError, RecursionError) as error:
            raise InvalidRequest("a damaged page of an archive") from error
        if not isinstance(about, dict):
            raise InvalidRequest("a damaged page of an archive")
        self.about: dict[str, object] = about
        self.whole = PAGE

    @property
    def complete(self) -> bool:
        """True once all was read, and nothing is missing or damaged."""
        return self._ended and not self.damage

    def __iter__(self) -> Iterator[tuple[FrameHeader, bytes]]:
        """Yield each frame's header and page; :meth:`fill` reads the rest, or it is skipped."""
        lost: tuple[int, str] | None = None
        while True:
            if not self._skip(self._left):
                self.cut = True
                return
            if not lost and not self.damage:
                self.whole = self.at
            start, page = self.at, self._read(PAGE)
            if len(page) < PAGE:
                self.cut = True
                return
            if page.startswith(END) and self._ends(start, page):
                return
            header = self._header(page)
            if isinstance(header, str):
                lost = lost or (start, header)
                continue
            self._left = frame_bytes(header.payload_bytes) - PAGE
            if self.size is not None and self._left > self.size - self.at:
                self.cut = True
                return
            if lost is not None:  # before that, it may as well be a torn end
                self._damaged(*lost)
                lost = None
            self.totals.add(header)
            yield header, page

    def fill(self, frame: memoryview) -> bool:
        """Read the payload of the newest frame into *frame*, behind its page.

        False if the file ends before.
        """
        view = frame[PAGE : PAGE + self._left]
        got = 0
        while got < len(view):
            step = self._file.readinto(view[got:])  # type: ignore[attr-defined]
            if not step:
                break
            got += step
        self.at += got
        self._left -= got
        return not self._left

    def _header(self, page: bytes) -> FrameHeader | str:
        """Return the header in a page, or the reason that it is no frame's."""
        if not page.startswith(MAGIC):
            return "no frame begins here"
        try:
            return self._codec.peek(memoryview(page))
        except CorruptFrame as error:
            return str(error)

    def _ends(self, start: int, page: bytes) -> bool:
        """True if a page is an end page."""
        try:
            _, body = _body(page, END)
        except InvalidRequest:
            return False
        self._ended = True
        frames, size, keys = _TOTALS.unpack_from(body)
        own = self.totals
        if (frames, size, keys) != (own.frames, own.bytes, own.keys.digest()):
            self._damaged(start, f"{frames} frames were written, {own.frames} are there")
        elif self._read(1):
            self._damaged(start + PAGE, "there is something behind the end")
        return True

    def _damaged(self, at: int, what: str) -> None:
        if len(self.damage) < 1000:
            self.damage.append((at, what))

    def _read(self, size: int) -> bytes:
        parts = []
        while size and (part := self._file.read(size)):
            parts.append(part)
            size -= len(part)
        data = b"".join(parts)
        self.at += len(data)
        return data

    def _skip(self, size: int) -> bool:
        """Skip *size* bytes. False if there are fewer."""
        self._left = 0
        if not size:
            return True
        if self.size is not None:
            self._file.seek(size, 1)
            self.at += size
            return True
        while size and (part := self._read(min(size, _PIECE))):
            size -= len(part)
        return not size


def _size(file: BinaryIO) -> int | None:
    if not file.seekable():
        return None
    here = file.tell()
    size = file.seek(0, 2)
    file.seek(here)
    return size - here
