"""Header pages that differ only in the fields of each frame, as those of one prompt do."""

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
"""The page up to the digests: the fields of each frame (moment, key, both checksums, position), and
the bytes between them. The payload's checksum is verified with the payload."""

UNKNOWN = 2**64 - 1
"""The position of a frame without one."""

_NO_CHECKSUM = bytes(CHECKSUM_BYTES)


class Alike(NamedTuple):
    """A header page that was parsed field by field, as a pattern for the next ones."""

    fields: Struct
    """The fields of each frame in a page with this number of parts, and the bytes between."""

    same: tuple[bytes, ...]
    """The bytes between."""

    header: FrameHeader
    algorithm: HashFunction

    @classmethod
    def of(cls, page: HeaderPage) -> Alike:
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
        known = None if position == UNKNOWN else position
        # The fields in their order: replacing some by name takes three times as long.
        header = FrameHeader(ChunkKey(key), *like[1:6], created, known, *like[8:])
        return HeaderPage(header, self.algorithm, page)
