"""Holds of chunks that the fastest tier has in memory, and of empty memory."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

from hexkv.ports import Deadline, Lease, Reason, ServiceHold, WholeChunks, release_all


class LentHold(WholeChunks):
    """Chunks of the fastest tier, leased where they lie."""

    __slots__ = ("begun", "leases", "origins", "reasons")

    done = lent = True
    bytes = 0

    def __init__(self, leases: Sequence[Lease | None], tier: str) -> None:
        self.leases = leases
        self.origins: Sequence[str] = [tier] * len(leases)
        self.reasons: Sequence[Reason | None] = [None] * len(leases)
        self.begun = len(leases)

    def wait(self, deadline: Deadline, first: int | None = None) -> bool:
        del deadline, first
        return True

    def known(self, deadline: Deadline) -> bool:
        del deadline
        return True

    def keep(self, deadline: Deadline, encoded: Collection[str] = ()) -> bool:
        del deadline, encoded
        return True

    def bring(self, group: int, deadline: Deadline) -> int:
        del group, deadline
        return len(self.leases)

    def release(self) -> None:
        leases, self.leases = self.leases, ()
        if leases:
            release_all(leases)  # type: ignore[arg-type] # all were lent

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()


if TYPE_CHECKING:

    def _is_a_hold(hold: LentHold) -> ServiceHold:
        return hold
