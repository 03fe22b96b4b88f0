"""Reports a cache's content to a directory: the part that runs beside the cache.

The changes are those of :class:`~hexkv.plugins.observing.held.HeldChunks`. After a queue outgrew
its bytes the node joins again with a snapshot of the set, as after a gap, after a directory's
restart, and at the beginning.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from contextlib import suppress
from threading import Condition, Thread
from types import TracebackType
from typing import NoReturn, Self

from hexkv.core.notices import Notices
from hexkv.core.tiers.stores.answers import words
from hexkv.peers.lives import Life
from hexkv.plugins.observing.held import ChangeQueue, HeldChunks
from hexkv.ports import (
    REPORT_KEYS,
    CacheEvent,
    Clock,
    Deadline,
    Directory,
    HexKVError,
    Report,
    StoreBusy,
    StoreUnreachable,
    SupportsLives,
    SupportsReplicas,
)

log = logging.getLogger(__name__)

QUEUE_BYTES = 16 << 20
_GATHERED = 0.05
"""Seconds for which changes are gathered for one report."""

_LONGEST_PAUSE = 8
"""The most heartbeats between two attempts to reach a directory that does not answer."""

_JOINING = 60.0
"""Seconds for a snapshot."""

_LEAVING = 1.0


class Reporter:
    """Keeps one directory informed. :meth:`turn` does the work that is due; one thread calls it.

    Args:
        directory: to be informed.
        life: of this node. It becomes a later one if the directory knows of a former one.
        held: the chunks of this node.
        clock: for heartbeats.
        queue_bytes: of the changes that wait to be reported.
    """

    def __init__(
        self,
        directory: Directory,
        life: Life,
        held: HeldChunks,
        clock: Clock,
        queue_bytes: int = QUEUE_BYTES,
    ) -> None:
        self.queue = ChangeQueue(queue_bytes)
        self.joins = 0
        """The number of times that the node has joined."""

        self.superseded = False
        """True once a later life of the node has joined: this one has stopped reporting."""

        self._directory = directory
        self._life = life
        self._member = life.member
        """The member with which it joined."""

        self._held = held
        self._clock = clock
        self._sequence = 0
        self._sending: Report | None = None
        """A report that is not answered yet: it is sent again unchanged."""
        self._heard = 0.0
        self._failures = 0
        self._why = ""
        self._not_before = 0.0
        self._joined = False
        verbs = ("is not informed", "is informed again")
        self._notices = Notices(log, f"node {life.member.name!r}", clock, verbs)

    def turn(self) -> float:
        """Join, report or send a heartbeat. Return the seconds until the next turn is due."""
        if self.superseded:
            return float("inf")
        if (pause := self._not_before - self._clock.now()) > 0:
            return pause
        try:
            pause = self._turn()
        except Exception as error:  # noqa: BLE001 - an adapter may be a third party's
            self._failures += 1
            self._why = words(error)
            self._report_failure(error)
            beats = min(1 << min(self._failures - 1, 16), _LONGEST_PAUSE)
            if isinstance(error, StoreBusy):  # the directory answers: the name is free soon
                beats = 1
            pause = beats * self._directory.heartbeat_seconds
            self._not_before = self._clock.now() + pause
            return pause
        self._failures, self._why = 0, ""
        self._notices.works("the directory")
        return pause

    def _report_failure(self, error: Exception) -> None:
        # A directory that cannot be reached is one kind, whatever the network's words are.
        kind = "" if isinstance(error, StoreUnreachable) else self._why
        self._notices.failed("the directory", kind, detail="" if kind else self._why)

    @property
    def why(self) -> str:
        """The reason why the directory is not informed; empty if it is."""
        if self.superseded:
            return (
                "a later life of this node is known there, or another cache has its name"
                " (directory.name)"
            )
        return self._why or ("" if self._joined else "this node has not joined it yet")

    def leave(self) -> None:
        """End the membership, if the directory answers."""
        with suppress(HexKVError):
            self._directory.leave(self._member, Deadline.after(self._clock, _LEAVING))

    def _turn(self) -> float:
        beat = self._directory.heartbeat_seconds
        current = self._joined and self._member == self._life.member
        if not (current and self.queue.following):
            self._join()
            return _GATHERED
        known = True
        if self._sending is None and len(self.queue):
            added, removed = self._held.take(self.queue)
            self._sending = Report(self._sequence + 1, added, removed)
        if self._sending is not None:
            known = self._directory.report(self._member, self._sending, self._soon())
            self._sequence, self._sending = self._sending.sequence, None
        elif self._clock.now() >= self._heard + beat:
            known = self._directory.heartbeat(self._member, self._sequence, self._soon())
        else:
            return self._heard + beat - self._clock.now()
        if not known:
            self._joined = False
            return 0.0
        self._heard = self._clock.now()
        if len(self.queue) >= REPORT_KEYS:
            return 0.0
        return _GATHERED if len(self.queue) else beat

    def _join(self) -> None:
        self._joined, self._sending, self._sequence = False, None, 0
        if not self.joins:
            self._life.follow(self._last_life())
        self._member = self._life.member
        keys = self._held.snapshot(self.queue)
        parts = (keys[i : i + REPORT_KEYS] for i in range(0, len(keys), REPORT_KEYS))
        until = Deadline.after(self._clock, _JOINING)
        if not self._directory.join(self._member, parts, until):
            if not self.joins:
                self._begin_again()
            self.superseded = True
            log.error("node %r has a later life: this one reports nothing", self._member.name)
            return
        self._joined = True
        self.joins += 1
        self._heard = self._clock.now()

    def _last_life(self) -> int:
        """Return the last life of the node that the directory knows of; 0 if it gives none."""
        if not isinstance(self._directory, SupportsLives):
            return 0
        return self._directory.last_life(self._member.name, self._soon())

    def _begin_again(self) -> NoReturn:
        """Begin a later life: another joined at the same time, or was not reported.

        Raises:
            StoreBusy: always; the next attempt is a later life's.
        """
        known = self._last_life()
        if known <= self._member.generation:  # unreported lives may be ordered by clocks
            known = int(self._clock.wall() * 1e9)
        self._life.follow(known)
        raise StoreBusy(f"another life of node {self._member.name!r} is there; it is tried again")

    def _soon(self) -> Deadline:
        """Return a message's deadline: the next must leave before the node counts as silent."""
        return Deadline.after(self._clock, max(self._directory.heartbeat_seconds, 0.1))


