"""A lease that is somebody's until it, and every share of it, is released: then it is counted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Lock
from types import TracebackType
from typing import TYPE_CHECKING, Self

from hexkv.ports import ChunkKey, ChunkSpec, Lease, MeteredLease, release_all, share_all


class Use:
    """A block that was lent."""

    __slots__ = ("frame", "key", "leases", "moved", "size")

    def __init__(self, key: ChunkKey, size: int, frame: int) -> None:
        """Of *key*, which takes *size* bytes of what may be lent, and whose frame has so many."""
        self.key = key
        self.size = size
        self.frame = frame
        self.leases = 1
        """How many there are on it."""

        self.moved: int | None = None
        """Bytes of it that left; ``None`` where nobody has said how many."""

    @property
    def left(self) -> int:
        """Bytes that are to be counted."""
        return self.frame if self.moved is None else self.moved


class Loan:
    """What was lent in one call. Safe from any thread."""

    def __init__(self, over: Callable[[Sequence[Use]], None]) -> None:
        """*over* is told of blocks after the last lease on them."""
        self.over = over
        self.lock = Lock()


class LentLease:
    """A lease with an end that somebody is told of; see :class:`hexkv.ports.MeteredLease`."""

    __slots__ = ("_loan", "_released", "_use", "lease")

    def __init__(self, lease: Lease, loan: Loan, use: Use) -> None:
        """One of those that *use* counts, in place of *lease*."""
        self.lease = lease
        self._loan = loan
        self._use = use
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
        with self._loan.lock:
            self._use.moved = (self._use.moved or 0) + size

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
                lease._use.leases += 1
        return [
            LentLease(share, lease._loan, lease._use)
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
            over: list[Use] = []
            with loan.lock:
                for lease in held:
                    lease._use.leases -= 1
                    if not lease._use.leases:
                        over.append(lease._use)
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
