"""The port by which pieces of segments are found in prompts, wherever they stand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from hexkv.ports.clock import Deadline
from hexkv.ports.keys import ChunkKey


class Piece(NamedTuple):
    """A chunk of a segment, found in a prompt."""

    key: ChunkKey
    start: int
    end: int
    """Tokens ``[start, end)`` of the prompt."""

    position: int
    """Tokens of its segment before it."""


@runtime_checkable
class SegmentFinder(Protocol):
    """Finds the chunks of segments of one namespace in prompts. Safe from any thread.

    *packed* are tokens as contiguous little-endian uint32, of format ``B``, the caller's again
    when the call returns. A piece is given only where all tokens are those it is named by: its
    own, behind those of its segment before it.
    """

    def add(self, key: ChunkKey, packed: memoryview, after: ChunkKey | None = None) -> bool:
        """Have a chunk of tokens *packed*, which continues chunk *after*, found from now on.

        False where that cannot be: it is too short, *after* is unknown, or there is no room.
        """
        ...

    def forget(self, key: ChunkKey) -> None:
        """Find a chunk, and those that continue it, no more."""
        ...

    def find(self, packed: memoryview, deadline: Deadline | None = None) -> Sequence[Piece]:
        """The pieces in a prompt: in order, none over another; of two the leftmost, then longest.

        What was not found before *deadline* is not given.
        """
        ...

    @property
    def used_bytes(self) -> int:
        """Bytes of memory that what was added takes, about."""
        ...