class Reporting:
    """An event sink that keeps a directory informed, each of its replicas in a separate thread.

    A context manager; :meth:`close` leaves the directory, and does not close it.

    Args:
        directory: to be informed.
        life: of this node.
        clock: for heartbeats.
        tiers: the ones that count, by name: not those that every node can read itself.
        queue_bytes: of the changes that wait to be reported, for each replica.
    """

    def __init__(
        self,
        directory: Directory,
        life: Life,
        clock: Clock,
        tiers: Collection[str],
        queue_bytes: int = QUEUE_BYTES,
    ) -> None:
        self.held = HeldChunks()
        self._tiers = frozenset(tiers)
        replicas = directory.replicas if isinstance(directory, SupportsReplicas) else (directory,)
        self.reporters = [
            Reporter(replica, life, self.held, clock, queue_bytes) for replica in replicas
        ]
        self._queues = [reporter.queue for reporter in self.reporters]
        self._changed = Condition()
        self._closed = False
        self._threads: list[Thread] = []

    def start(self) -> Self:
        """Start reporting."""
        for reporter in self.reporters:
            thread = Thread(target=self._run, args=(reporter,), name="hexkv reporting", daemon=True)
            self._threads.append(thread)
            thread.start()
        return self

    def why(self) -> str:
        """Return the reason why a replica of the directory is not informed; empty if all are."""
        return next(filter(None, (reporter.why for reporter in self.reporters)), "")

    def emit(self, event: CacheEvent) -> None:
        """See :class:`hexkv.ports.EventSink`. From any thread; takes time by the number of keys."""
        if event.tier in self._tiers:
            self.held.apply(event, self._queues)
            with self._changed:
                self._changed.notify_all()

    def close(self) -> None:
        """Stop reporting and leave. Calling it twice is allowed."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join(_LEAVING)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _run(self, reporter: Reporter) -> None:
        while not self._closed:
            pause = reporter.turn()
            with self._changed:
                if pause > _GATHERED and not len(reporter.queue):
                    awake = self._changed.wait_for(
                        lambda: self._closed or len(reporter.queue), min(pause, 86_400.0)
                    )
                    pause = _GATHERED if awake else 0.0
                self._changed.wait_for(lambda: self._closed, min(pause, 86_400.0))
        reporter.leave()
