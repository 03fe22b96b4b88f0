"""One directory on several servers, each of which knows everything."""

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
    """Asks one of several directories, and the next one where that does not answer.

    A node's reports go to each of *replicas* by itself (:class:`~hexkv.ports.SupportsReplicas`),
    so that one which is away, or was started anew, keeps nobody waiting. Who reports to this one
    as a whole is told to join again where any replica needs it.

    Args:
        replicas: in the order in which they are asked.
        clock: for *pause*.
        pause: seconds for which one that did not answer is asked last.
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
        """True if no replica says otherwise; one that does not answer says nothing.

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
        """What the first says that answers.

        Raises:
            StoreError: none does.
        """
        now = self._clock.now()
        order = sorted(range(len(self.replicas)), key=lambda it: self._silent_until[it] > now)
        failure: StoreError = StoreUnreachable("there is no directory")
        for place, number in enumerate(order):
            # Each but the last leaves half of the time that there is to the next ones.
            share = deadline.remaining() / (2 if place + 1 < len(order) else 1)
            try:
                return call(self.replicas[number], Deadline.after(deadline.clock, share))
            except StoreError as error:
                self._silent_until[number] = self._clock.now() + self._pause
                failure = error
        raise failure


def merged(answers: Iterable[Sequence[Sequence[Member]]], count: int) -> list[tuple[Member, ...]]:
    """For each of *count* keys the members that any of *answers* names."""
    columns = list(answers)
    if not columns:
        return [()] * count
    return [tuple(chain.from_iterable(row)) for row in zip(*columns, strict=True)]
