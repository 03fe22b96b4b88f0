"""Keys in an order that can change in the middle: the basis of every policy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hexkv.ports import ChunkKey


class Order:
    """A doubly linked list of keys, from oldest to newest; every step is O(1).

    The links are the values of two dictionaries, so a key costs two dictionary entries
    and no object of its own. (``OrderedDict`` takes as much and cannot insert beside a
    given key; a plain ``dict`` finds its oldest key by passing every one deleted before.)
    ``None`` stands beyond both ends.
    """

    __slots__ = ("_newer", "_older")

    def __init__(self) -> None:
        self._newer: dict[ChunkKey | None, ChunkKey | None] = {None: None}
        self._older: dict[ChunkKey | None, ChunkKey | None] = {None: None}

    def __len__(self) -> int:
        return len(self._newer) - 1

    def __contains__(self, key: ChunkKey) -> bool:
        return key in self._newer

    def __iter__(self) -> Iterator[ChunkKey]:
        key = self._newer[None]
        while key is not None:
            yield key
            key = self._newer[key]

    def __reversed__(self) -> Iterator[ChunkKey]:
        key = self._older[None]
        while key is not None:
            yield key
            key = self._older[key]

    def older(self, key: ChunkKey) -> ChunkKey | None:
        """Return the next older key; ``None`` for the oldest."""
        return self._older[key]

    def begins_with(self, keys: Sequence[ChunkKey]) -> bool:
        """True if *keys* are the newest, in this order: the first is the newest of all."""
        at: ChunkKey | None = None
        for key in keys:
            if self._older[at] != key:
                return False
            at = key
        return True

    def put_below(self, newer: ChunkKey | None, key: ChunkKey) -> None:
        """Insert *key* just older than *newer*; below ``None`` it is the newest."""
        older = self._older[newer]
        self._older[key], self._newer[key] = older, newer
        self._newer[older] = self._older[newer] = key

    def put_run_below(self, newer: ChunkKey | None, keys: Sequence[ChunkKey]) -> None:
        """Insert *keys*, each once, the first of them just older than *newer*.

        A key that is present already is moved: linked twice, it would close a circle.
        """
        if not self._newer.keys().isdisjoint(keys):
            for key in self._newer.keys() & keys:
                if key is not None:
                    self.remove(key)
            newer = newer if newer in self._newer else None
        if keys:
            older = self._older[newer]
            self._older.update(zip(keys, (*keys[1:], older), strict=True))
            self._newer.update(zip(keys, (newer, *keys[:-1]), strict=True))
            self._newer[older], self._older[newer] = keys[-1], keys[0]

    def put_above(self, older: ChunkKey | None, key: ChunkKey) -> None:
        """Insert *key* just newer than *older*; above ``None`` it is the oldest."""
        self.put_below(self._newer[older], key)

    def remove(self, key: ChunkKey) -> None:
        """Take *key* out."""
        older, newer = self._older.pop(key), self._newer.pop(key)
        self._newer[older], self._older[newer] = newer, older


class OneOrder:
    """A policy whose chunks are in one order, and are evicted from its oldest on."""

    __slots__ = ("_order",)

    def __init__(self) -> None:
        self._order = Order()

    def drop(self, key: ChunkKey, *, evicted: bool) -> None:
        del evicted
        self._order.remove(key)

    def victims(self) -> Iterator[ChunkKey]:
        return iter(self._order)
