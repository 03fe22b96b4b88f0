"""A chunk as routers see it: blocks of tokens, each named by all tokens up to its end.

A router does not compute our hashes: it takes the numbers in events, and the tokens beside them. So
a block's number is a hash of the previous number and of its tokens, and equal tokens have equal
numbers in whichever chunk or tail of a chunk they are.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from struct import Struct
from typing import Any, NamedTuple

TOKEN_BYTES = 4
HASH_BYTES = 8

Event = dict[str, Any]
"""One event of a batch, as it is encoded."""


class BlockTraits(NamedTuple):
    """The common properties of the blocks of one adapter (LoRA)."""

    tokens: int
    lora: str

    @property
    def root(self) -> bytes:
        """The name that represents the block before the first one."""
        return _hashed(self.lora.encode())


class KnownChunk:
    """The blocks of one chunk, and the media on which they are announced."""

    __slots__ = ("announced", "block", "depth", "hashes", "parent", "tokens")

    def __init__(self, block: BlockTraits, parent: bytes | None, depth: int, tokens: bytes) -> None:
        """Name the blocks of *tokens*, after *depth* others, the last of which is *parent*."""
        self.block = block
        self.parent = parent
        self.depth = depth
        self.tokens = tokens
        self.announced = 0
        """A bit for each medium."""

        size = block.tokens * TOKEN_BYTES
        link, links = parent or block.root, []
        for start in range(0, len(tokens), size):
            link = _hashed(link + tokens[start : start + size])
            links.append(link)
        self.hashes = b"".join(links)

    @property
    def last(self) -> bytes | None:
        """The name of the last block, or of the block before if this chunk has none."""
        return self.hashes[-HASH_BYTES:] or self.parent

    def shared(self, others: Sequence[KnownChunk]) -> int:
        """Return the number of first blocks that one of *others* has, too."""
        return max((_common(self.hashes, other.hashes) for other in others), default=0)

    def stored(self, first: int, medium: str) -> Event:
        """Return the event that the blocks from *first* on are stored."""
        at = first * HASH_BYTES
        parent = self.hashes[at - HASH_BYTES : at] if first else self.parent
        tokens = self.tokens[at // HASH_BYTES * self.block.tokens * TOKEN_BYTES :]
        return {
            "type": "BlockStored",
            "block_hashes": numbers(self.hashes[at:]),
            "parent_block_hash": None if parent is None else numbers(parent)[0],
            "token_ids": Struct(f"<{len(tokens) // TOKEN_BYTES}I").unpack(tokens),
            "block_size": self.block.tokens,
            "lora_id": None,
            "medium": medium,
            "lora_name": self.block.lora or None,
        }

    def removed(self, first: int, medium: str) -> Event:
        """Return the event that the blocks from *first* on are removed."""
        gone = numbers(self.hashes[first * HASH_BYTES :])
        return {"type": "BlockRemoved", "block_hashes": gone, "medium": medium}


CLEARED: Event = {"type": "AllBlocksCleared"}


def numbers(hashes: bytes) -> tuple[int, ...]:
    """Return the numbers in events for *hashes*."""
    return Struct(f">{len(hashes) // HASH_BYTES}Q").unpack(hashes)


def _hashed(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=HASH_BYTES).digest()


def _common(a: bytes, b: bytes) -> int:
    """Return the number of common blocks of two chunks, from the first on."""
    most = min(len(a), len(b))
    if a[:most] == b[:most]:
        return most // HASH_BYTES
    return next(i for i in range(most) if a[i] != b[i]) // HASH_BYTES
