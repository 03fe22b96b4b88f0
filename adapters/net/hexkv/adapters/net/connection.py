"""A server's side of one connection: its requests, its deadlines, and how far it lags behind.

A server waits for its client in two ways: between requests, and in a transfer. Either has an end,
whatever the client sends meanwhile: single bytes buy no time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf

from hexkv.adapters.net.errors import OutOfTime
from hexkv.adapters.net.stream import Stream
from hexkv.ports import Clock, Deadline

_GRACE = 1.0
"""Seconds that a transfer may lag behind before it is in the way of others."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one connection may take."""

    max_value: int
    """Bytes of a value, and of all values that a connection is sending at a time."""

    patience: float = 10.0
    """Seconds for all before the first request; for the rest of a request's head; and for all
    transfers of one request together, beside what their bytes take at the *rate*."""

    first: float = inf
    """Seconds until the first byte, of all before the first request."""

    rate: float = 8e6
    """Bytes per second that a value moves at least."""

    idle: float = 600.0
    """Seconds between two requests."""

    wait: float = 5.0
    """Seconds that a request waits for memory at most."""


class Connection:
    """One client. Its thread calls everything but :attr:`lag`, which is for any thread.

    Args:
        stream: connected.
        limits: of this connection.
        clock: for deadlines.
    """

    def __init__(self, stream: Stream, limits: Limits, clock: Clock) -> None:
        self.stream = stream
        self.limits = limits
        self.clock = clock
        self.known = False
        """True once the client has shown whatever its wire asks for before the first request."""

        self.opening = Deadline.after(clock, limits.patience)
        """Of everything before the first request."""

        self._first = Deadline.after(clock, limits.first)
        self._start = b""
        self._left = 0.0
        self._waiting: tuple[float, int] | None = None
        self._wait(0.0)

    def await_first(self) -> None:
        """Wait for the client's first byte, where it has a time of its own.

        Raises:
            OutOfTime: it did not come in time.
        """
        if self.limits.first < inf and not self.stream.ready(self._first.remaining()):
            raise OutOfTime("a client says nothing")

    def engage(self, seconds: float) -> None:
        """Count the client as known and as being worked for, so that it does not give way.

        Args:
            seconds: for all transfers of its request together, beside what their bytes take.
        """
        self.known = True
        self._waiting = None
        self._left = seconds

    def look(self, size: int) -> bytes:
        """Receive the first *size* bytes, which then come again with what the client begins by."""
        self._start = self.stream.take(size, self.opening)
        return self._start

    def begin(self, size: int) -> bytes:
        """Receive the *size* bytes by which the client begins: a greeting, or a first request."""
        start, self._start = self._start, b""
        return start + self.stream.take(size - len(start), self.opening)

    def request(self, size: int, idle: float = float("inf"), *, ahead: int = 0) -> bytes:
        """Receive the next request's head of *size* bytes, for which *idle* seconds are waited.

        Of what comes with it *ahead* bytes at most are kept for what is received next.

        Raises:
            OutOfTime: it did not begin, or it began and did not end, in time.
            ConnectionBroken: the connection is over.
        """
        self._wait(0.0)
        if not self.known:
            head = self.begin(size)
        else:
            until = Deadline.after(self.clock, idle)
            head = self.stream.take_start(size, until, self.limits.patience, ahead=ahead)
        self.engage(self.limits.patience)
        return head

    def rest(self, size: int) -> bytes:
        """Receive the *size* bytes behind a request's head, which may have come with it."""
        if size <= self.stream.ahead:
            return self.stream.take(size, self.opening)
        with self.transfer(size) as deadline:
            return self.stream.take(size, deadline)

    @contextmanager
    def transfer(self, size: int = 0) -> Iterator[Deadline]:
        """The deadline for *size* bytes of the request to come, or of its answer to go.

        What the client takes longer than its bytes need, the rest of the request has less.
        """
        due = size / self.limits.rate
        began = self._wait(_GRACE)
        try:
            yield Deadline(self.clock, began + self._left + due)
        finally:
            self._end(began + due)

    def send(self, views: Sequence[memoryview | bytes], size: int = 0) -> None:
        """Send *views*, *size* bytes of them beside a message, as one :meth:`transfer`."""
        due = size / self.limits.rate
        began = self._wait(_GRACE)
        try:
            self.stream.send(views, Deadline(self.clock, began + self._left + due))
        finally:
            self._end(began + due)

    @property
    def lag(self) -> float | None:
        """Seconds that the server waits for this client already, beside what moved at the rate.

        ``None`` while it does not, or does not mind.
        """
        waiting = self._waiting
        if waiting is None:
            return None
        since, moved = waiting
        lag = self.clock.now() - since - (self.stream.moved - moved) / self.limits.rate
        return lag if lag >= 0 else None

    def _wait(self, grace: float) -> float:
        now = self.clock.now()
        self._waiting = now + grace, self.stream.moved
        return now

    def _end(self, due: float) -> None:
        """A transfer is over that was to be over at *due*."""
        self._waiting = None
        late = self.clock.now() - due
        if late > 0:
            self._left -= late
