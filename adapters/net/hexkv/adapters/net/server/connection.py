"""A server's side of one connection: its requests, its deadlines, and its lag.

A server waits for its client in two ways: between requests, and in a transfer. Both are limited,
and single bytes from the client do not extend them.
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
"""Seconds that a transfer may lag before it may give way to others."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one connection."""

    max_value: int
    """Bytes of a value, and of all values that a connection sends at a time."""

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
        """True once the client has passed the checks of its wire before the first request."""

        self.opening = Deadline.after(clock, limits.patience)
        """For everything before the first request."""

        self._first = Deadline.after(clock, limits.first)
        self._start = b""
        self._left = 0.0
        self._waiting: tuple[float, int] | None = None
        self._wait(0.0)

    def await_first(self) -> None:
        """Wait for the client's first byte, if it has a time limit of its own.

        Raises:
            OutOfTime: it did not come in time.
        """
        if self.limits.first < inf and not self.stream.ready(self._first.remaining()):
            raise OutOfTime("a client sends nothing")

    def engage(self, seconds: float) -> None:
        """Count the client as known and busy, so that it does not give way.

        Args:
            seconds: for all transfers of its request together, beside the time of their bytes.
        """
        self.known = True
        self._waiting = None
        self._left = seconds

    def disengage(self) -> None:
        """Count the client as idle: it may give way."""
        self._wait(0.0)

    def look(self, size: int) -> bytes:
        """Receive the first *size* bytes, which :meth:`begin` then returns again."""
        self._start = self.stream.take(size, self.opening)
        return self._start

    def begin(self, size: int) -> bytes:
        """Receive the first *size* bytes of the client: a greeting, or a first request."""
        start, self._start = self._start, b""
        return start + self.stream.take(size - len(start), self.opening)

    def request(self, size: int, idle: float = float("inf"), *, ahead: int = 0) -> bytes:
        """Receive the next request's head of *size* bytes, within *idle* seconds.

        At most *ahead* of the bytes that come with it are kept for the next call.

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
        """Receive the *size* bytes after a request's head, which may have come with it."""
        if size <= self.stream.ahead:
            return self.stream.take(size, self.opening)
        with self.transfer(size) as deadline:
            return self.stream.take(size, deadline)

    @contextmanager
    def transfer(self, size: int = 0) -> Iterator[Deadline]:
        """Yield the deadline to receive *size* bytes of the request, or to send them in its answer.

        Time that the client takes beyond the need of its bytes is taken from the rest of the
        request.
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
        """Seconds that the server has waited for this client, less the time of bytes at the rate.

        ``None`` while it does not wait, or the wait does not count yet.
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
        """Note the end of a transfer that was due at *due*."""
        self._waiting = None
        late = self.clock.now() - due
        if late > 0:
            self._left -= late
