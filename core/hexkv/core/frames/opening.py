"""Opening a frame: verify its bytes when all have arrived, or part by part as they arrive."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from hexkv.ports import (
    PAGE,
    ChunkKey,
    CorruptFrame,
    FrameHeader,
    HashFunction,
    Reason,
    StoreError,
    frame_bytes,
)

if TYPE_CHECKING:
    from hexkv.core.frames.codec import FrameCodec

log = logging.getLogger(__name__)

CHECKSUM_BYTES = 16
PAYLOAD_CHECKSUM = slice(144, 160)
OWN_CHECKSUM = slice(160, 176)
DIGESTS_AT = 1024
DIGEST_BYTES = 8

_MARKED = 16 << 10
"""The distance of marked bytes."""

_OTHER = bytes(byte ^ 0xFF for byte in range(256))


class HeaderPage(NamedTuple):
    """An undamaged header page."""

    header: FrameHeader
    algorithm: HashFunction
    """The algorithm of the digests."""

    data: bytearray
    """A copy of the page."""


class Opening:
    """One frame that is being opened. One thread at a time uses it.

    Args:
        codec: reads the header page.
        frame: the memory of the frame, filled now or later.
    """

    __slots__ = ("_codec", "_digests", "_frame", "_marks", "_page")

    def __init__(self, codec: FrameCodec, frame: memoryview) -> None:
        self._codec = codec
        self._frame = frame
        self._marks = b""
        self._page: HeaderPage | None = None
        self._digests: list[bytes] = []

    def mark(self) -> None:
        """Change bytes of the buffer, so that its old contents do not pass for the new frame.

        A block may hold the very frame that a store is to read, from an earlier read. If the store
        then reported bytes before they arrive, and damaged ones arrived, the old ones would have
        been verified. Frames arrive in order: a mark that is gone shows that all bytes before it
        have arrived.
        """
        if len(self._frame) > PAGE + _MARKED:
            marked = self._frame[::_MARKED]
            self._marks = marked.tobytes().translate(_OTHER)
            marked[:] = self._marks

    def filled(self, upto: int) -> None:
        """Verify the parts before byte *upto* of a marked buffer, as far as its marks are gone.

        Only success counts: a part that differs now is verified again when all have arrived.
        """
        last = min((upto - 1) // _MARKED, len(self._marks) - 1)
        while last > 0 and self._frame[last * _MARKED] == self._marks[last]:
            last -= 1
        if last <= 0:
            return
        try:
            if self._page is None:
                self._page = self._codec.page(self._frame)
            self._verify(self._page, last * _MARKED)
        except (StoreError, ValueError):
            self._marks = b""
            self._page = None
            self._digests.clear()

    def end(self, key: ChunkKey | None) -> FrameHeader:
        """Return the header of the frame, now that all of it has arrived.

        Raises:
            CorruptFrame, StoreError: see :meth:`hexkv.core.frames.codec.FrameCodec.open`.
        """
        page = self._page or self._codec.page(self._frame)
        header, size = page.header, frame_bytes(page.header.payload_bytes)
        if len(self._frame) != size:
            raise CorruptFrame(f"the frame has {len(self._frame)} bytes, not {size}")
        if key is not None and header.key != key:
            raise CorruptFrame(f"the frame is of chunk {header.key.hex()}, not {key.hex()}")
        self._verify(page, size)
        whole = digest_of(page.algorithm, memoryview(b"".join(self._digests)))
        if whole != page.data[PAYLOAD_CHECKSUM]:
            raise CorruptFrame("the payload is damaged: its checksum differs")
        return header

    def _verify(self, page: HeaderPage, upto: int) -> None:
        header, digests = page.header, self._digests
        last = len(header.parts) - 1
        known_at = DIGESTS_AT + len(digests) * DIGEST_BYTES
        start = PAGE + (header.parts[len(digests) - 1] if digests else 0)
        # As :func:`checked` of each :func:`part_span`, in one loop: all parts of every frame
        # that is read pass through here.
        for index in range(len(digests), len(header.parts)):
            end = PAGE + header.parts[index] if index < last else frame_bytes(header.payload_bytes)
            if end > upto:
                return
            digest = digest_of(page.algorithm, self._frame[start:end])
            if digest[:DIGEST_BYTES] != page.data[known_at : known_at + DIGEST_BYTES]:
                raise CorruptFrame(f"the payload is damaged: the digest of part {index} differs")
            digests.append(digest)
            start, known_at = end, known_at + DIGEST_BYTES


def opened(opening: Opening, key: ChunkKey) -> FrameHeader | Reason:
    """Return the header of a frame that has arrived, or why it is unusable for *key*."""
    try:
        return opening.end(key)
    except CorruptFrame:
        return Reason.CORRUPT
    except StoreError as error:
        log.warning("a frame cannot be verified: %s", error)
        return Reason.FAILED


def part_span(parts: tuple[int, ...], index: int) -> tuple[int, int]:
    """Return ``(start, end)`` of a part in a frame; the last part includes the padding."""
    start = PAGE + (parts[index - 1] if index else 0)
    if index == len(parts) - 1:
        return start, frame_bytes(parts[index])
    return start, PAGE + parts[index]


def digest_at(index: int) -> slice:
    """Return the position in a header page of the digest of a part."""
    return slice(DIGESTS_AT + index * DIGEST_BYTES, DIGESTS_AT + (index + 1) * DIGEST_BYTES)


def checked(
    algorithm: HashFunction, page: bytes | bytearray | memoryview, index: int, data: memoryview
) -> bytes:
    """Return the digest of a part, if it equals the one in *page*.

    Raises:
        CorruptFrame: it differs.
    """
    digest = digest_of(algorithm, data)
    if digest[:DIGEST_BYTES] != page[digest_at(index)]:
        raise CorruptFrame(f"the payload is damaged: the digest of part {index} differs")
    return digest


def checked_digests(page: HeaderPage, digests: Sequence[bytes]) -> bytes:
    """Return the checksum of *digests*, one of each part; empty if *page* has other digests.

    Raises:
        StoreError: the algorithm failed.
        ValueError: its digests are too long.
    """
    padded = [digest.ljust(CHECKSUM_BYTES, b"\0") for digest in digests]
    if any(d[:DIGEST_BYTES] != page.data[digest_at(i)] for i, d in enumerate(padded)):
        return b""
    return digest_of(page.algorithm, memoryview(b"".join(padded)))


def digest_of(algorithm: HashFunction, data: memoryview) -> bytes:
    """Return the digest of *data*, padded to the length of a header's field.

    Raises:
        StoreError: the algorithm failed.
        ValueError: its digests are longer than that.
    """
    try:
        digest = algorithm.digest(data)
    except Exception as error:
        raise StoreError(f"checksum {algorithm.name} failed: {type(error).__name__}") from error
    if type(digest) is not bytes:
        raise StoreError(f"checksum {algorithm.name}: a digest is no {type(digest).__qualname__}")
    if not 1 <= len(digest) <= CHECKSUM_BYTES:
        raise ValueError(f"its digest has {len(digest)} bytes, not 1 to {CHECKSUM_BYTES}")
    return digest.ljust(CHECKSUM_BYTES, b"\0")
