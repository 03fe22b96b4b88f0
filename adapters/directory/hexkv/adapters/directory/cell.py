"""The state of a directory: its members, and the chunks that each of them holds.

A membership has a random number that is never reused, also when the directory restarts, and a
column of the table. The columns of silent members are masked out of every answer; a member that
reports again in time continues with its column. The columns of ended memberships are wiped, all
together, once no other column is left for a new one.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from threading import Lock
from typing import NamedTuple

import numpy as np

from hexkv.adapters.directory.table import WORD, Rows, Table
from hexkv.adapters.directory.tags import Tags
from hexkv.ports import SILENT_HEARTBEATS, Clock, Member, StoreBusy, StoreFull

FORGOTTEN = 10 * SILENT_HEARTBEATS
"""Heartbeats after which a silent membership ends."""

_NAMES = 4096
"""The number of ended nodes whose last lives are remembered, so that an older life cannot return.
"""

NUMBER_BYTES = 8
"""Bytes of the number of a membership, and of a version."""


def new_proof() -> int:
    """Return a random number for :meth:`Cell.join`, for one process and all its joins."""
    return secrets.randbits(8 * NUMBER_BYTES - 1) or 1


@dataclass(slots=True)
class _Membership:
    """A member, and the sequence of its last report."""

    member: Member
    column: int
    heard: float
    proof: int
    """The number by which it may join again while it sends heartbeats; 0 for none."""

    sequence: int = 0


class Located(NamedTuple):
    """The holders of chunks: a row of columns for each tag."""

    version: int
    """The version of the columns' meaning."""

    rows: Rows


