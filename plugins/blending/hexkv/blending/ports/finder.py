"""The port for finding pieces of segments at any place in prompts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from hexkv.ports.keys import ChunkKey
from hexkv.ports.runtime.clock import Deadline


class Piece(NamedTuple):
    """A chunk of a segment, found in a prompt."""

    key: ChunkKey
    start: int
    end: int
    """Tokens ``[start, end)`` of the prompt."""

    position: int
    """The number of tokens of its segment before it."""


@runtime_checkable
class SegmentFinder(Protocol):
    """Finds the chunks of segments of one namespace in prompts. Safe from any thread.

    *packed* are tokens as contiguous little-endian uint32, of format ``B``, the caller's again
    when the call returns. A piece is returned only if all tokens of its name match: its own, and
    those of its segment before it.
    """

    def add(self, key: ChunkKey, packed: memoryview, after: ChunkKey | None = None) -> bool:
        """Add a chunk of tokens *packed*, which continues chunk *after*.

        False if it cannot be added: it is too short, *after* is unknown, or there is no room.
        """
        ...

    def forget(self, key: ChunkKey) -> None:
        """Remove a chunk, and those that continue it."""
        ...

    def find(self, packed: memoryview, deadline: Deadline | None = None) -> Sequence[Piece]:
        """Return the pieces in a prompt, in order; of overlapping ones the leftmost, then longest.

        Pieces that were not found before *deadline* are left out.
        """
        ...

    @property
    def used_bytes(self) -> int:
        """Approximate bytes of memory of the added chunks."""
        ...
