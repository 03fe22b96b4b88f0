"""A lease that is somebody's until it, and every share of it, is released: then it is counted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from threading import Lock
from types import TracebackType
from typing import TYPE_CHECKING, Self

from hexkv.ports import ChunkKey, ChunkSpec, Lease, MeteredLease, release_all, share_all


class Loan:
    """Chunks that were lent together. Safe from any thread."""

    def __init__(
        self, frames: Mapping[ChunkKey, int], over: Callable[[Mapping[ChunkKey, int]], None]
    ) -> None:
        """Of *frames* of so many bytes.

        *over* is told of chunks after the last lease on them, and how many bytes of each left.
        """
        self.over = over
        self.lock = Lock()
        self.leases = dict.fromkeys(frames, 1)
        """How many there are on each chunk."""

        self.moved: dict[ChunkKey, int] = {}
        """Bytes that left, of chunks of which somebody has said how many."""

        self.frames = frames


def lent(
    leases: Mapping[ChunkKey, Lease], over: Callable[[Mapping[ChunkKey, int]], None]
) -> dict[ChunkKey, LentLease]:
    """*leases* as lent ones: *over* is told of chunks as :class:`Loan` says."""
    loan = Loan({key: len(lease.frame) for key, lease in leases.items()}, over)
    return {key: LentLease(lease, loan, key) for key, lease in leases.items()}


class LentLease:
    """A lease with an end that somebody is told of; see :class:`hexkv.ports.MeteredLease`."""

    __slots__ = ("_key", "_loan", "_released", "lease")

    def __init__(self, lease: Lease, loan: Loan, key: ChunkKey) -> None:
        """One of those that *loan* counts of *key*, in place of *lease*."""
        self.lease = lease
        self._loan = loan
        self._key = key
        self._released = False

    @property
    def frame(self) -> memoryview:
        return self.lease.frame

    @property
    def payload(self) -> memoryview:
        return self.lease.payload

    @property
    def owner(self) -> str:
        return self.lease.owner

    @property
    def spec(self) -> ChunkSpec | None:
        return self.lease.spec

    @property
    def size(self) -> int:
        return self.lease.size

    def moved(self, size: int) -> None:
        loan = self._loan
        with loan.lock:
            loan.moved[self._key] = loan.moved.get(self._key, 0) + size

    def share(self, owner: str) -> LentLease:
        (share,) = self.share_run([self], owner)
        return share

    def release(self) -> None:
        self.release_run([self])

    @staticmethod
    def share_run(leases: Sequence[LentLease], owner: str) -> list[LentLease]:
        """See :class:`hexkv.ports.SupportsRuns`."""
        shares = list(share_all([lease.lease for lease in leases], owner))
        for lease in leases:
            with lease._loan.lock:
                lease._loan.leases[lease._key] += 1
        return [
            LentLease(share, lease._loan, lease._key)
            for share, lease in zip(shares, leases, strict=True)
        ]

    @staticmethod
    def release_run(leases: Sequence[LentLease]) -> None:
        """See :class:`hexkv.ports.SupportsRuns`."""
        for loan in {lease._loan for lease in leases}:
            with loan.lock:
                held = [it for it in leases if it._loan is loan and not it._released]
                for lease in held:
                    lease._released = True
            # The blocks first: who is told that they are over may lend as many again.
            release_all([lease.lease for lease in held])
            over: dict[ChunkKey, int] = {}
            with loan.lock:
                for lease in held:
                    key = lease._key
                    loan.leases[key] -= 1
                    if not loan.leases[key]:
                        over[key] = loan.moved.get(key, loan.frames[key])
            if over:
                loan.over(over)

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

    def _is_a_lease(lease: LentLease) -> MeteredLease:
        return lease
