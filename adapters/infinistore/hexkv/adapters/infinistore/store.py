"""Chunks in InfiniStore: one value per chunk."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from threading import Condition
from typing import TypeVar

from hexkv.adapters.infinistore.client import InfinityConnection
from hexkv.adapters.infinistore.crew import Crew
from hexkv.ports import (
    ChunkKey,
    ChunkStore,
    Deadline,
    Failed,
    Hit,
    Item,
    Miss,
    ReadOutcome,
    Reason,
    SharedMedium,
    Sink,
    Stored,
    StoreError,
    StoreUnreachable,
    TimedOut,
    WriteOutcome,
)

T = TypeVar("T")

EMPTY = b"hexkv: a frame of no bytes"
"""The value of an empty frame, because the library refuses empty values."""


class InfiniStore:
    """See the module's text. Safe from any thread.

    Args:
        connect: makes a connection, in a thread of the store's own.
        prefix: of every key.
        connections: calls under way at a time.
    """

    def __init__(
        self, connect: Callable[[], InfinityConnection], prefix: str, connections: int
    ) -> None:
        self._crew = Crew(connect, connections)
        self._prefix = prefix
        self._changing: set[str] = set()
        self._changed = Condition()

    @property
    def shared(self) -> bool:
        """True: other machines fill it, and the server evicts."""
        return True

    def contains(self, keys: Sequence[ChunkKey], deadline: Deadline) -> Sequence[bool]:
        return [self._must(name, partial(_exists, name), deadline) for name in self._names(keys)]

    def read(
        self, keys: Sequence[ChunkKey], sink: Sink, deadline: Deadline
    ) -> Sequence[ReadOutcome]:
        return [self._read(i, name, sink, deadline) for i, name in enumerate(self._names(keys))]

    def write(self, items: Sequence[Item], deadline: Deadline) -> Sequence[WriteOutcome]:
        return [self._write(key, frame, deadline) for key, frame in items]

    def delete(self, keys: Sequence[ChunkKey], deadline: Deadline) -> Sequence[bool]:
        return [self._must(name, partial(_delete, name), deadline) for name in self._names(keys)]

    def close(self) -> None:
        self._crew.close()

    def _read(self, i: int, name: str, sink: Sink, deadline: Deadline) -> ReadOutcome:
        def fetch(client: InfinityConnection) -> memoryview | None:
            if not client.check_exist(name):
                return None
            try:
                return memoryview(client.tcp_read_cache(name)).cast("B")
            except Exception:
                if client.check_exist(name):
                    raise
                return None  # evicted in between

        try:
            found = self._ask(name, fetch, deadline)
        except TimeoutError:
            return TimedOut()
        except StoreError as error:
            return Failed(error)
        if found is None:
            return Miss()
        if found.nbytes == len(EMPTY) and bytes(found) == EMPTY:
            found = memoryview(b"")
        into = sink.room(i, found.nbytes)
        if into is None:
            return Miss(Reason.REFUSED)
        into[:] = found
        return Hit(found.nbytes)

    def _write(self, key: ChunkKey, frame: memoryview, deadline: Deadline) -> WriteOutcome:
        if deadline.expired:
            return TimedOut()
        # A copy: the library may still read it after the caller reuses its memory.
        data = bytearray(frame) if frame.nbytes else bytearray(EMPTY)
        if frame.nbytes == len(EMPTY) and data == EMPTY:
            return Failed(StoreError("this frame is the mark of no bytes"))
        name = self._name(key)

        def put(client: InfinityConnection) -> None:
            client.delete_keys([name])
            client.tcp_write_cache(
                name, ctypes.addressof(ctypes.c_char.from_buffer(data)), len(data)
            )

        try:
            self._ask(name, put, deadline)
        except TimeoutError:
            return TimedOut()
        except StoreError as error:
            return Failed(error)
        return Stored(frame.nbytes)

    def _ask(self, name: str, work: Callable[[InfinityConnection], T], deadline: Deadline) -> T:
        """Return the result of *work*, run while no other call of this store uses the same chunk.

        Raises:
            TimeoutError, StoreError: it has no result.
        """
        if deadline.expired:
            raise TimeoutError

        def alone(client: InfinityConnection) -> T:
            with self._turn(name, deadline):
                return work(client)

        return self._crew.call(alone, deadline)

    @contextmanager
    def _turn(self, name: str, deadline: Deadline) -> Iterator[None]:
        """Lock *name* until the library's call ends, even after the caller has given up."""
        with self._changed:
            if not self._changed.wait_for(lambda: name not in self._changing, deadline.remaining()):
                raise StoreUnreachable("another call at the chunk takes too long")
            self._changing.add(name)
        try:
            yield
        finally:
            with self._changed:
                self._changing.discard(name)
                self._changed.notify_all()

    def _must(self, name: str, work: Callable[[InfinityConnection], T], deadline: Deadline) -> T:
        try:
            return self._ask(name, work, deadline)
        except TimeoutError as error:
            raise StoreUnreachable("InfiniStore: no answer in time") from error

    def _names(self, keys: Sequence[ChunkKey]) -> list[str]:
        return [self._name(key) for key in keys]

    def _name(self, key: ChunkKey) -> str:
        return self._prefix + key.hex()


def _exists(name: str, client: InfinityConnection) -> bool:
    return client.check_exist(name)


def _delete(name: str, client: InfinityConnection) -> bool:
    return client.delete_keys([name]) > 0


def _is_a_store(store: InfiniStore) -> tuple[ChunkStore, SharedMedium]:
    return store, store  # mypy checks here that it keeps the ports' promises
