"""What an index gave to a call that is to write and delete chunks, until the call is done."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple
from weakref import ref

from hexkv.ports import ChunkKey


@dataclass(frozen=True, slots=True, weakref_slot=True)
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

    parts: list[object] = field(default_factory=list)
    """Reservations and victims that this one was put together from, and stands for."""


class Victims(list[ChunkKey]):
    """Chunks to delete from the store now. Nobody finds them any more."""


class Claimed:
    """Room that writes and deletions of one call share.

    Victims make room for the writes that wait for them, so the two do not add up: until
    the victims are gone they take the room, afterwards the writes do.

    The call has the *holder* until it is done. Once nobody has it, nobody will end what the
    call began.
    """

    __slots__ = ("_holder", "leaving", "writing")

    def __init__(self, holder: Reservation | Victims | None = None) -> None:
        self.leaving = 0
        self.writing = 0
        self._holder = None if holder is None else ref(holder)

    @property
    def freed(self) -> int:
        """Bytes that come free when the victims are gone."""
        return max(0, self.leaving - self.writing)

    @property
    def dead(self) -> bool:
        """True once nobody will end it."""
        return self._holder is None or self._holder() is None


class Pending(NamedTuple):
    """A chunk on its way to the store or out of it. There are few at any time."""

    size: int
    claim: Claimed
    before: ChunkKey | None = None
    """The chunk before it in its prompt."""


def recount(reserved: Mapping[ChunkKey, Pending], leaving: Mapping[ChunkKey, Pending]) -> int:
    """Bytes that chunks on their way take, each call's counted anew."""
    claims = {pending.claim for pending in (*reserved.values(), *leaving.values())}
    for claim in claims:
        claim.writing = claim.leaving = 0
    for pending in reserved.values():
        pending.claim.writing += pending.size
    for pending in leaving.values():
        pending.claim.leaving += pending.size
    return sum(max(claim.writing, claim.leaving) for claim in claims)
