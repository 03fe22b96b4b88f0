"""Prompts under way: those that this engine computes for others, and those that it waits for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Lock
from typing import NamedTuple

from hexkv.ports import Announcing, ChunkKey, Clock, Deadline, SupportsPushing

_LASTS = 600.0
"""Seconds that an announcement stands at most, even if its engine dies."""

_ANSWER = 1.0
"""Seconds for an answer about announcements."""


class PushTarget(NamedTuple):
    """The node that receives chunks as they are computed."""

    node: str = ""
    """The node's name at others; if it is empty, no node receives them."""

    hold: str = ""
    """The owner of the pin that keeps it there."""

    seconds: float = 0.0
    """How long the pin lasts."""


_NONE = PushTarget()


class _Waiting(NamedTuple):
    keys: Sequence[ChunkKey]
    since: float


class UnderWay:
    """The announcements of one rank, and those it waits for. Safe from any thread.

    Args:
        announcing: where both are known.
        group: the engine's own, all of whose ranks have it.
        clock: the time.
        waited: called with the seconds that a request has waited.
        announces: True if this rank stores the KV that it computes.
        patience: seconds for the answers of other nodes about chunks they have or compute.
    """

    def __init__(
        self,
        announcing: Announcing,
        group: str,
        clock: Clock,
        waited: Callable[[float], None],
        *,
        announces: bool = True,
        patience: float = 1.0,
    ) -> None:
        self._announcing = announcing
        self._peers = announcing if isinstance(announcing, SupportsPushing) else None
        self._group = group
        self._clock = clock
        self._waited = waited
        self._patience = patience
        self._announces = announces
        self._waiting: dict[str, _Waiting] = {}
        self._lock = Lock()

    def announce(self, request: str, keys: Sequence[ChunkKey], target: PushTarget = _NONE) -> str:
        """Announce to others that the chunks of *request* are computed here.

        Return other nodes' name for this one; empty if there are none.
        """
        if not self._announces:
            return ""
        self._announcing.announce(request, self._group, keys, _LASTS, self._soon())
        if self._peers is None:
            return ""
        return self._peers.push_to(
            target.node,
            keys if target.node else (),
            target.hold,
            target.seconds,
            self._soon(),
        )

    def withdraw(self, request: str) -> None:
        """Note that chunks of *request* that are not there by now do not come."""
        if self._announces:
            self._announcing.withdraw(request, self._soon())

    def watch(
        self, request: str, keys: Sequence[ChunkKey], node: str = "", *, first: int = 1
    ) -> bool:
        """True if others compute any of the *first* keys: *request* is waited for from now on.

        These are the shards of one chunk, of which some may be there. True, too, if *node* has
        one of them: its name at other nodes; without a name some nodes are asked.
        """
        now = Deadline(self._clock, 0.0)
        if not keys:
            return False
        if self._peers is not None:
            until = Deadline.after(self._clock, self._patience)
            flags = self._peers.seek(keys, self._group, node, until)
        else:
            flags = self._announcing.expect(keys, self._group, now)
        if not any(flags[:first]):
            return False
        coming = [key for key, is_coming in zip(keys, flags, strict=True) if is_coming]
        with self._lock:
            self._waiting[request] = _Waiting(coming, self._clock.now())
        return True

    def forget(self, request: str) -> None:
        """Stop waiting for *request*."""
        with self._lock:
            self._waiting.pop(request, None)

    def settled(self, seconds: float) -> list[str]:
        """Requests of which nothing is still under way; waits up to *seconds* for one."""
        with self._lock:
            waiting = dict(self._waiting)
        until = Deadline.after(self._clock, seconds)
        # Of each the last chunk: those before it come sooner.
        last = [one.keys[-1] for one in waiting.values()]
        flags = self._announcing.expect(last, self._group, until)
        found: list[str] = []
        for (request, one), is_coming in zip(waiting.items(), flags, strict=True):
            if is_coming or self._still(request, one):
                continue
            with self._lock:
                self._waiting.pop(request, None)
            found.append(request)
            self._waited(self._clock.now() - one.since)
        return found

    def _still(self, request: str, one: _Waiting) -> bool:
        """True if another engine computes chunks before the last one."""
        flags = self._announcing.expect(one.keys, self._group, Deadline(self._clock, 0.0))
        coming = [key for key, is_coming in zip(one.keys, flags, strict=True) if is_coming]
        if coming:
            with self._lock:
                if request in self._waiting:
                    self._waiting[request] = one._replace(keys=coming)
        return bool(coming)

    def _soon(self) -> Deadline:
        return Deadline.after(self._clock, _ANSWER)
