"""A short-lived cache of the presence of objects, which saves requests of lookups."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import NamedTuple

from hexkv.adapters.net.errors import OutOfTime, time_left
from hexkv.ports import ChunkKey, Clock, Deadline

_MOST = 1 << 16
"""Objects remembered: about ten megabytes."""


class Lives(NamedTuple):
    """Seconds for which an answer counts; 0 for not at all."""

    present: float
    absent: float


class Change:
    """The changes of one object that are under way or wait for the lock."""

    __slots__ = ("here", "lock", "users")

    def __init__(self) -> None:
        self.lock = Lock()
        self.users = 0
        self.here: bool | None = None
        """True if the object exists after the change; ``None`` if that is unknown."""


class Known:
    """The recently observed presence of objects. Safe from any thread.

    Only lookups use it. A read always asks the server, so an object that others deleted is a miss
    at worst; one that others wrote is a miss for as long as its absence is remembered.

    Args:
        clock: for the age of answers.
        lives: the seconds for which answers count.
        most: the number of answers remembered at most.
    """

    def __init__(self, clock: Clock, lives: Lives, most: int = _MOST) -> None:
        self._clock = clock
        self._lives = lives
        self._most = most
        self._lock = Lock()
        self._heard: OrderedDict[ChunkKey, tuple[bool, float]] = OrderedDict()
        self._under_way: dict[ChunkKey, Change] = {}
        self._turn = 0

    @property
    def turn(self) -> int:
        """A number to read before a request, and to pass to :meth:`hear` with its answer."""
        return self._turn

    def ask(self, key: ChunkKey) -> bool | None:
        """True if the object exists, False if not; ``None`` if the server must be asked."""
        heard = self._heard.get(key)
        if heard is None or self._clock.now() >= heard[1]:
            return None
        return heard[0]

    def hear(self, key: ChunkKey, here: bool, turn: int) -> None:
        """Remember the answer to a request made at *turn*, unless this store made changes since."""
        with self._lock:
            # The answer may be older than a change by this store. A change of another object
            # discards it, too, at the cost of one more request. And others may see a change under
            # way before it ends, after which lookups must not return the state before it.
            if turn == self._turn and key not in self._under_way:
                self._keep(key, here)

    @contextmanager
    def changing(self, key: ChunkKey, deadline: Deadline) -> Iterator[Change]:
        """A block in which this store changes an object: one at a time, and nothing is remembered.

        Raises:
            OutOfTime: another change of it did not end before the deadline.
        """
        with self._lock:
            change = self._under_way.setdefault(key, Change())
            change.users += 1
        try:
            if not change.lock.acquire(timeout=time_left(deadline)):
                raise OutOfTime
            try:
                change.here = None
                self._forget(key)
                yield change
            finally:
                self._forget(key, change.here)
                change.lock.release()
        finally:
            with self._lock:
                change.users -= 1
                if not change.users:
                    del self._under_way[key]

    def _forget(self, key: ChunkKey, here: bool | None = None) -> None:
        """Discard answers under way as outdated; remember *here* from now on, unless None."""
        with self._lock:
            self._turn += 1
            self._heard.pop(key, None)
            if here is not None:
                self._keep(key, here)

    def _keep(self, key: ChunkKey, here: bool) -> None:
        life = self._lives.present if here else self._lives.absent
        self._heard.pop(key, None)
        if life > 0:
            self._heard[key] = here, self._clock.now() + life
            if len(self._heard) > self._most:
                self._heard.popitem(last=False)
