"""A chunk as routers know it: blocks of tokens, each named by all tokens up to its end.

A router hashes nothing of ours: it takes the numbers that events give, and the tokens beside them.
So a block's number is a hash of the number before and of its tokens, and equal tokens have equal
numbers whatever chunk or tail of a chunk they lie in.
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


class Block(NamedTuple):
    """What the blocks of one adapter (LoRA) have in common."""

    tokens: int
    lora: str

    @property
    def root(self) -> bytes:
        """What stands for the block before the first one."""
        return _hashed(self.lora.encode())


class KnownChunk:
    """The blocks of one chunk, and where they are announced."""

    __slots__ = ("announced", "block", "depth", "hashes", "parent", "tokens")

    def __init__(self, block: Block, parent: bytes | None, depth: int, tokens: bytes) -> None:
        """Of *tokens*, whole blocks of which *depth* stand before, the last one named *parent*."""
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
        """The name of the last block; of the one before where this chunk has none."""
        return self.hashes[-HASH_BYTES:] or self.parent

    def shared(self, others: Sequence[KnownChunk]) -> int:
        """How many of the first blocks some of *others* has, too."""
        return max((_common(self.hashes, other.hashes) for other in others), default=0)

    def stored(self, first: int, medium: str) -> Event:
        """The event that the blocks from *first* on are there."""
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
        """The event that they are there no more."""
        gone = numbers(self.hashes[first * HASH_BYTES :])
        return {"type": "BlockRemoved", "block_hashes": gone, "medium": medium}


CLEARED: Event = {"type": "AllBlocksCleared"}


def numbers(hashes: bytes) -> tuple[int, ...]:
    """The numbers that routers are told."""
    return Struct(f">{len(hashes) // HASH_BYTES}Q").unpack(hashes)


def _hashed(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=HASH_BYTES).digest()


def _common(a: bytes, b: bytes) -> int:
    """How many blocks two chunks have in common, from the first on."""
    most = min(len(a), len(b))
    if a[:most] == b[:most]:
        return most // HASH_BYTES
    return next(i for i in range(most) if a[i] != b[i]) // HASH_BYTES
