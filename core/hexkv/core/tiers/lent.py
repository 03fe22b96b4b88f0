"""A lease that is somebody's until it, and every share of it, is released: then it is counted."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from types import TracebackType
from typing import TYPE_CHECKING, Self

from hexkv.ports import ChunkSpec, Lease, MeteredLease


class _Use:
    """How many leases there are on a block that was lent, and what is to be done after the last."""

    def __init__(self, over: Callable[[int | None], None]) -> None:
        self._over = over
        self._count = 1
        self._moved: int | None = None
        self._lock = Lock()

    def move(self, size: int) -> None:
        with self._lock:
            self._moved = (self._moved or 0) + size

    def more(self) -> None:
        with self._lock:
            self._count += 1

    def less(self) -> None:
        with self._lock:
            self._count -= 1
            left = self._count
        if not left:
            self._over(self._moved)


class LentLease:
    """A lease with an end that somebody is told of; see :class:`hexkv.ports.MeteredLease`."""

    def __init__(
        self, lease: Lease, over: Callable[[int | None], None], use: _Use | None = None
    ) -> None:
        """Take over *lease*.

        Args:
            lease: on a block.
            over: called when it and all shares of it were released, with the bytes that left;
                ``None`` where nobody has said how many.
            use: of the block, if this is a share.
        """
        self.lease = lease
        self._use = use or _Use(over)
        self._over = over
        self._released = False
        self._lock = Lock()

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
        self._use.move(size)

    def share(self, owner: str) -> LentLease:
        share = self.lease.share(owner)
        self._use.more()
        return LentLease(share, self._over, self._use)

    def release(self) -> None:
        with self._lock:
            if self._released:
                return
            self._released = True
        self.lease.release()
        self._use.less()

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
