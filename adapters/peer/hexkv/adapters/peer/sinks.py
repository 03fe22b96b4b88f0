"""The memory of a store's caller, for a channel: on leases that it may share."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Condition, Lock
from typing import TYPE_CHECKING, Self

from hexkv.ports import (
    PAGE,
    ChunkSpec,
    Destination,
    Lease,
    LeaseSink,
    Sink,
    release_all,
)


class _Users:
    """Counts the leases that may still write to the memory of one call."""

    def __init__(self) -> None:
        self._lock = Lock()  # entered directly: by the condition it costs twice as much
        self._changed = Condition(self._lock)
        self._count = 0

    def add(self, count: int) -> None:
        with self._lock:
            self._count += count
            if not self._count:
                self._changed.notify_all()

    def wait(self) -> None:
        """Wait until the count is 0."""
        with self._changed:
            self._changed.wait_for(lambda: not self._count)


class CallersLease:
    """A lease on the caller's memory, for as long as the call lasts."""

    spec: ChunkSpec | None = None

    def __init__(self, frame: memoryview, users: _Users, owner: str) -> None:
        """Create a lease that *users* already counts."""
        self.frame = frame
        self.owner = owner
        self._users: _Users | None = users

    @property
    def payload(self) -> memoryview:
        return self.frame[PAGE:]

    @property
    def size(self) -> int:
        return len(self.frame)

    def share(self, owner: str) -> CallersLease:
        (share,) = self.share_run([self], owner)
        return share

    def release(self) -> None:
        self.release_run([self])

    @staticmethod
    def share_run(leases: Sequence[CallersLease], owner: str) -> list[CallersLease]:
        """See :class:`hexkv.ports.SupportsRuns`."""
        users = {lease._users for lease in leases}
        (one,) = users if len(users) == 1 else (None,)
        if one is None:
            raise ValueError("a lease was released, or is of another call")
        one.add(len(leases))
        return [CallersLease(lease.frame, one, owner) for lease in leases]

    @staticmethod
    def release_run(leases: Sequence[CallersLease]) -> None:
        """See :class:`hexkv.ports.SupportsRuns`."""
        held: dict[_Users, int] = {}
        for lease in leases:
            users, lease._users = lease._users, None
            if users is not None:
                held[users] = held.get(users, 0) + 1
        for users, count in held.items():
            users.add(-count)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class CallersSink:
    """Some of the chunks of a store's *sink*, for one read over a channel."""

    def __init__(self, sink: Sink, which: Sequence[int]) -> None:
        self._sink = sink
        self._which = which
        self._users = _Users()
        self._leases: dict[int, CallersLease] = {}

    def room(self, index: int, size: int) -> Destination | None:
        into = self._sink.room(self._which[index], size)
        if into is None:
            return None
        self._users.add(1)
        lease = CallersLease(into, self._users, "peers")
        former, self._leases[index] = self._leases.get(index), lease
        if former is not None:
            former.release()
        return Destination(lease, into)

    def filled(self, index: int, upto: int) -> None:
        self._sink.filled(self._which[index], upto)

    def settle(self) -> None:
        """Wait until nothing can still write to the memory, also after the deadline.

        The caller uses its memory again when the call is over: the same rule as for a store that
        knows the pool's memory (:class:`hexkv.ports.SupportsRegistration`).
        """
        release_all(list(self._leases.values()))
        self._users.wait()


class RangeSink:
    """One buffer, for a part of a frame."""

    def __init__(self, into: memoryview) -> None:
        self._into = into

    def room(self, index: int, size: int) -> memoryview | None:
        """See :class:`hexkv.ports.Sink`."""
        del index
        return self._into if size == len(self._into) else None

    def filled(self, index: int, upto: int) -> None:
        """See :class:`hexkv.ports.Sink`."""


if TYPE_CHECKING:

    def _is_a_lease(lease: CallersLease) -> Lease:
        return lease

    def _is_a_sink(sink: CallersSink) -> LeaseSink:
        return sink
