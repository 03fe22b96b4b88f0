"""One directory on several servers, each of which has all entries."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain, tee
from typing import TypeVar

from hexkv.ports import (
    ChunkKey,
    Clock,
    Deadline,
    Directory,
    InvalidRequest,
    Member,
    Report,
    StoreError,
    StoreUnreachable,
)

T = TypeVar("T")


class ReplicatedDirectory:
    """Queries one of several directories, and the next one if that does not answer.

    A node's reports go to each of *replicas* separately (:class:`~hexkv.ports.SupportsReplicas`),
    so that a replica which is down, or has restarted, delays no node. A node that reports to this
    object as a whole must join again if any replica needs it.

    Args:
        replicas: in the order of queries.
        clock: for *pause*.
        pause: seconds for which a replica that did not answer is queried last.
    """

    def __init__(self, replicas: Sequence[Directory], clock: Clock, pause: float = 5.0) -> None:
        self.replicas = tuple(replicas)
        self._clock = clock
        self._pause = pause
        self._silent_until = [0.0] * len(self.replicas)

    @property
    def heartbeat_seconds(self) -> float:
        return min(replica.heartbeat_seconds for replica in self.replicas)

    def join(
        self, member: Member, snapshot: Iterable[Sequence[ChunkKey]], deadline: Deadline
    ) -> bool:
        copies = iter(tee(snapshot, len(self.replicas)))
        return self._everywhere(lambda replica: replica.join(member, next(copies), deadline))

    def report(self, member: Member, report: Report, deadline: Deadline) -> bool:
        return self._everywhere(lambda replica: replica.report(member, report, deadline))

    def heartbeat(self, member: Member, sequence: int, deadline: Deadline) -> bool:
        return self._everywhere(lambda replica: replica.heartbeat(member, sequence, deadline))

    def leave(self, member: Member, deadline: Deadline) -> None:
        def left(replica: Directory) -> bool:
            replica.leave(member, deadline)
            return True

        self._everywhere(left)

    def locate(self, keys: Sequence[ChunkKey], deadline: Deadline) -> Sequence[Sequence[Member]]:
        return self._first(lambda replica, soon: replica.locate(keys, soon), deadline)

    def members(self, deadline: Deadline) -> Sequence[Member]:
        return self._first(lambda replica, soon: replica.members(soon), deadline)

    def close(self) -> None:
        for replica in self.replicas:
            replica.close()

    def _everywhere(self, call: Callable[[Directory], bool]) -> bool:
        """Call every replica. True if all that answer return True.

        Raises:
            StoreError: none answers.
        """
        verdicts, errors = [], []
        for replica in self.replicas:
            try:
                verdicts.append(call(replica))
            except InvalidRequest:
                raise
            except StoreError as error:
                errors.append(error)
        if not verdicts:
            raise errors[0]
        return all(verdicts)

    def _first(self, call: Callable[[Directory, Deadline], T], deadline: Deadline) -> T:
        """Return the answer of the first replica that answers.

        Raises:
            StoreError: none does.
        """
        now = self._clock.now()
        order = sorted(range(len(self.replicas)), key=lambda it: self._silent_until[it] > now)
        failure: StoreError = StoreUnreachable("there is no directory")
        for place, number in enumerate(order):
            # Each but the last leaves half of the remaining time to the next ones.
            share = deadline.remaining() / (2 if place + 1 < len(order) else 1)
            try:
                return call(self.replicas[number], Deadline.after(deadline.clock, share))
            except StoreError as error:
                self._silent_until[number] = self._clock.now() + self._pause
                failure = error
        raise failure


def merged(answers: Iterable[Sequence[Sequence[Member]]], count: int) -> list[tuple[Member, ...]]:
    """Return, for each of *count* keys, the members in any of *answers*."""
    columns = list(answers)
    if not columns:
        return [()] * count
    return [tuple(chain.from_iterable(row)) for row in zip(*columns, strict=True)]
