"""Keeps a client connected: notices the end of a node, and waits for its next life.

One thread for each client, which sleeps in the kernel while the node answers.
"""

from __future__ import annotations

import logging
import select
import socket
from collections.abc import Callable
from contextlib import suppress
from threading import Thread, current_thread
from weakref import ref

from hexkv.adapters.node.client.link import NodeLink
from hexkv.adapters.node.wire import Verb
from hexkv.plugins.notices import Notices
from hexkv.ports import Clock, ConfigError, Deadline, StoreUnreachable

log = logging.getLogger(__name__)

_FIRST, _LONGEST = 0.05, 1.0
"""Seconds between two attempts to connect."""

_TICK, _CALM = 0.01, 20
"""Seconds between two checks for leases given back, and the number of empty ones that end them."""

_LOOK = 30.0
_CONNECTION, _WITHOUT = "connection", "; going on without it"
_SILENT = 10.0
"""Seconds without an answer to a ping after which the client reconnects."""


class Keeper:
    """Connects, watches, and reconnects, until it is closed or garbage-collected."""

    def __init__(self, name: str, connect: Callable[[], NodeLink], clock: Clock) -> None:
        """Connect to node *name*; *connect* raises ``StoreUnreachable`` or ``ConfigError``.

        The first attempt is made at once, by the caller's thread.
        """
        self._connect = connect
        self._clock = clock
        self._woken, self._wake = socket.socketpair()
        self._woken.setblocking(False)
        self._wake.setblocking(False)
        self._notices = Notices(log, f"node {name}", clock)
        self._calm = 0
        """Consecutive ticks at which nothing was given back."""

        self.closed = False
        self.link: NodeLink | None = None
        self._try()
        self._thread = Thread(
            target=_keep, args=(ref(self), self._woken), name="hexkv node", daemon=True
        )
        self._thread.start()

    def wake(self) -> None:
        """Have the thread check the connection now. Never blocks."""
        with suppress(OSError, ValueError):
            self._wake.send(b".")

    def close(self) -> None:
        """End the connection. Calling it twice is allowed."""
        if self.closed:
            return
        self.closed = True
        link, self.link = self.link, None
        if link is not None:
            link.abandon()
        self._wake.close()  # this wakes the thread, too
        if current_thread() is not self._thread:
            self._thread.join(1.0)

    def left(self) -> None:
        """Close this process's copies in a forked child: the connection belongs to the parent."""
        link, self.link = self.link, None
        self.closed = True
        if link is not None:
            link.leave()
        self._woken.close()
        self._wake.close()

    def __del__(self) -> None:
        self.close()

    def step(self, pause: float) -> float:
        """Check the connection once. Return the seconds to pause before the next check."""
        link = self.link
        if link is not None and not link.alive:
            self.link = link = None
            self._lost("it has gone")
        if link is None:
            return _FIRST if self._try() else min(pause * 2, _LONGEST)
        if not link.doubts.suspect:
            return self._tick(link) if link.ticking else _LOOK
        soon = Deadline.after(self._clock, min(pause * 2, _LONGEST))
        asked = link.ask(Verb.PING, b"", soon)
        if asked is not None and link.wait(asked, soon):
            self._answers()
        elif self._clock.now() - link.heard > _SILENT:
            link.abandon()
        else:
            self._lost("a ping was not answered in time")
        return _FIRST

    def _tick(self, link: NodeLink) -> float:
        """Send the leases given back. Return the seconds to pause before the next check."""
        self._calm = 0 if link.send_returned() else self._calm + 1
        if self._calm < _CALM:
            return _TICK
        self._calm = 0
        link.ticking = False
        # A lease given back between the two lines found it ticking.
        link.send_returned()
        return _LOOK

    def sleep(self, seconds: float) -> None:
        """Wait until woken, or until the connection ends, for *seconds* at most."""
        poll = select.poll()
        poll.register(self._woken, select.POLLIN)
        link = self.link
        if link is not None and (descriptor := link.fileno()) >= 0:
            poll.register(descriptor, select.POLLRDHUP | select.POLLHUP)
        for found, _ in poll.poll(seconds * 1000):
            if found == self._woken.fileno():
                with suppress(OSError):
                    self._woken.recv(4096)
            elif link is not None:
                link.end()

    def _try(self) -> bool:
        try:
            link = self._connect()
        except StoreUnreachable as error:
            self._lost(str(error))
            return False
        except ConfigError as error:
            self._notices.failed(_CONNECTION, str(error), detail=_WITHOUT)
            return False
        self.link = link
        if self.closed:
            link.abandon()
        self._answers()
        return True

    def _lost(self, why: str) -> None:
        self._notices.failed(_CONNECTION, why, detail=_WITHOUT, outage=_CONNECTION)

    def _answers(self) -> None:
        self._notices.works(_CONNECTION)
        self._notices.answers(_CONNECTION, self._notices.unanswered)


def _keep(keeper: ref[Keeper], woken: socket.socket) -> None:
    pause = _FIRST
    while (found := keeper()) is not None and not found.closed:
        try:
            pause = found.step(pause)
            if not found.closed:
                found.sleep(pause)
        except Exception:
            log.exception("node: keeping the connection failed")
            pause = _LONGEST
        del found
    woken.close()
