"""A chunk: its description, and its frame, the format of a chunk everywhere outside memory.

A frame is one header page and the payload, padded with zeros to a whole number of pages:

    +-- 4096 bytes ---------------------------+-- payload_bytes ----------+- zeros -+
    | fixed fields | identity (JSON) | zeros  | KV, as the serde left it  |         |
    +-----------------------------------------+---------------------------+---------+

A frame describes itself: its reader learns the model, layout, number of tokens and serde from it,
without an index. The byte layout is in :mod:`hexkv.core.frames.codec`; it is versioned, and a
version never changes its meaning.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from hexkv.ports.keys import KEY_BYTES, ChunkKey
from hexkv.ports.layout import KVLayout

RAW = "raw"
"""The serde of a payload that is plain layer-major KV."""


class ChunkSpec(NamedTuple):
    """Describes one chunk, wanted or present."""

    key: ChunkKey

    identity: str
    """Canonical JSON of the namespace, as frames carry it."""

    layout: KVLayout
    tokens: int

    serde: str = RAW
    """Name of the serde that encoded the payload."""

    position: int | None = None
    """Token position for which its keys are rotated; ``None`` if unknown."""

    @property
    def raw_bytes(self) -> int:
        """Bytes of the chunk before encoding."""
        return self.layout.token_bytes * self.tokens


def raw_sizes(specs: Sequence[ChunkSpec]) -> list[int]:
    """Return the bytes of KV of each chunk, computed once for neighbours of one shape."""
    sizes: list[int] = []
    layout, tokens, size = None, 0, 0
    for spec in specs:
        if spec[3] != tokens or spec[2] is not layout:  # by place: it is read for each chunk
            layout, tokens, size = spec.layout, spec.tokens, spec.raw_bytes
        sizes.append(size)
    return sizes


PAGE = 4096
"""Bytes of a header, and the alignment of frames in memory and of their lengths."""

MAGIC = b"hexkv\xf0\r\n"
"""First bytes of a frame. Not UTF-8, and damaged by any text conversion (as in PNG, RFC 2083)."""

FRAME_VERSION = 2

KEY_AT = 48
"""Offset of the chunk's key in a header, in every version."""

IDENTITY_BYTES = 2048
"""The most bytes of an identity in a header."""


def frame_bytes(payload_bytes: int) -> int:
    """Return the bytes of a frame with a payload of *payload_bytes*: a multiple of ``PAGE``."""
    return PAGE + -(-payload_bytes // PAGE) * PAGE


def names_key(frame: memoryview, key: ChunkKey) -> bool:
    """True if *frame*, or its first page, begins as the frame of *key* does.

    A reader that gets frames from others checks this first. It does not check that the frame is
    whole and undamaged.
    """
    head = bytes(frame[: KEY_AT + KEY_BYTES])  # one copy, as every frame is checked
    return head.startswith(MAGIC) and head[KEY_AT:] == key


class FrameHeader(NamedTuple):
    """The header of a frame: the description of its chunk."""

    key: ChunkKey
    identity: str
    """Canonical JSON of the namespace; the tenant's salt appears as a digest only."""

    tokens: int
    """Tokens in the chunk."""

    serde: str
    """Name of the serde that encoded the payload; ``raw`` for plain layer-major KV."""

    raw_bytes: int
    """Bytes of the chunk before encoding."""

    payload_bytes: int
    """Bytes of the payload, without the padding."""

    created: float
    """Wall-clock seconds at which the chunk was stored."""

    position: int | None = None
    """Token position in the prompt for which the chunk's keys are rotated (RoPE): that of its
    first token. Loading the chunk at another position rotates them by the difference.
    ``None`` if the host that stored it named the chunk itself, and gave no position."""

    parts: tuple[int, ...] = ()
    """End of each part of the payload. Parts can be verified one by one: those of a raw payload
    are its layers. Empty stands for one part, the payload; the codec then fills in its end."""

    checksum: str = ""
    """Name of the checksum algorithm, filled in by the codec."""

    version: int = FRAME_VERSION
