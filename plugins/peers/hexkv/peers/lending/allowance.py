"""An allowance: the bytes that others may take at a time, and per second."""

from __future__ import annotations

from threading import Condition

from hexkv.ports import Clock, Deadline, Executor


class Allowance:
    """Limits the bytes taken at a time; callers wait for their share. Safe from any thread.

    Args:
        most: bytes at a time.
        rate: bytes per second; ``None`` for no limit.
        clock: the clock for the rate.
        executor: provides ``wait``.
    """

    def __init__(self, most: int, rate: int | None, clock: Clock, executor: Executor) -> None:
        self.most = most
        self.rate = rate
        """Bytes per second; ``None`` for no limit."""

        self._clock = clock
        self._wait = executor.wait
        self._changed = Condition()
        self._taken = 0
        self._paid_at = 0.0
        self._closed = False

    @property
    def taken(self) -> int:
        """Bytes taken and not returned."""
        return self._taken

    def take(self, size: int, deadline: Deadline) -> bool:
        """Take *size* bytes. Return False if they do not come free before *deadline*, or cannot.

        Waits until bytes spent earlier are paid for at the given rate.
        """
        if size > self.most:
            return False
        with self._changed:

            def free() -> bool:
                return self._closed or self._taken + size <= self.most

            if not (self._wait(self._changed, free, deadline) and self._open()):
                return False
            now = self._clock.now()
            due = self._paid_at
            if due > max(now, deadline.at):
                return False
            self._taken += size
            if due > now:
                until = Deadline(self._clock, due)
                self._wait(self._changed, lambda: self._closed or until.expired, until)
            if self._open():
                return True
            self._taken -= size
            self._changed.notify_all()
            return False

    def give_back(self, size: int, spent: int = 0) -> None:
        """Return *size* bytes; *spent* of them were sent, and count against the rate."""
        with self._changed:
            self._taken -= size
            if self.rate is not None:
                self._paid_at = max(self._clock.now(), self._paid_at) + spent / self.rate
            self._changed.notify_all()

    def close(self) -> None:
        """Refuse all callers from now on; waiting ones return at once."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def drain(self, deadline: Deadline) -> bool:
        """Wait until all bytes are returned. Return False if *deadline* passes first."""
        with self._changed:
            return self._wait(self._changed, lambda: not self._taken, deadline)

    def _open(self) -> bool:
        return not self._closed
