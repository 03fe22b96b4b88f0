"""The corner of a shelf that belongs to the wires of plugins."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from hexkv.adapters.lmserver._arena import Block
from hexkv.adapters.lmserver._shelf import HISTORIC, Loan, NoRoom, Shelf, Value
from hexkv.adapters.lmserver.wire import Verdict
from hexkv.adapters.net.serving import DIGEST, Kept, Room, Values
from hexkv.ports import ChunkKey, StoreError


class WireValues:
    """Values by digest, in a namespace that no chunk has.

    Args:
        shelf: keeps them, beside the chunks of the server's own wire.
        wait: seconds that a request waits for memory.
    """

    def __init__(self, shelf: Shelf, wait: float) -> None:
        self._shelf = shelf
        self._wait = wait

    @contextmanager
    def room(self, size: int) -> Iterator[Block | None]:
        block = self._shelf.take(size, self._wait)
        if block is None:
            yield None
            return
        with block:
            yield block

    def put(self, digest: bytes, room: Room) -> bool:
        if not isinstance(room, Block):
            raise TypeError(f"a room of this server is needed, not a {type(room).__name__}")
        return self._shelf.put([Value(_key(digest), room)]) == [Verdict.STORED]

    @contextmanager
    def lent(self, digest: bytes, start: int = 0, size: int | None = None) -> Iterator[Loan | None]:
        try:
            loan = self._shelf.borrow(_key(digest), start, size, patience=self._wait)
        except (NoRoom, StoreError):
            loan = None
        if loan is None:
            yield None
            return
        with loan.block:
            yield loan

    def contains(self, digest: bytes) -> bool:
        return self._shelf.contains([_key(digest)]) == [True]

    def delete(self, digest: bytes) -> None:
        self._shelf.delete([_key(digest)])

    def touch(self, digest: bytes) -> None:
        self._shelf.touch([_key(digest)])

    def list(self, after: bytes, most: int) -> list[Kept]:
        found = self._shelf.list(_key(after), most, historic=True)
        return [Kept(entry.key[len(HISTORIC) :], entry.size) for entry in found]


def _key(digest: bytes) -> ChunkKey:
    if len(digest) != DIGEST:
        raise ValueError(f"a digest has {DIGEST} bytes")
    return ChunkKey(HISTORIC + digest)


def _keeps_the_protocol(values: WireValues) -> Values:
    return values  # mypy checks here that it keeps the protocol's promises
