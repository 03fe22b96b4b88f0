"""A directory in this process: the port over a cell, without a wire."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

from hexkv.adapters.directory.cell import Cell, new_proof
from hexkv.adapters.directory.table import Rows
from hexkv.adapters.directory.tags import tags_of
from hexkv.ports import (
    REPORT_KEYS,
    ChunkKey,
    Deadline,
    InvalidRequest,
    Member,
    Report,
    StoreError,
    StoreUnreachable,
)


class LocalDirectory:
    """A directory over a cell. Safe from any thread."""

    def __init__(self, cell: Cell) -> None:
        self.cell = cell
        self._numbers: dict[str, tuple[int, int]] = {}
        """Generation and number of the last membership that each node began here."""
        self._proof = new_proof()
        self._holders = Holders()
        self._closed = False

    @property
    def heartbeat_seconds(self) -> float:
        return self.cell.heartbeat_seconds

    def join(
        self, member: Member, snapshot: Iterable[Sequence[ChunkKey]], deadline: Deadline
    ) -> bool:
        self._check(deadline)
        number = self.cell.join(member, self._proof)
        if number is None:
            return False
        self._numbers[member.name] = member.generation, number
        for batch in snapshot:
            self.cell.take(number, tags_of(checked(batch)))
            self._check(deadline)
        return True

    def last_life(self, name: str, deadline: Deadline) -> int:
        self._check(deadline)
        return self.cell.last_life(name)

    def report(self, member: Member, report: Report, deadline: Deadline) -> bool:
        checked(report.added, report.removed)
        self._check(deadline)
        added, removed = tags_of(report.added), tags_of(report.removed)
        return self.cell.report(self._number(member), report.sequence, added, removed)

    def heartbeat(self, member: Member, sequence: int, deadline: Deadline) -> bool:
        self._check(deadline)
        return self.cell.heartbeat(self._number(member), sequence)

    def leave(self, member: Member, deadline: Deadline) -> None:
        self._check(deadline)
        self.cell.leave(self._number(member))

    def locate(self, keys: Sequence[ChunkKey], deadline: Deadline) -> Sequence[Sequence[Member]]:
        self._check(deadline)
        tags = tags_of(keys)
        while True:
            holders, located = self._holders, self.cell.locate(tags)
            if located.version != holders.version:
                version, columns = self.cell.columns()
                holders = self._holders = Holders(version, dict(columns))
            if located.version == holders.version:  # otherwise the members changed in between
                return holders.of(located.rows)

    def members(self, deadline: Deadline) -> Sequence[Member]:
        self._check(deadline)
        return [member for _, member in self.cell.columns()[1]]

    def close(self) -> None:
        self._closed = True

    def _number(self, member: Member) -> int:
        generation, number = self._numbers.get(member.name, (0, 0))
        return number if generation == member.generation else 0

    def _check(self, deadline: Deadline) -> None:
        if self._closed:
            raise StoreError("the directory is closed")
        if deadline.expired:
            raise StoreUnreachable("no time is left to ask the directory")


class Holders:
    """The members of the columns in rows, of one version of the columns."""

    def __init__(self, version: int = -1, columns: dict[int, Member] | None = None) -> None:
        self.version = version
        self._columns = columns or {}
        self._cached = lru_cache(maxsize=4096)(self._named)

    def of(self, rows: Rows) -> list[tuple[Member, ...]]:
        """Return, for each row, the members of its columns."""
        if rows.shape[1] == 1:
            return list(map(self._cached, rows[:, 0].tolist()))
        whole = [int.from_bytes(row.tobytes(), "little") for row in rows]
        return list(map(self._cached, whole))

    def _named(self, bits: int) -> tuple[Member, ...]:
        found = (it for it in range(bits.bit_length()) if bits >> it & 1)
        return tuple(self._columns[it] for it in found if it in self._columns)


def checked(*batches: Sequence[ChunkKey]) -> Sequence[ChunkKey]:
    """Return the first of *batches*.

    Raises:
        InvalidRequest: they have more keys than a message allows.
    """
    if sum(map(len, batches)) > REPORT_KEYS:
        raise InvalidRequest(f"more than {REPORT_KEYS} keys in a batch")
    return batches[0]
