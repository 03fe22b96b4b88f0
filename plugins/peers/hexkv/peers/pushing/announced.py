"""Chunks announced by the clients of one cache; see :class:`hexkv.ports.Announcing`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from threading import Condition
from typing import TYPE_CHECKING, NamedTuple

from hexkv.ports import MAX_ANNOUNCED, Announcing, ChunkKey, Clock, Deadline, Executor

PEERS = "\0peers"
"""The group of the chunks that peers compute."""


class _Entry(NamedTuple):
    client: str
    owner: str
    group: str
    ends: float


class Announced:
    """The announcements of all clients. Safe from any thread."""

    def __init__(self, clock: Clock, executor: Executor) -> None:
        self._clock = clock
        self._executor = executor
        self._entries: dict[ChunkKey, _Entry] = {}
        self._keys: dict[str, dict[str, set[ChunkKey]]] = {}
        """Announced keys by client and owner."""

        self._changed = Condition()

    def __len__(self) -> int:
        return len(self._entries)

    def of(self, client: str) -> ClientAnnounced:
        """Return the view of *client*."""
        return ClientAnnounced(self, client)

    def published(self, keys: Iterable[ChunkKey]) -> None:
        """End the announcements of chunks that are available, or will not come."""
        if not self._entries:  # as a rule
            return
        with self._changed:
            for key in keys:
                self._drop(key)
            self._changed.notify_all()

    def gone(self, client: str) -> None:
        """End all announcements of *client*."""
        with self._changed:
            owners = list(self._keys.get(client, ()))
        for owner in owners:
            self.withdraw(client, owner)

    def of_client(self, client: str) -> list[ChunkKey]:
        """Return the chunks that *client* has announced, and that have not come by now."""
        now = self._clock.now()
        with self._changed:
            keys = [key for mine in self._keys.get(client, {}).values() for key in mine]
            return [key for key in keys if self._entries[key].ends > now]

    def end(self, client: str, keys: Iterable[ChunkKey]) -> None:
        """End the announcements of *client* for *keys*."""
        with self._changed:
            for key in keys:
                entry = self._entries.get(key)
                if entry is not None and entry.client == client:
                    self._drop(key)
            self._changed.notify_all()

    def announce(
        self, client: str, owner: str, group: str, keys: Sequence[ChunkKey], seconds: float
    ) -> int:
        now = self._clock.now()
        entry = _Entry(client, owner, group, now + seconds)
        count = 0
        with self._changed:
            room = self._room(client)
            if room < len(keys):
                for key in self._over(client, now):
                    self._drop(key)
                room = self._room(client)
            for key in keys:
                known = self._entries.get(key)
                if known is not None and known[:2] != entry[:2] and known.ends > now:
                    continue
                if known is None or known.client != client:
                    if room <= 0:
                        continue
                    room -= 1
                self._drop(key)
                self._entries[key] = entry
                self._keys.setdefault(client, {}).setdefault(owner, set()).add(key)
                count += 1
        return count

    def withdraw(self, client: str, owner: str) -> int:
        with self._changed:
            keys = list(self._keys.get(client, {}).get(owner, ()))
            for key in keys:
                self._drop(key)
            if keys:
                self._changed.notify_all()
        return len(keys)

    def expect(self, keys: Sequence[ChunkKey], group: str, deadline: Deadline) -> Sequence[bool]:
        with self._changed:
            while keys:
                flags, ends = self._look(keys, group)
                if not all(flags) or deadline.expired:
                    return flags
                until = Deadline.after(self._clock, min(deadline.remaining(), ends))
                self._executor.wait(
                    self._changed, lambda: not all(self._look(keys, group)[0]), until
                )
        return []

    def _look(self, keys: Sequence[ChunkKey], group: str) -> tuple[list[bool], float]:
        """Return True for each key announced outside of *group*, and seconds to the first end."""
        now = self._clock.now()
        found = [self._entries.get(key) for key in keys]
        here = [one is not None and one.group != group and one.ends > now for one in found]
        ends = [one.ends for one, is_here in zip(found, here, strict=True) if one and is_here]
        return here, min(ends, default=now) - now

    def _room(self, client: str) -> int:
        return MAX_ANNOUNCED - sum(map(len, self._keys.get(client, {}).values()))

    def _over(self, client: str, now: float) -> list[ChunkKey]:
        """Return the expired announcements of *client*."""
        keys = [key for mine in self._keys.get(client, {}).values() for key in mine]
        return [key for key in keys if self._entries[key].ends <= now]

    def _drop(self, key: ChunkKey) -> None:
        entry = self._entries.pop(key, None)
        if entry is None:
            return
        owners = self._keys[entry.client]
        owners[entry.owner].discard(key)
        if not owners[entry.owner]:
            del owners[entry.owner]
            if not owners:
                del self._keys[entry.client]


class ClientAnnounced:
    """One client's view of all announcements."""

    def __init__(self, announced: Announced, client: str) -> None:
        self._announced = announced
        self._client = client

    def announce(
        self, owner: str, group: str, keys: Sequence[ChunkKey], seconds: float, deadline: Deadline
    ) -> int:
        del deadline
        return self._announced.announce(self._client, owner, group, keys, seconds)

    def withdraw(self, owner: str, deadline: Deadline) -> int:
        del deadline
        return self._announced.withdraw(self._client, owner)

    def expect(self, keys: Sequence[ChunkKey], group: str, deadline: Deadline) -> Sequence[bool]:
        return self._announced.expect(keys, group, deadline)


if TYPE_CHECKING:

    def _is_announcing(announced: ClientAnnounced) -> Announcing:
        return announced
