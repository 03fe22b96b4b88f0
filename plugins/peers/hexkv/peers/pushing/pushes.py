"""Pushes of chunks to peers that wait for them, as soon as the chunks are here.

A peer requests the chunks that it waits for, and repeats that as long as it does: pushes to a dead
peer end. A peer receives one batch at a time, in the order in which chunks came.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from threading import Lock

from hexkv.peers.pushing.announced import PEERS, Announced
from hexkv.ports import (
    ChunkKey,
    Clock,
    Deadline,
    Executor,
    Miss,
    Peer,
    Stored,
    TransferOutcome,
)

Push = Callable[[Peer, Sequence[ChunkKey], Deadline], Sequence[TransferOutcome]]

_LANE = "pushing"
_WORKERS = 4
"""Peers that receive pushes at a time, so that a peer that hangs does not block the others."""

_STEP = 8
"""Chunks of a batch."""

_SENDING = 10.0
"""Timeout of a batch, in seconds."""

_WANTED = 10.0
"""Seconds for which a peer's request is valid."""

_TRIES = 3
"""Times that a chunk is offered to a peer that fails to take it."""

_PEERS, _FAILED = 256, 1 << 14
"""The most peers remembered, and for each the most chunks that it did not take."""


@dataclass(slots=True)
class _Line:
    """The requests and the queue of one peer."""

    wanted: dict[ChunkKey, float] = field(default_factory=dict)
    """Requested chunks that are not here yet, and the time at which each request expires."""

    queue: deque[ChunkKey] = field(default_factory=deque)
    queued: set[ChunkKey] = field(default_factory=set)
    """Chunks of the queue, and of the batch under way."""

    failed: OrderedDict[ChunkKey, int] = field(default_factory=OrderedDict)
    busy: bool = False

    @property
    def idle(self) -> bool:
        return not (self.busy or self.wanted)

    def forget(self, now: float) -> None:
        """Remove expired requests."""
        self.wanted = {key: until for key, until in self.wanted.items() if until > now}


class Pushes:
    """The pushes to all peers. Safe from any thread.

    Args:
        announced: the chunks that clients of this cache compute.
        have: returns True for each chunk that own tiers have.
        push: sends chunks to a peer.
        clock: the time.
        executor: runs pushes.
    """

    def __init__(
        self,
        announced: Announced,
        have: Callable[[Sequence[ChunkKey]], Sequence[bool]],
        push: Push,
        clock: Clock,
        executor: Executor,
    ) -> None:
        self._announced = announced
        self._have = have
        self._push = push
        self._clock = clock
        self._executor = executor
        self._lines: OrderedDict[Peer, _Line] = OrderedDict()
        self._lock = Lock()
        self._closed = False

    def want(self, peer: Peer, keys: Sequence[ChunkKey], *, here: bool) -> list[bool]:
        """Return True for each chunk that will be pushed to *peer*, which waits for it.

        These are the chunks that clients of this cache compute; with *here*, or if they compute
        one of *keys*, also those that are here.
        """
        now = Deadline(self._clock, 0.0)
        # Chunks expected from peers do not count: two nodes would wait for each other.
        coming = self._announced.expect(keys, PEERS, now)
        present = self._have(keys)
        here = here or any(coming)
        until = self._clock.now() + _WANTED
        answers = []
        with self._lock:
            if self._closed:
                return [False] * len(keys)
            line = self._line(peer)
            for key, is_here, is_coming in zip(keys, present, coming, strict=True):
                comes = key in line.queued
                if not comes and line.failed.get(key, 0) < _TRIES:
                    if is_here and (here or key in line.wanted):
                        line.wanted.pop(key, None)
                        self._queue(line, key)
                        comes = True
                    elif is_coming:
                        line.wanted[key] = until
                        comes = True
                if not comes:
                    line.wanted.pop(key, None)
                answers.append(comes)
            self._begin(peer, line)
        return answers

    def arrived(self, keys: Collection[ChunkKey]) -> None:
        """Push those of *keys*, which are here now, that peers wait for."""
        if not self._lines:  # as a rule
            return
        now = self._clock.now()
        with self._lock:
            for peer, line in self._lines.items():
                for key in keys:
                    if line.wanted.pop(key, 0.0) > now:
                        self._queue(line, key)
                self._begin(peer, line)

    def close(self) -> None:
        """End all pushes."""
        with self._lock:
            self._closed = True
            self._lines.clear()
        self._executor.close(_LANE)

    def _line(self, peer: Peer) -> _Line:
        line = self._lines.pop(peer, None) or _Line()
        self._lines[peer] = line
        now = self._clock.now()
        line.forget(now)
        if len(self._lines) > _PEERS:
            for known, other in list(self._lines.items()):
                other.forget(now)
                if other.idle and known != peer:
                    del self._lines[known]
        return line

    def _queue(self, line: _Line, key: ChunkKey) -> None:
        if key not in line.queued:
            line.queued.add(key)
            line.queue.append(key)

    def _begin(self, peer: Peer, line: _Line) -> None:
        if line.queue and not line.busy and not self._closed:
            line.busy = True
            self._executor.open(_LANE, _WORKERS)
            self._executor.run(_LANE, partial(self._send, peer, line))

    def _send(self, peer: Peer, line: _Line) -> None:
        """Push a batch. The next one is another step, behind those of other peers."""
        with self._lock:
            keys = [line.queue.popleft() for _ in range(min(_STEP, len(line.queue)))]
        outcomes: Sequence[TransferOutcome | None]
        try:
            outcomes = self._push(peer, keys, Deadline.after(self._clock, _SENDING))
        except Exception:  # noqa: BLE001 - a channel may be third-party code; the worker goes on
            outcomes = [None] * len(keys)
        with self._lock:
            for key, outcome in zip(keys, outcomes, strict=True):
                line.queued.discard(key)
                if isinstance(outcome, Stored):
                    line.failed.pop(key, None)
                    continue
                # Do not offer a chunk again that left this cache before it was pushed.
                more = _TRIES if isinstance(outcome, Miss) else 1
                line.failed[key] = line.failed.get(key, 0) + more
                if len(line.failed) > _FAILED:
                    line.failed.popitem(last=False)
            line.busy = False
            self._begin(peer, line)
