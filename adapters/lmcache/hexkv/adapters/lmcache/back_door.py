"""A server's values without the store, for contracts, which must not use the store they check."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from hexkv.adapters.lmcache.wire import (
    ANSWER,
    NOTHING,
    TOMBSTONE,
    AnswerHead,
    Command,
    RequestHead,
    frame_tensor,
    name_of,
    parse_answer,
)
from hexkv.adapters.net.address import Address
from hexkv.adapters.net.outcomes import answering
from hexkv.adapters.net.stream import connect
from hexkv.plugins.clock import SystemClock
from hexkv.ports import ChunkKey, Deadline, StoreError

_PATIENCE = 10.0
"""Seconds after which a server that does not answer counts as gone."""


class LMDoor:
    """The values on the server of a store ``lm``."""

    def __init__(self, address: Address) -> None:
        self._address = address
        with self._soon() as deadline:
            self._stream = connect(self._address, deadline)

    def get(self, key: ChunkKey) -> bytes | None:
        """The frame of *key*, as the server has it; None for a tombstone."""
        with self._soon() as deadline:
            answer = self._ask(RequestHead(Command.GET, name_of(key), 0, NOTHING), b"", deadline)
            if not answer.found or answer.tensor == TOMBSTONE:
                return None
            return self._stream.take(answer.length, deadline)

    def put(self, key: ChunkKey, frame: bytes) -> None:
        """Store *frame* on the server."""
        tensor = frame_tensor(len(frame))
        put = RequestHead(Command.PUT, name_of(key), len(frame), tensor).pack() + frame
        with self._soon() as deadline:
            asked = RequestHead(Command.EXIST, name_of(key), 0, NOTHING)
            if self._ask(asked, put, deadline).found:
                return
        raise StoreError("the server did not take the frame")

    def keys(self) -> set[ChunkKey]:
        """Not possible: LMCache's server does not list.

        Raises:
            StoreError: always.
        """
        raise StoreError("the wire lm:// cannot list")

    def close(self) -> None:
        """End the connection."""
        self._stream.close()

    def _ask(self, request: RequestHead, before: bytes, deadline: Deadline) -> AnswerHead:
        self._stream.send([before + request.pack()], deadline)
        return parse_answer(self._stream.take(ANSWER.size, deadline))

    @contextmanager
    def _soon(self) -> Iterator[Deadline]:
        """The deadline for one request.

        Raises:
            StoreUnreachable: the server does not answer.
        """
        with answering(self._address):
            yield Deadline.after(SystemClock(), _PATIENCE)
