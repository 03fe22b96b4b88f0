"""What was last heard about objects, for a short time: so that a lookup need not ask again."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import NamedTuple

from hexkv.adapters.net.errors import OutOfTime, time_left
from hexkv.ports import ChunkKey, Clock, Deadline

_MOST = 1 << 16
"""Objects remembered: some ten megabytes."""


class Lives(NamedTuple):
    """How many seconds an answer counts; 0 for not at all."""

    present: float
    absent: float


class Change:
    """The changes of one object that are under way, or wait for their turn."""

    __slots__ = ("here", "lock", "users")

    def __init__(self) -> None:
        self.lock = Lock()
        self.users = 0
        self.here: bool | None = None
        """Whether there is an object now; ``None`` where nobody can say."""


class Known:
    """Whether objects are there, as far as was heard lately. Safe from any thread.

    Only lookups believe it. A read always asks, so what others deleted is a miss at worst;
    what others wrote is one for as long as an absence is remembered.

    Args:
        clock: says when an answer has become old.
        lives: how long that takes.
        most: answers that are remembered at most.
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
        """To be noted before a question is asked, and given back with the answer."""
        return self._turn

    def ask(self, key: ChunkKey) -> bool | None:
        """Whether the object is there; ``None`` if that has to be asked."""
        heard = self._heard.get(key)
        if heard is None or self._clock.now() >= heard[1]:
            return None
        return heard[0]

    def hear(self, key: ChunkKey, here: bool, turn: int) -> None:
        """Remember an answer to what was asked at *turn*, unless this store changed since."""
        with self._lock:
            # The answer may be older than a change of our own. Whose object that was does not
            # matter: it costs one more question. And one that is under way may be seen by others
            # before it ends, after which nobody may be told what was before.
            if turn == self._turn and key not in self._under_way:
                self._keep(key, here)

    @contextmanager
    def changing(self, key: ChunkKey, deadline: Deadline) -> Iterator[Change]:
        """While this store changes an object: one change at a time, and nothing is remembered.

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
        """Answers that are under way are old already; *here* is what counts from now on."""
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