class Cell:
    """Members and their entries. Safe from any thread; no call waits.

    Args:
        clock: for the members' heartbeats.
        heartbeat_seconds: between two of them.
        members: the number allowed.
        entries: chunks that the table takes; further ones are dropped and counted.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        heartbeat_seconds: float = 1.0,
        members: int = 64,
        entries: int = 1 << 24,
    ) -> None:
        self.heartbeat_seconds = heartbeat_seconds
        self._clock = clock
        self._columns = -(-members // WORD) * WORD
        self._most = members
        self._table = Table(self._columns, entries)
        self._lock = Lock()
        self._memberships: dict[int, _Membership] = {}
        self._by_name: dict[str, int] = {}
        self._last: dict[str, int] = {}
        """By name, the generation of the last life that has ended; of at most ``_NAMES`` names."""
        self._clean = list(range(self._columns))
        self._void: list[int] = []
        self._version = secrets.randbits(62)
        self._mask = self._row(())
        self._until = 0.0
        """The time at which the first member alive by the mask will have been silent for too long.
        """

    def join(self, member: Member, proof: int) -> int | None:
        """Begin a membership without entries; ``None`` if a later generation is known.

        Args:
            member: the one that joins.
            proof: a number known only to this member's process; 0 is none. While a member sends
                heartbeats, its name can be joined again only by the same proof.

        Raises:
            StoreBusy: another process has the name at present.
            StoreFull: the directory has its limit of members.
        """
        with self._lock:
            known = self._by_name.get(member.name)
            if known is not None:
                former = self._memberships[known]
                if former.member.generation > member.generation:
                    return None
                if self._is_alive(former) and not (proof and proof == former.proof):
                    raise StoreBusy(
                        f"another process, or another cache of this one, is {member.name!r}"
                    )
                self._end(known)
            number = new_proof()
            now = self._clock.now()
            self._memberships[number] = _Membership(member, self._column(), now, proof)
            self._by_name[member.name] = number
            self._change()
            return number

    def last_life(self, name: str) -> int:
        """Return the generation of a node's last known life, also if it has ended; 0 for none."""
        with self._lock:
            number = self._by_name.get(name, 0)
            known = self._memberships.get(number)
            return self._last.get(name, 0) if known is None else known.member.generation

    def take(self, number: int, tags: Tags) -> bool:
        """Note a part of a snapshot. False if the membership does not exist."""
        with self._lock:
            membership = self._heard(number)
            if membership is None:
                return False
            self._table.add(tags, membership.column)
            return True

    def report(self, number: int, sequence: int, added: Tags, removed: Tags) -> bool:
        """Note a report. False if its node must join again."""
        with self._lock:
            membership = self._heard(number)
            if membership is None or sequence > membership.sequence + 1:
                return False
            if sequence == membership.sequence + 1:
                self._table.remove(removed, membership.column)
                self._table.add(added, membership.column)
                membership.sequence = sequence
            return True

    def heartbeat(self, number: int, sequence: int) -> bool:
        """Note a heartbeat. False if its node must join again."""
        with self._lock:
            membership = self._heard(number)
            return membership is not None and sequence <= membership.sequence

    def leave(self, number: int) -> None:
        """End a membership, if it exists."""
        with self._lock:
            if number in self._memberships:
                self._end(number)
                self._change()

    def locate(self, tags: Tags) -> Located:
        """Return the columns that hold each tag, of members that are alive."""
        with self._lock:
            self._look()
            return Located(self._version, self._table.rows(tags) & self._mask)

    def columns(self) -> tuple[int, Sequence[tuple[int, Member]]]:
        """Return the version, and the member of each column; only those that are alive."""
        with self._lock:
            self._look()
            alive = (it for it in self._memberships.values() if self._is_alive(it))
            return self._version, [(it.column, it.member) for it in alive]

    def health(self) -> dict[str, int]:
        """Return numbers for people: members, entries, bytes, and dropped chunks."""
        with self._lock:
            self._look()
            alive = sum(map(self._is_alive, self._memberships.values()))
            return {
                "members": alive,
                "chunks": len(self._table),
                "bytes": self._table.nbytes,
                "dropped": self._table.dropped,
            }

    def _is_alive(self, membership: _Membership) -> bool:
        silence = self._clock.now() - membership.heard
        return silence < SILENT_HEARTBEATS * self.heartbeat_seconds

    def _heard(self, number: int) -> _Membership | None:
        membership = self._memberships.get(number)
        if membership is not None:
            if not self._is_alive(membership):
                self._change()
            membership.heard = self._clock.now()
        return membership

    def _look(self) -> None:
        """Update the mask of members that are alive now."""
        now = self._clock.now()
        if now < self._until:
            return
        for number, it in list(self._memberships.items()):
            if now - it.heard >= FORGOTTEN * self.heartbeat_seconds:
                self._end(number)
        alive = [it for it in self._memberships.values() if self._is_alive(it)]
        mask = self._row([it.column for it in alive])
        if not np.array_equal(mask, self._mask):
            self._mask = mask
            self._version += 1
        first = min((it.heard for it in alive), default=now)
        self._until = first + SILENT_HEARTBEATS * self.heartbeat_seconds

    def _change(self) -> None:
        self._until = 0.0
        self._version += 1

    def _column(self) -> int:
        """Return a column without a bit.

        Raises:
            StoreFull: there is none.
        """
        if len(self._memberships) >= self._most:
            longest = min(self._memberships, key=lambda it: self._memberships[it].heard)
            if self._is_alive(self._memberships[longest]):
                raise StoreFull(f"the directory has {self._most} members already")
            self._end(longest)
        if not self._clean:
            self._table.wipe(self._row(self._void))
            self._clean, self._void = self._void, []
        return self._clean.pop()

    def _end(self, number: int) -> None:
        membership = self._memberships.pop(number)
        name = membership.member.name
        del self._by_name[name]
        self._last.pop(name, None)
        self._last[name] = membership.member.generation
        if len(self._last) > _NAMES:
            del self._last[next(iter(self._last))]
        self._void.append(membership.column)

    def _row(self, columns: Sequence[int]) -> Rows:
        row = np.zeros(self._columns // WORD, np.uint64)
        for column in columns:
            row[column // WORD] |= np.uint64(1 << column % WORD)
        return row
