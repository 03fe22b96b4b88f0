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
    HeaderPage,
    digest_of,
)
from hexkv.ports import KEY_BYTES, PAGE, ChunkKey, FrameHeader, HashFunction

_BEFORE_DIGESTS = f"<40sd{KEY_BYTES}s48s16x{CHECKSUM_BYTES}s4sQ836s"
"""The page up to the digests: the moment, the key, both checksums and the position of each frame,
and what is between them. The payload's checksum is looked at with the payload."""

UNKNOWN = 2**64 - 1
"""A position that the frame does not say."""

_NO_CHECKSUM = bytes(CHECKSUM_BYTES)


class Alike(NamedTuple):
    """A header page that was read field by field, for the next ones."""

    fields: Struct
    """What each frame has of its own in a page with so many parts, and what is between that."""

    same: tuple[bytes, ...]
    """What is between."""

    header: FrameHeader
    algorithm: HashFunction

    @classmethod
    def of(cls, page: HeaderPage) -> Alike:
        """A page in which no damage was found."""
        digests = DIGEST_BYTES * len(page.header.parts)
        fields = Struct(f"{_BEFORE_DIGESTS}{digests}x{PAGE - DIGESTS_AT - digests}s")
        start, _, _, middle, _, parts, _, end, rest = fields.unpack(page.data)
        return cls(fields, (start, middle, parts, end, rest), page.header, page.algorithm)

    def read(self, page: bytearray) -> HeaderPage | None:
        """What another *page* says, if it differs from this one in nothing else, and is whole.

        Otherwise it has to be read field by field, and is as it was.
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
        known = None if position == UNKNOWN else position
        # The fields in their order: to replace some by name takes three times as long.
        header = FrameHeader(ChunkKey(key), *like[1:6], created, known, *like[8:])
        return HeaderPage(header, self.algorithm, page)
