"""Operations on many leases: in one step if their class offers that, else one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from hexkv.ports.lease import Lease


class SupportsRuns(Protocol):
    """A class of leases that shares and releases many of them in one step, under one lock.

    Leases of the block pool do. Both are static methods, of leases of that very class.
    """

    @staticmethod
    def share_run(leases: Sequence[Lease], owner: str) -> Sequence[Lease]:
        """Return a share of each lease in the name of *owner*: all of them, or raise, and none."""
        ...

    @staticmethod
    def release_run(leases: Sequence[Lease]) -> None:
        """Release every lease; skip those that were released before."""
        ...


def share_all(leases: Sequence[Lease], owner: str) -> Iterable[Lease]:
    """Return a share of each of *leases* in the name of *owner*, made at once or lazily.

    Raises:
        Exception: any error of sharing one of them.
    """
    run: Callable[[Sequence[Lease], str], Iterable[Lease]] | None
    run = getattr(_kind(leases), "share_run", None)
    return (lease.share(owner) for lease in leases) if run is None else run(leases, owner)


def release_all(leases: Sequence[Lease]) -> None:
    """Release every one of *leases*."""
    run: Callable[[Sequence[Lease]], None] | None
    run = getattr(_kind(leases), "release_run", None)
    if run is not None:
        run(leases)
        return
    for lease in leases:
        lease.release()


def _kind(leases: Sequence[Lease]) -> type[Lease] | None:
    """Return the class of all *leases*; ``None`` if they differ."""
    kinds = set(map(type, leases))
    return kinds.pop() if len(kinds) == 1 else None
