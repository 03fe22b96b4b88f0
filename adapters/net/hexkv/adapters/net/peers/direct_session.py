"""A server's side of a connection to a peer that can read this process's memory."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from hexkv.adapters.net.errors import BadMessage, ConnectionBroken
from hexkv.adapters.net.guarded import GuardedSource
from hexkv.adapters.net.messages import HEAD_BYTES, MessageHead, verify
from hexkv.adapters.net.peers.direct import FarMemory, Move, OwnMemory
from hexkv.adapters.net.peers.session import PeerSession, part_of
from hexkv.adapters.net.peers.wire import (
    ABSENT,
    ELSEWHERE,
    FRAMING,
    MAX_ENTRIES,
    PARTS,
    REFS,
    Kind,
    Status,
)
from hexkv.adapters.net.security import SecretSource
from hexkv.adapters.net.server.connection import Connection
from hexkv.ports import ChunkKey, Deadline, Lease, PeerSource, Reason, names_key, release_all

_FIRST, _TOGETHER = 4, 16
"""Frames leased in one call, together at most one frame's limit of bytes; few in the first one,
because the peer waits for them. It copies them while the next ones are leased."""

_FRAMES, _BYTES = 256, 64 << 20
"""Limits of the leases, after which the peer copies first. It waits for each answer."""


class DirectSession(PeerSession):
    """Leases frames that the peer copies, and copies frames that the peer offers.

    A peer that holds leases for longer than its bytes take loses its connection first, and then the
    leases: so it can see that its copies are invalid.
    """

    _far: FarMemory
    """Set by the greeting."""

    def __init__(
        self,
        connection: Connection,
        source: PeerSource,
        generation: int,
        secret: SecretSource,
        own: OwnMemory,
    ) -> None:
        super().__init__(connection, source, generation, secret, own.magic)
        self._own = own
        self._lent = ExitStack()
        self._lent_frames = self._lent_bytes = 0

    def run(self) -> None:
        try:
            super().run()
        finally:
            self._stream.abort()
            self._take_back()

    @property
    def _idle(self) -> float:
        if not self._lent_bytes:
            return self._limits.idle
        return self._limits.patience + self._lent_bytes / self._limits.rate

    def _greet(self) -> GuardedSource:
        source = super()._greet()
        self._far = self._own.meet(self._stream, self._connection.opening)
        return source

    def _answer(self, asked: MessageHead, body: bytes) -> bool:
        self._take_back()
        if asked.status == Status.DONE and asked.kind == Kind.LEND:
            right = 0 < asked.entries <= MAX_ENTRIES and asked.length == asked.entries * PARTS.size
            if right:
                self._lend(list(PARTS.iter_unpack(body)), self._soon(asked))
            return right
        if asked.status == Status.DONE and asked.kind == Kind.RETURN:
            if asked.entries:
                self._send([FRAMING.message(Kind.RETURN, asked.entries, b"")])
            return True
        return super()._answer(asked, body)

    @property
    def _full(self) -> bool:
        return self._lent_frames >= _FRAMES or self._lent_bytes >= _BYTES

    def _take_back(self) -> None:
        self._lent_frames = self._lent_bytes = 0
        self._lent.close()

    def _lend(self, parts: Sequence[tuple[ChunkKey, int, int]], deadline: Deadline) -> None:
        """Lease the first of *parts*, a few at a time, and send their places each time."""
        self._lent.enter_context(self._own.lending())
        done, most = 0, _FIRST
        last = False
        while not last:
            asked = parts[done : done + min(most, _FRAMES - self._lent_frames)]
            rows = self._lease(asked, deadline)
            done += len(rows)
            last = self._full or len(rows) < len(asked) or done == len(parts)
            status = Status.DONE if last else Status.MORE
            self._send([FRAMING.message(Kind.LEND, len(rows), b"".join(rows), status=status)])
            most = _TOGETHER
            if self._lent_frames:  # the wait may be for this peer's own leases
                deadline = Deadline(deadline.clock, 0.0)

    def _lease(self, asked: Sequence[tuple[ChunkKey, int, int]], deadline: Deadline) -> list[bytes]:
        """Return the places of the first of *asked*, which stay leased: up to the limit, or one.

        Ends before a part that is not lent beside others: it may be lent once these were given
        back.
        """
        keys = list(dict.fromkeys([key for key, _, _ in asked]))
        lent = dict(zip(keys, self._source.lend(keys, deadline), strict=True))
        rows: list[bytes] = []
        kept: dict[ChunkKey, Lease] = {}
        try:
            for key, start, size in asked:
                lease = lent[key]
                if lease is None and self._lent_frames:
                    break
                view = part_of(lease, start, size)
                if lease is None or view is None:
                    rows.append(REFS.pack(key, ABSENT, ELSEWHERE))
                    continue
                place = self._own.find(view)
                if place is not None and key not in kept:
                    size = len(lease.frame)
                    if self._lent_bytes and self._lent_bytes + size > self._limits.max_value:
                        break
                    kept[key] = lease
                    self._lent_frames += 1
                    self._lent_bytes += size
                rows.append(REFS.pack(key, len(view), ELSEWHERE if place is None else place))
        finally:
            self._lent.callback(release_all, list(kept.values()))
            release_all([it for key, it in lent.items() if it is not None and key not in kept])
        return rows

    def _rooms(
        self, wanted: Sequence[tuple[ChunkKey, int]], deadline: Deadline, leased: ExitStack
    ) -> list[Lease | Reason]:
        rooms = super()._rooms(wanted, deadline, leased)
        return [
            Reason.NO_ROOM if not isinstance(it, Reason) and not self._far.takes(it.frame) else it
            for it in rooms
        ]

    def _receive(self, granted: Sequence[tuple[ChunkKey, int, Lease]]) -> list[bool]:
        rows = self._pushed(len(granted))
        moves: list[Move] = []
        right = [False] * len(granted)
        for place, ((key, size, room), (named, told, start)) in enumerate(
            zip(granted, rows, strict=True)
        ):
            if named != key or told != size:
                raise BadMessage("a frame that was not offered")
            into = room.frame[:size]
            if start == ELSEWHERE:
                right[place] = self._fill(key, into)
            elif start + size > self._far.size:
                raise BadMessage("a chunk beyond the peer's memory")
            else:
                moves.append(Move(place, room, into, start))
        if moves:
            with self._connection.transfer(sum(len(move.into) for move in moves)) as deadline:
                self._far.pull(moves, _nobody, deadline)
        for move in moves:
            right[move.place] = names_key(move.into, granted[move.place][0])
        self._must_have_held(len(granted))
        return right

    def _pushed(self, count: int) -> list[tuple[Any, ...]]:
        """Receive the places of *count* granted frames in the peer's memory."""
        return list(REFS.iter_unpack(self._told(Kind.PUSH, count, count * REFS.size)))

    def _must_have_held(self, count: int) -> None:
        """Check that the peer had leased the copied bytes until now.

        Raises:
            StoreUnreachable, OutOfTime: that is unknown.
        """
        if not self._own.instant:
            self._tell_of(Kind.PULLED, count)
            self._told(Kind.HELD, count, 0)
        elif not self._stream.quiet:
            raise ConnectionBroken("the peer has ended the connection")

    def _tell_of(self, kind: Kind, count: int) -> None:
        self._send([FRAMING.message(kind, count, b"")])

    def _told(self, kind: Kind, count: int, length: int) -> bytes:
        """Receive the body of the message that must come next."""
        with self._connection.transfer(HEAD_BYTES + length) as deadline:
            found = FRAMING.head(self._stream.take(HEAD_BYTES, deadline))
            if (found.kind, found.entries, found.length) != (kind, count, length):
                raise BadMessage("an unexpected message")
            body = self._stream.take(length, deadline)
        verify(found, body)
        return body


def _nobody(index: int, upto: int) -> None:
    """Ignore progress: an offered frame is used only when all of it is there."""
    del index, upto
