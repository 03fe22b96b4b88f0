"""A node's side of one connection: the leases, namespaces and pins of its client.

A client's memory is its own until it gives it back or its end of the socket is closed, which the
system does when it dies. The leases of a client that is dismissed last until its end is closed,
because it may be copying.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from contextlib import suppress

from hexkv.adapters.net.rpc.asked import Request
from hexkv.adapters.net.rpc.barrier import Barrier
from hexkv.adapters.net.rpc.session import Session
from hexkv.adapters.net.rpc.wire import Head, Status
from hexkv.adapters.node.server.granted import Grant, Granted
from hexkv.adapters.node.server.handover import PausedConnection
from hexkv.adapters.node.server.limits import ClientLimits
from hexkv.adapters.node.server.verbs import AT_ONCE, TOLD, VERBS
from hexkv.adapters.node.wire import Space, Verb
from hexkv.peers.serving.served import ServedChunks
from hexkv.plugins.threads import before_waiting, step_aside
from hexkv.ports import Clock, Deadline, EngineClosed, Lease

_LESS = 0.9
"""The part of the usual time below which a client has chosen less: the way here takes some."""


class NodeSession(Session):
    """Answers one client that was let in."""

    at_once = AT_ONCE
    kind = "node"
    before_waiting = staticmethod(before_waiting)
    step_aside = staticmethod(step_aside)

    def __init__(
        self,
        sock: socket.socket,
        name: str,
        served: ServedChunks,
        generation: int,
        limits: ClientLimits,
        clock: Clock,
        ended: Callable[[Session], None],
        barrier: Barrier,
    ) -> None:
        """Serve a client as :class:`Session` does, from *served*."""
        super().__init__(
            sock, name, clock, limits, generation=generation, ended=ended, barrier=barrier
        )
        self.served = served
        self.granted = Granted(limits.leased_bytes, clock)
        self.spaces: dict[int, Space] = {}
        self.met: set[tuple[int, bytes]] = set()
        self.pinned: set[str] = set()
        """Owners of pins that end with the connection."""

        self.trusted = False
        """True if it may list the chunks of others: it runs as the node's own user, or root."""

    @property
    def state(self) -> str:
        """``open``; ``parked``: everything stays as it is; ``dismissed``, or ``over``."""
        with self._counting:
            if self._over:
                return "over"
            if self._dismissed:
                return "dismissed"
            return "open" if self._threads else "parked"

    @property
    def descriptor(self) -> int:
        """The descriptor of its socket."""
        return self._pipe.fileno()

    def leave(self) -> None:
        """Close this process's copy of the socket, once no thread of this session runs."""
        with self._counting:
            if not self._threads:
                self._pipe.close()

    def restore(self, was: PausedConnection, leases: Sequence[Lease]) -> None:
        """Restore *was*, with *leases*, in the process that took over. Call before :meth:`run`."""
        self.spaces = {number: Space(*space) for number, space in was.spaces.items()}
        self.pinned = set(was.pinned)
        self.ahead += was.ahead
        rows = zip(was.leases, leases, strict=True)
        self.granted.restore(
            ((request, place, lease, fresh) for (request, place, fresh, _), lease in rows),
            was.limits,
        )
        self._threads = 0

    def respond(self, asked: Request) -> None:
        verb = VERBS.get(asked.head.verb)
        if verb is None:
            self.send(asked.head, Status.INVALID, b"this node knows no such verb")
        else:
            verb(self, asked)

    def take(self, head: Head, body: bytes) -> bool:
        if (taken := TOLD.get(head.verb)) is None:
            return False
        taken(self, head, body)
        return True

    def note(self, asked: Head) -> Grant | None:
        leases = asked.verb in (Verb.HOLD, Verb.ALLOCATE)
        return self.granted.open(asked.request) if leases else None

    def refused(self, asked: Request) -> None:
        if asked.grant is not None:
            self.granted.release(asked.head.request)

    @property
    def holds(self) -> bool:
        return len(self.granted) > 0

    def until(self, asked: Head) -> Deadline:
        """Return the time until which the client waits.

        If it waits for less than this node's own configuration allows, its haste is no fault of a
        tier, which others may have more time for.
        """
        usual = self.served.deadlines
        if asked.verb == Verb.MATCH:
            seconds = usual.lookup
        else:
            seconds = usual.retrieve if asked.verb == Verb.HOLD else usual.store
        return Deadline.after(self.clock, asked.seconds, _LESS * seconds)

    def let_go(self) -> None:
        self.granted.close()
        self.served.announced.gone(self.name)

    def _end(self) -> None:
        for owner in self.pinned:
            with suppress(EngineClosed):
                self.served.chunks.unpin(owner)
        self.served.stack.runtime.computing.clients.pop(self.name, None)
        super()._end()
