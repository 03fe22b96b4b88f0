"""What an index grants, and the room that is under way because of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from hexkv.ports import ChunkKey


@dataclass(frozen=True, slots=True)
class Reservation:
    """What :meth:`TierIndex.reserve` decided. Keys of the batch in none of these are there."""

    keys: list[ChunkKey] = field(default_factory=list)
    """To write, in prefix order. Each must be committed or aborted."""

    victims: list[ChunkKey] = field(default_factory=list)
    """To delete before the first write, worst first. Nobody finds them any more."""

    busy: list[ChunkKey] = field(default_factory=list)
    """Being written, or deleted, by somebody else: leave them alone."""

    refused: list[ChunkKey] = field(default_factory=list)
    """There is no room: larger than the budget, or what is there may not go."""


class Claim:
    """Room that writes and deletions of one call share.

    Victims make room for the writes that wait for them, so the two do not add up: until
    the victims are gone they take the room, afterwards the writes do.
    """

    __slots__ = ("leaving", "writing")

    def __init__(self) -> None:
        self.leaving = 0
        self.writing = 0

    @property
    def freed(self) -> int:
        """Bytes that come free when the victims are gone."""
        return max(0, self.leaving - self.writing)


class Pending(NamedTuple):
    """A chunk on its way to the store or out of it. There are few at any time."""

    size: int
    claim: Claim
    before: ChunkKey | None = None
    """The chunk before it in its prompt."""
