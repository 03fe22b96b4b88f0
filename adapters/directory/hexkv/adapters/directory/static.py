"""A directory without a server of its own: it queries every node for its chunks."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from queue import Full, Queue
from threading import Condition, Lock, Thread
from typing import Protocol

from hexkv.adapters.directory.local import LocalDirectory
from hexkv.adapters.directory.replicas import merged
from hexkv.adapters.directory.server import DirectoryServer
from hexkv.plugins.notices import Notices
from hexkv.ports import (
    ChunkKey,
    Clock,
    Deadline,
    HexKVError,
    Member,
    Report,
    StoreError,
    StoreUnreachable,
    SupportsSuspension,
)

log = logging.getLogger(__name__)

_WAITING = 8
"""Queries to one node that may wait; beyond, it counts as one that does not answer."""


_FAREWELL = 0.8
"""Seconds that closing waits for the server's threads."""


class Asked(Protocol):
    """A node, or its client: by the directory's wire, or by a question of a channel."""

    def locate(self, keys: Sequence[ChunkKey], deadline: Deadline) -> Sequence[Sequence[Member]]:
        """Return, for each key, the node itself if it holds it. Raises as a directory."""
        ...

    def members(self, deadline: Deadline) -> Sequence[Member]:
        """Return the node itself, if it has joined. Raises as a directory."""
        ...

    def close(self) -> None:
        """Release everything."""
        ...


class StaticDirectory:
    """Knows this node's chunks, and queries a list of other nodes for theirs.

    Each of them has a thread here, so that the slowest one delays no other. A node that does not
    answer by a deadline is not queried again for a while. A dead node's entries end with it.

    Args:
        own: the directory of this node's reports, from which it answers.
        peers: the other nodes.
        clock: for *pause*.
        serve: returns a server that answers others from *own*, each time at the same address.
            ``None`` if no other node queries this one.
        pause: seconds at most for which a node that does not answer is not queried: a sixteenth of
            it after the first time, and twice as long after each further one.

    Raises:
        ConfigError: *serve* cannot listen.
    """

    def __init__(
        self,
        own: LocalDirectory,
        peers: Sequence[Asked],
        clock: Clock,
        *,
        serve: Callable[[], DirectoryServer] | None = None,
        pause: float = 5.0,
    ) -> None:
        self._own = own
        self._peers = [_Peer(peer, clock, pause) for peer in peers]
        self._serve = serve
        self._server: DirectoryServer | None = None
        self._thread: Thread | None = None
        self._closed = False
        self.resume()

    @property
    def heartbeat_seconds(self) -> float:
        return self._own.heartbeat_seconds

    def join(
        self, member: Member, snapshot: Iterable[Sequence[ChunkKey]], deadline: Deadline
    ) -> bool:
        return self._own.join(member, snapshot, deadline)

    def report(self, member: Member, report: Report, deadline: Deadline) -> bool:
        return self._own.report(member, report, deadline)

    def heartbeat(self, member: Member, sequence: int, deadline: Deadline) -> bool:
        return self._own.heartbeat(member, sequence, deadline)

    def leave(self, member: Member, deadline: Deadline) -> None:
        self._own.leave(member, deadline)

    def locate(self, keys: Sequence[ChunkKey], deadline: Deadline) -> Sequence[Sequence[Member]]:
        mine = self._own.locate(keys, deadline)
        return merged([mine, *self._ask(keys, deadline)], len(keys))

    def members(self, deadline: Deadline) -> Sequence[Member]:
        mine = list(self._own.members(deadline))
        for number, peer in enumerate(self._peers):
            share = deadline.remaining() / (len(self._peers) - number)
            mine += peer.members(Deadline.after(deadline.clock, share))
        return mine

    def suspend(self) -> None:
        server, self._server = self._server, None
        if server is not None and self._thread is not None:
            server.stop()
            self._thread.join(_FAREWELL)

    def resume(self) -> None:
        if self._closed:
            raise StoreError("the directory is closed")
        if self._serve is not None and self._server is None:
            self._server = server = self._serve()
            self._thread = Thread(target=server.run, name="hexkv directory", daemon=True)
            self._thread.start()

    def close(self) -> None:
        self._closed = True
        self._own.close()
        self.suspend()
        for peer in self._peers:
            peer.close()

    def _ask(
        self, keys: Sequence[ChunkKey], deadline: Deadline
    ) -> list[Sequence[Sequence[Member]]]:
        """Return the answers of the nodes that answer in time."""
        question = _Question(keys, deadline)
        asked = [peer for peer in self._peers if peer.ask(question)]
        question.wait(len(asked))
        for peer in asked:
            if peer not in question.done:
                peer.leave_alone()
        return question.answers


