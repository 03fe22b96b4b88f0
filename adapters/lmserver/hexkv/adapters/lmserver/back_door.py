"""A server's values without the store, for contracts, which must not use the store they check."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from ssl import SSLContext

from hexkv.adapters.lmserver.handshake import greet
from hexkv.adapters.lmserver.wire import (
    ABSENT,
    ENTRIES,
    FRAMING,
    SIZE,
    UNREADABLE,
    WISHES,
    Kind,
    ValueGrant,
    ValueVerdict,
    unpack_size,
)
from hexkv.adapters.net.address import Address
from hexkv.adapters.net.outcomes import answering
from hexkv.adapters.net.security import SecretSource
from hexkv.adapters.net.stream import connect
from hexkv.plugins.clock import SystemClock
from hexkv.ports import KEY_BYTES, ChunkKey, Deadline, StoreError

_PATIENCE = 10.0
"""Seconds after which a server that does not answer counts as gone."""


class HexkvDoor:
    """The values on the server of a store ``hexkv``.

    Args:
        address: of the server.
        secret: that the server requires.
        tls: encrypts the connection; None: not encrypted.
    """

    def __init__(self, address: Address, secret: SecretSource, tls: SSLContext | None) -> None:
        self._address = address
        with self._soon() as deadline:
            self._stream = connect(self._address, deadline, tls)
            try:
                self._stream.secure(deadline)
                greet(self._stream, secret, deadline, checked=False)
            except BaseException:
                self._stream.close()
                raise

    def get(self, key: ChunkKey) -> bytes | None:
        """The frame of *key*, as the server has it."""
        with self._soon() as deadline:
            self._ask(Kind.READ, key, deadline)
            size = unpack_size(self._stream.take(SIZE.size, deadline))
            if size in (ABSENT, UNREADABLE):
                return None
            return self._stream.take(size, deadline)

    def put(self, key: ChunkKey, frame: bytes) -> None:
        """Store *frame* on the server."""
        with self._soon() as deadline:
            granted = self._ask(Kind.WRITE, WISHES.pack(key, len(frame)), deadline)
            if granted == bytes([ValueGrant.SEND]):
                self._stream.send([frame], deadline)
                if self._hear(Kind.WRITE, deadline) == bytes([ValueVerdict.STORED]):
                    return
        raise StoreError("the server did not take the frame")

    def keys(self) -> set[ChunkKey]:
        """Every key on the server."""
        found: set[ChunkKey] = set()
        after = bytes(KEY_BYTES)
        with self._soon() as deadline:
            while listed := self._ask(Kind.SCAN, after, deadline):
                for after, _, _ in ENTRIES.iter_unpack(listed):
                    found.add(ChunkKey(after))
        return found

    def close(self) -> None:
        """End the connection."""
        self._stream.close()

    def _ask(self, kind: Kind, body: bytes, deadline: Deadline) -> bytes:
        FRAMING.ask(self._stream, kind, 1, body, deadline)
        return self._hear(kind, deadline)

    def _hear(self, kind: Kind, deadline: Deadline) -> bytes:
        return FRAMING.hear(self._stream, kind, None, deadline)[1]

    @contextmanager
    def _soon(self) -> Iterator[Deadline]:
        """The deadline for one request.

        Raises:
            StoreUnreachable: the server does not answer.
        """
        with answering(self._address):
            yield Deadline.after(SystemClock(), _PATIENCE)
