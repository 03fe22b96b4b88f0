"""How a chunk is written anywhere outside memory.

A frame is one header page and the payload, padded with zeros to a whole number of pages:

    +-- 4096 bytes ---------------------------+-- payload_bytes ----------+- zeros -+
    | fixed fields | identity (JSON) | zeros  | KV, as the serde left it  |         |
    +-----------------------------------------+---------------------------+---------+

It describes itself: whoever finds one knows which model, layout, tokens and serde it is
of without any index beside it. The byte layout is in :mod:`hexkv.core.frames.codec`; it is
versioned, and a version never changes its meaning.
"""

from __future__ import annotations

from typing import NamedTuple

from hexkv.ports.keys import KEY_BYTES, ChunkKey

PAGE = 4096
"""Bytes of a header, and the alignment of frames in memory and of their lengths."""

MAGIC = b"hexkv\xf0\r\n"
"""How a frame starts. Not valid UTF-8, and damaged by any text conversion (as in PNG, RFC 2083)."""

FRAME_VERSION = 2

KEY_AT = 48
"""Where a header has the chunk's key, in every version."""

IDENTITY_BYTES = 2048
"""The longest identity that a header has room for."""


def frame_bytes(payload_bytes: int) -> int:
    """Bytes of a frame with a payload of *payload_bytes*: always a multiple of ``PAGE``."""
    return PAGE + -(-payload_bytes // PAGE) * PAGE


def names_key(frame: memoryview, key: ChunkKey) -> bool:
    """True if *frame*, or its first page, begins as the frame of *key* does.

    A reader that gets frames from others asks this first. Whether the frame is whole and
    undamaged it does not say.
    """
    head = bytes(frame[: KEY_AT + KEY_BYTES])  # one copy, for this is asked of every frame
    return head.startswith(MAGIC) and head[KEY_AT:] == key


class FrameHeader(NamedTuple):
    """What a frame says about itself."""

    key: ChunkKey
    identity: str
    """Canonical JSON of the namespace; the tenant's salt appears as a digest only."""

    tokens: int
    """Tokens in the chunk."""

    serde: str
    """Which serde made the payload; ``raw`` for plain layer-major KV."""

    raw_bytes: int
    """Bytes of the chunk before the serde."""

    payload_bytes: int
    """Bytes of the payload, without the padding."""

    created: float
    """Wall-clock seconds at which the chunk was stored."""

    position: int | None = None
    """Token position in the prompt for which the chunk's keys are rotated (RoPE): that of its
    first token. Loading the chunk at another position rotates them by the difference.
    ``None`` where the host that stored it named the chunk itself, and did not say."""

    parts: tuple[int, ...] = ()
    """Where each part of the payload ends. Parts can be verified one by one: those of a raw
    payload are its layers. Empty stands for one part, the payload; the codec says so then."""

    checksum: str = ""
    """Name of the checksum algorithm, filled in by the codec."""

    version: int = FRAME_VERSION
