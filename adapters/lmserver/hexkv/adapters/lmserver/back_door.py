"""A server's values without the stores: for contracts, which must not ask what they check.

One connection each, on which requests are made one by one.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager

from hexkv.adapters.lmserver._pool import Address, connect
from hexkv.adapters.lmserver.handshake import greet
from hexkv.adapters.lmserver.historic import (
    ANSWER,
    NOTHING,
    TOMBSTONE,
    Answer,
    Command,
    Request,
    frame_tensor,
    name_of,
    parse_answer,
)
from hexkv.adapters.lmserver.plugin import HexkvSettings, LMSettings, secret_of, tls_of
from hexkv.adapters.lmserver.wire import (
    ABSENT,
    ENTRIES,
    HEAD_BYTES,
    SIZE,
    UNREADABLE,
    WISHES,
    Grant,
    Kind,
    Verdict,
    head,
    message,
    unpack_size,
    verify,
)
from hexkv.plugins.clock import SystemClock
from hexkv.ports import KEY_BYTES, ChunkKey, Deadline, StoreError, StoreUnreachable

_PATIENCE = 10.0
"""Seconds after which a server that says nothing counts as gone."""


class HexkvDoor:
    """What the server of a store ``hexkv`` holds."""

    def __init__(self, settings: HexkvSettings) -> None:
        with _answering() as deadline:
            self._stream = connect(
                Address.parse(settings.address, "hexkv"), deadline, tls_of(settings)
            )
            try:
                self._stream.secure(deadline)
                nonce = secrets.token_bytes
                greet(self._stream, secret_of(settings), deadline, nonce, checked=False)
            except BaseException:
                self._stream.close()
                raise

    def get(self, key: ChunkKey) -> bytes | None:
        """The frame of *key*, as the server has it."""
        with _answering() as deadline:
            self._ask(Kind.READ, key, deadline)
            size = unpack_size(self._stream.receive_bytes(SIZE.size, deadline))
            if size in (ABSENT, UNREADABLE):
                return None
            return self._stream.receive_bytes(size, deadline)

    def put(self, key: ChunkKey, frame: bytes) -> None:
        """Make the server hold *frame*."""
        with _answering() as deadline:
            granted = self._ask(Kind.WRITE, WISHES.pack(key, len(frame)), deadline)
            if granted == bytes([Grant.SEND]):
                self._stream.send([frame], deadline)
                if self._hear(deadline) == bytes([Verdict.STORED]):
                    return
        raise StoreError("the server did not take the frame")

    def keys(self) -> set[ChunkKey]:
        """Every key on the server."""
        found: set[ChunkKey] = set()
        after = bytes(KEY_BYTES)
        with _answering() as deadline:
            while listed := self._ask(Kind.SCAN, after, deadline):
                for after, _, _ in ENTRIES.iter_unpack(listed):
                    found.add(ChunkKey(after))
        return found

    def close(self) -> None:
        """End the connection."""
        self._stream.close()

    def _ask(self, kind: Kind, body: bytes, deadline: Deadline) -> bytes:
        patience = int(1000 * _PATIENCE)
        self._stream.send([message(kind, 1, body, patience=patience)], deadline)
        return self._hear(deadline)

    def _hear(self, deadline: Deadline) -> bytes:
        found = head(self._stream.receive_bytes(HEAD_BYTES, deadline))
        body = self._stream.receive_bytes(found.length, deadline)
        verify(found, body)
        return body


class LMDoor:
    """What the server of a store ``lm`` holds."""

    def __init__(self, settings: LMSettings) -> None:
        with _answering() as deadline:
            self._stream = connect(Address.parse(settings.address, "lm"), deadline)

    def get(self, key: ChunkKey) -> bytes | None:
        """The frame of *key*, as the server has it; what was deleted it has not."""
        with _answering() as deadline:
            answer = self._ask(Request(Command.GET, name_of(key), 0, NOTHING), b"", deadline)
            if not answer.found or answer.tensor == TOMBSTONE:
                return None
            return self._stream.receive_bytes(answer.length, deadline)

    def put(self, key: ChunkKey, frame: bytes) -> None:
        """Make the server hold *frame*."""
        tensor = frame_tensor(len(frame))
        put = Request(Command.PUT, name_of(key), len(frame), tensor).pack() + frame
        with _answering() as deadline:
            asked = Request(Command.EXIST, name_of(key), 0, NOTHING)
            if self._ask(asked, put, deadline).found:
                return
        raise StoreError("the server did not take the frame")

    def keys(self) -> set[ChunkKey]:
        """Nothing: LMCache's server does not list.

        Raises:
            StoreError: always.
        """
        raise StoreError("the wire lm:// lists for nobody")

    def close(self) -> None:
        """End the connection."""
        self._stream.close()

    def _ask(self, request: Request, before: bytes, deadline: Deadline) -> Answer:
        self._stream.send([before + request.pack()], deadline)
        return parse_answer(self._stream.receive_bytes(ANSWER.size, deadline))


@contextmanager
def _answering() -> Iterator[Deadline]:
    """The deadline for one request.

    Raises:
        StoreUnreachable: the server does not answer.
    """
    try:
        yield Deadline.after(SystemClock(), _PATIENCE)
    except OSError as error:
        raise StoreUnreachable(str(error)) from error
