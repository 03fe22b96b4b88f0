"""Chunks that peers wait for, pushed to each of them as soon as they are here.

A peer says which chunks it waits for, and says so again as long as it does: a peer that died is
pushed nothing more. To a peer goes one batch at a time, in the order in which chunks came.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from threading import Lock

from hexkv.core.engine.announced import PEERS, Announced
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
"""Peers that are pushed to at a time: one that hangs delays others by that much less."""

_STEP = 8
"""Chunks of a batch."""

_SENDING = 10.0
"""Seconds for a batch."""

_WANTED = 10.0
"""Seconds for which it is believed that a peer waits."""

_TRIES = 3
"""Times that a peer is offered a chunk for which it has no room."""

_PEERS, _FAILED = 256, 1 << 14
"""Peers that are remembered, and of each the chunks that it did not take."""


@dataclass(slots=True)
class _Line:
    """What one peer waits for."""

    wanted: dict[ChunkKey, float] = field(default_factory=dict)
    """Chunks that are not here yet, and until when it is believed to wait for them."""

    queue: deque[ChunkKey] = field(default_factory=deque)
    queued: set[ChunkKey] = field(default_factory=set)
    """Those of the queue, and of the batch under way."""

    failed: OrderedDict[ChunkKey, int] = field(default_factory=OrderedDict)
    busy: bool = False

    @property
    def idle(self) -> bool:
        return not (self.busy or self.wanted)

    def forget(self, now: float) -> None:
        """Leave out what nobody waits for any more."""
        self.wanted = {key: until for key, until in self.wanted.items() if until > now}


class Pushes:
    """What is pushed to whom. Safe from any thread.

    Args:
        announced: what clients of this cache compute.
        have: whether own tiers have each of some chunks.
        push: gives chunks to a peer.
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
        """Whether each chunk will be pushed to *peer*, which waits for it.

        Those that clients of this cache compute, and with *here*, or where they compute one of
        them, also those that are here.
        """
        now = Deadline(self._clock, 0.0)
        # What comes from peers itself does not count: two would wait for each other.
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
        """Chunks are here: those are pushed that somebody waits for."""
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
        """Push nothing more."""
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
        """Push a batch. The next one is another step, behind those to other peers."""
        with self._lock:
            keys = [line.queue.popleft() for _ in range(min(_STEP, len(line.queue)))]
        outcomes: Sequence[TransferOutcome | None]
        try:
            outcomes = self._push(peer, keys, Deadline.after(self._clock, _SENDING))
        except Exception:  # noqa: BLE001 - a channel may be anybody's; the worker goes on
            outcomes = [None] * len(keys)
        with self._lock:
            for key, outcome in zip(keys, outcomes, strict=True):
                line.queued.discard(key)
                if isinstance(outcome, Stored):
                    line.failed.pop(key, None)
                    continue
                # What went before it could be pushed is not offered again.
                more = _TRIES if isinstance(outcome, Miss) else 1
                line.failed[key] = line.failed.get(key, 0) + more
                if len(line.failed) > _FAILED:
                    line.failed.popitem(last=False)
            line.busy = False
            self._begin(peer, line)