class _Question:
    """A query to several nodes."""

    def __init__(self, keys: Sequence[ChunkKey], deadline: Deadline) -> None:
        self.keys = keys
        self.deadline = deadline
        self.answers: list[Sequence[Sequence[Member]]] = []
        self.done: set[_Peer] = set()
        self._changed = Condition()

    def give(self, peer: _Peer, answer: Sequence[Sequence[Member]] | None) -> None:
        """Note the answer of *peer*, if it is valid."""
        with self._changed:
            self.done.add(peer)
            if answer is not None and len(answer) == len(self.keys):
                self.answers = [*self.answers, answer]
            self._changed.notify()

    def wait(self, count: int) -> None:
        """Wait until *count* nodes have answered, or the deadline has passed."""
        with self._changed:
            self._changed.wait_for(lambda: len(self.done) >= count, self.deadline.remaining())


class _Peer:
    """A node, and the thread that queries it."""

    def __init__(self, asked: Asked, clock: Clock, pause: float) -> None:
        self._asked = asked
        self._clock = clock
        self._pause = pause
        verbs = "cannot be queried", "can be queried again"
        self._notices = Notices(log, "directory", clock, verbs)
        self._alone_until = 0.0
        self._failures = 0
        """Consecutive failures."""
        self._lock = Lock()
        self._waiting: Queue[_Question | None] = Queue(_WAITING)
        self._thread: Thread | None = None

    def ask(self, question: _Question) -> bool:
        """Queue *question* for it. False if it is not queried."""
        if self._clock.now() < self._alone_until:
            return False
        with self._lock:
            if self._thread is None:
                self._thread = Thread(target=self._run, name="hexkv ask", daemon=True)
                self._thread.start()
        try:
            self._waiting.put_nowait(question)
        except Full:
            return False
        return True

    def members(self, deadline: Deadline) -> Sequence[Member]:
        """Return the node, if it answers."""
        if self._clock.now() < self._alone_until:
            return ()
        try:
            return self._asked.members(deadline)
        except StoreError:
            self.leave_alone()
            return ()

    def leave_alone(self) -> None:
        """Do not query it for a while."""
        now = self._clock.now()
        if now >= self._alone_until:  # otherwise the same failure was noted already
            pause = self._pause / 16 * 2 ** min(self._failures, 4)
            self._alone_until = now + pause
            self._failures += 1

    def close(self) -> None:
        """End its connections, and its thread as soon as it notices."""
        self._asked.close()
        with suppress(Full):  # then every query fails at once, and the thread ends with the process
            self._waiting.put_nowait(None)
        self._alone_until = float("inf")

    def _run(self) -> None:
        while (question := self._waiting.get()) is not None:
            try:
                answer = self._asked.locate(question.keys, question.deadline)
            except StoreUnreachable:
                self.leave_alone()
                question.give(self, None)
            except HexKVError as error:
                self._notices.failed("a node", str(error))
                self.leave_alone()
                question.give(self, None)
            else:
                self._failures = 0
                self._notices.works("a node")
                question.give(self, answer)


def _may_be_suspended(directory: StaticDirectory) -> SupportsSuspension:
    return directory  # mypy checks here that the port's promises are kept
