"""Refusal of chunks that do not fit a restarted service's memory, as if memory were short.

An engine is built for chunks that fit the service's memory. The service may be restarted with a
pool that is smaller than one of them: then there is no memory to read or store it, and that is no
error of the caller.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

from hexkv.ports import (
    ChunkService,
    ChunkSpec,
    Deadline,
    InvalidRequest,
    Lease,
    Reason,
    ServiceHold,
)


class RefusedHold:
    """An empty hold: there is no memory for any of its chunks."""

    done = True

    def __init__(self, chunks: int) -> None:
        self.leases: Sequence[Lease | None] = [None] * chunks
        self.reasons: Sequence[Reason | None] = [Reason.REFUSED] * chunks
        self.origins: Sequence[str] = [""] * chunks

    def known(self, deadline: Deadline) -> bool:
        """See :class:`hexkv.ports.ServiceHold`."""
        del deadline
        return True

    def keep(self, deadline: Deadline) -> bool:
        """See :class:`hexkv.ports.ServiceHold`."""
        del deadline
        return True

    def wait(self, deadline: Deadline) -> bool:
        """See :class:`hexkv.ports.Hold`."""
        del deadline
        return True

    def release(self) -> None:
        """See :class:`hexkv.ports.Hold`."""
        self.leases = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()


def hold_fitting(
    service: ChunkService,
    wanted: Sequence[ChunkSpec],
    owner: str,
    deadline: Deadline,
    seconds: float | None = None,
) -> ServiceHold:
    """Return a hold of *wanted*; an empty one if a chunk is larger than the service's memory."""
    try:
        return service.hold(wanted, owner, deadline, seconds=seconds)
    except InvalidRequest:
        return RefusedHold(len(wanted))


def allocate_fitting(
    service: ChunkService, wanted: Sequence[ChunkSpec], owner: str, deadline: Deadline
) -> Sequence[Lease]:
    """Return empty leases for the first of *wanted*; none if one is larger than the memory."""
    try:
        return service.allocate(wanted, owner, deadline)
    except InvalidRequest:
        return ()


if TYPE_CHECKING:

    def _is_a_hold(hold: RefusedHold) -> ServiceHold:
        return hold
