"""Lent leases: the loan of a chunk is counted until every share of its lease is released."""

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
        """A loan of *frames* of these sizes.

        *over* is called with chunks after the last lease on them, and the bytes sent of each.
        """
        self.over = over
        self.lock = Lock()
        self.leases = dict.fromkeys(frames, 1)
        """The number of leases on each chunk."""

        self.moved: dict[ChunkKey, int] = {}
        """Bytes sent, for chunks whose channel reported them."""

        self.frames = frames


def lent(
    leases: Mapping[ChunkKey, Lease], over: Callable[[Mapping[ChunkKey, int]], None]
) -> dict[ChunkKey, LentLease]:
    """Wrap *leases* as lent ones; *over* is called as in :class:`Loan`."""
    loan = Loan({key: len(lease.frame) for key, lease in leases.items()}, over)
    return {key: LentLease(lease, loan, key) for key, lease in leases.items()}


class LentLease:
    """A lease that reports its end to its loan; see :class:`hexkv.ports.MeteredLease`."""

    __slots__ = ("_key", "_loan", "_released", "lease")

    def __init__(self, lease: Lease, loan: Loan, key: ChunkKey) -> None:
        """One of the leases that *loan* counts for *key*, in place of *lease*."""
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
            # The blocks first: the callback may lend the same number again.
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
