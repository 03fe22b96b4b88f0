"""Header pages that differ only in what each frame has of its own, as those of one prompt do."""

from __future__ import annotations

import math
from struct import Struct
from typing import NamedTuple

from hexkv.core.frames.opening import (
    CHECKSUM_BYTES,
    DIGEST_BYTES,
    DIGESTS_AT,
    OWN_CHECKSUM,
    PAYLOAD_CHECKSUM,
    HeaderPage,
    digest_of,
)
from hexkv.ports import KEY_BYTES, ChunkKey, FrameHeader, HashFunction

_MOMENT_AND_KEY = Struct(f"<d{KEY_BYTES}s")
_MOMENT_AT = 40
_POSITION = Struct("<Q")
_POSITION_AT = 180
UNKNOWN = 2**64 - 1
"""A position that the frame does not say."""

_NO_CHECKSUM = bytes(CHECKSUM_BYTES)
_NOTHING = bytes(_MOMENT_AND_KEY.size), bytes(2 * CHECKSUM_BYTES), bytes(_POSITION.size)


class Alike(NamedTuple):
    """A header page that was read field by field, for the next ones."""

    bare: bytearray
    """The page, with zeros for what each frame has of its own."""

    header: FrameHeader
    algorithm: HashFunction

    @classmethod
    def of(cls, page: HeaderPage) -> Alike:
        """A page in which no damage was found."""
        return cls(_bare(page.data, len(page.header.parts)), page.header, page.algorithm)

    def read(self, page: bytearray) -> HeaderPage | None:
        """What another *page* says, if it differs from this one in nothing else, and is whole.

        Otherwise it has to be read field by field, and is as it was.
        """
        like = self.header
        if _bare(page, len(like.parts)) != self.bare:
            return None
        created, key = _MOMENT_AND_KEY.unpack_from(page, _MOMENT_AT)
        if not (math.isfinite(created) and created >= 0):
            return None
        (position,) = _POSITION.unpack_from(page, _POSITION_AT)
        own, page[OWN_CHECKSUM] = page[OWN_CHECKSUM], _NO_CHECKSUM
        if digest_of(self.algorithm, memoryview(page)) != own:
            page[OWN_CHECKSUM] = own
            return None
        known = None if position == UNKNOWN else position
        # The fields in their order: to replace some by name takes three times as long.
        header = FrameHeader(ChunkKey(key), *like[1:6], created, known, *like[8:])
        return HeaderPage(header, self.algorithm, page)


def _bare(page: bytearray, parts: int) -> bytearray:
    bare = page[:]
    moment, checksums, position = _NOTHING
    bare[_MOMENT_AT : _MOMENT_AT + _MOMENT_AND_KEY.size] = moment
    bare[PAYLOAD_CHECKSUM.start : OWN_CHECKSUM.stop] = checksums
    bare[_POSITION_AT : _POSITION_AT + _POSITION.size] = position
    bare[DIGESTS_AT : DIGESTS_AT + parts * DIGEST_BYTES] = bytes(parts * DIGEST_BYTES)
    return bare
