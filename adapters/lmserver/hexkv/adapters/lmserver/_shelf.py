"""Where a server keeps its values, within its budget: in memory, or in a directory."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from threading import Lock
from typing import NamedTuple, Protocol

from hexkv.adapters.lmserver._arena import Arena, Block, room
from hexkv.adapters.lmserver._sorted import SortedKeys
from hexkv.adapters.lmserver.wire import Verdict
from hexkv.plugins.indexing import TierIndex
from hexkv.ports import NAMESPACE_BYTES, ChunkKey, Clock, Entry

HISTORIC = sha256(b"values of the lm:// wire").digest()[:NAMESPACE_BYTES]
"""Keeps what came over that wire apart from chunks: no chunk's namespace has this digest."""


class NoRoom(Exception):
    """There was no memory to pass a value through."""


class Value(NamedTuple):
    """A value that arrived, in memory that its giver releases."""

    key: ChunkKey
    block: Block


class Loan(NamedTuple):
    """A value to be sent, or a part of it; release the block afterwards."""

    block: Block
    views: list[memoryview]

    @property
    def size(self) -> int:
        """Bytes of the views."""
        return sum(map(len, self.views))


class Shelf(Protocol):
    """What the wires see of it. Safe from any thread."""

    def take(self, size: int, patience: float) -> Block | None:
        """Memory to receive a value into; ``None`` if none came free for *patience* seconds."""
        ...

    def contains(self, keys: Sequence[ChunkKey]) -> list[bool]:
        """Whether each value is there."""
        ...

    def borrow(
        self, key: ChunkKey, start: int = 0, size: int | None = None, *, patience: float
    ) -> Loan | None:
        """A value or a range of it; ``None`` if there is none such.

        Raises:
            NoRoom: no memory came free for *patience* seconds.
            StoreError: it cannot be read.
        """
        ...

    def put(self, values: Sequence[Value]) -> list[Verdict]:
        """Keep values of one batch, in prefix order; each replaces what was there, whole."""
        ...

    def delete(self, keys: Sequence[ChunkKey]) -> list[bool]:
        """Forget values. Whether each was there."""
        ...

    def touch(self, keys: Sequence[ChunkKey]) -> None:
        """One request met these."""
        ...

    def list(self, after: ChunkKey, most: int, *, historic: bool = False) -> list[Entry]:
        """The next *most* entries in the order of their keys, of the one wire or the other."""
        ...

    def close(self) -> None:
        """Release what it holds."""
        ...


class _Kept(NamedTuple):
    block: Block
    stored: float


class MemoryShelf:
    """Values in the arena itself: what was received is kept where it lies.

    Args:
        arena: larger than the index's budget by what is on its way in or out.
        index: counts what a value takes in the arena.
        clock: says when a value was stored.
    """

    def __init__(self, arena: Arena, index: TierIndex, clock: Clock) -> None:
        self._arena = arena
        self._index = index
        self._clock = clock
        self._lock = Lock()
        self._kept: dict[ChunkKey, _Kept] = {}
        self._listing = Listing()

    def take(self, size: int, patience: float) -> Block | None:
        return self._arena.take(size, patience)

    def contains(self, keys: Sequence[ChunkKey]) -> list[bool]:
        return [key in self._kept for key in keys]

    def borrow(
        self, key: ChunkKey, start: int = 0, size: int | None = None, *, patience: float
    ) -> Loan | None:
        del patience  # it is in memory
        with self._lock:
            kept = self._kept.get(key)
            if kept is None:
                return None
            length = kept.block.size - start if size is None else size
            if length < 0 or start + length > kept.block.size:
                return None
            block = kept.block.share()
        return Loan(block, block.part(start, length))

    def put(self, values: Sequence[Value]) -> list[Verdict]:
        last = {value.key: value.block for value in values}
        sizes = [room(block.size) for block in last.values()]
        now = self._clock.wall()
        full = set()
        with self._lock:
            reservation = self._index.reserve(list(last), sizes)
            self._forget(reservation.victims)
            full.update(reservation.refused)
            new = set(reservation.keys)
            for key, size in zip(last, sizes, strict=True):
                if key in new or key in full:
                    continue
                victims = self._index.resize(key, size)
                if victims is None:
                    full.add(key)
                else:
                    self._forget(victims)
            for key, block in last.items():
                if key not in full and (key in new or key in self._kept):
                    self._drop(key)
                    self._kept[key] = _Kept(block.share(), now)
                    self._listing.of(key).add(key)
            self._index.commit(reservation.keys)
        return [Verdict.FULL if value.key in full else Verdict.STORED for value in values]

    def delete(self, keys: Sequence[ChunkKey]) -> list[bool]:
        there = []
        with self._lock:
            for key in keys:
                there.append(key in self._kept)
                self._forget(self._index.discard([key]))
        return there

    def touch(self, keys: Sequence[ChunkKey]) -> None:
        self._index.touch(keys)

    def list(self, after: ChunkKey, most: int, *, historic: bool = False) -> list[Entry]:
        with self._lock:
            found = self._listing.after(after, most, historic=historic)
            return [Entry(key, self._kept[key].block.size, self._kept[key].stored) for key in found]

    def close(self) -> None:
        with self._lock:
            for key in list(self._kept):
                self._drop(key)

    def _forget(self, keys: Sequence[ChunkKey]) -> None:
        for key in keys:
            self._drop(key)
        self._index.deleted(keys)

    def _drop(self, key: ChunkKey) -> None:
        kept = self._kept.pop(key, None)
        if kept is not None:
            self._listing.of(key).discard(key)
            kept.block.release()


class Listing:
    """The keys of a shelf in their order, apart by wire. Used under the shelf's lock."""

    def __init__(self) -> None:
        self._keys = {historic: SortedKeys() for historic in (False, True)}

    def of(self, key: ChunkKey) -> SortedKeys:
        """The keys beside which *key* is listed."""
        return self._keys[is_historic(key)]

    def after(self, key: ChunkKey, most: int, *, historic: bool) -> Sequence[ChunkKey]:
        """The next *most* keys behind *key*, of the one wire or the other."""
        return [ChunkKey(found) for found in self._keys[historic].after(key, most)]


def is_historic(key: ChunkKey) -> bool:
    """True if *key* is one that came over a plugin's wire, and over no other."""
    return key.startswith(HISTORIC)


def _keeps_the_protocol(shelf: MemoryShelf) -> Shelf:
    return shelf  # mypy checks here that it keeps the protocol's promises
