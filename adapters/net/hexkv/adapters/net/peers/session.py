"""A server's side of one connection: a peer's reads, offers and questions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from struct import Struct
from typing import Any

from hexkv.adapters.net.guarded import GuardedSource
from hexkv.adapters.net.messages import MessageHead
from hexkv.adapters.net.peers.wire import (
    ABSENT,
    AHEAD,
    FRAMING,
    MAGIC,
    MAX_ENTRIES,
    OFFERS,
    PARTS,
    TOGETHER,
    Grant,
    Kind,
    Status,
    Verdict,
    handshake,
    pack_group,
)
from hexkv.adapters.net.security import SecretSource
from hexkv.adapters.net.server.connection import Connection
from hexkv.ports import (
    MAX_QUESTION,
    ChunkKey,
    Deadline,
    Lease,
    Offer,
    PeerSource,
    Reason,
    names_key,
    release_all,
)

_LARGE, _FEW = 2 << 20, 8
"""Bytes of a large part, and the number of such parts leased and sent at a time: a slow peer holds
at most that."""


class PeerSession:
    """Answers one connection until it ends.

    Args:
        connection: to a peer that has not been checked.
        source: the source that is served.
        generation: of this server.
        secret: that the peer must know.
        magic: of the transport of frames.
    """

    _source: GuardedSource
    """Set by the greeting, which names the peer."""

    def __init__(
        self,
        connection: Connection,
        source: PeerSource,
        generation: int,
        secret: SecretSource,
        magic: bytes = MAGIC,
    ) -> None:
        self._magic = magic
        self._connection = connection
        self._stream = connection.stream
        self._limits = connection.limits
        self._generation = generation
        self._secret = secret
        self._served = source

    def run(self) -> None:
        """Answer until the connection breaks; it always ends by an error.

        Raises:
            BadMessage, Refused: the peer does not speak the protocol, or know the secret.
            OutOfTime, ConnectionBroken: the connection is over.
        """
        self._source = self._greet()
        while True:
            asked, body = FRAMING.request(self._connection, AHEAD, self._idle)
            if not self._answer(asked, body):
                # Well framed, but meaningless: both sides still agree on the position in the
                # stream.
                refusal = FRAMING.message(asked.kind, 0, b"", status=Status.BAD_REQUEST)
                self._send([refusal])

    @property
    def _idle(self) -> float:
        """Seconds until the next request."""
        return self._limits.idle

    def _greet(self) -> GuardedSource:
        largest = self._limits.max_value
        said = MAX_ENTRIES, largest, self._generation
        (name,) = handshake(self._magic).answer(self._connection, self._secret, *said)
        who = name.rstrip(b"\0").decode(errors="replace")
        return GuardedSource(self._served, who, largest)

    def _answer(self, asked: MessageHead, body: bytes) -> bool:
        """Answer a request. False if it is invalid."""
        answers: dict[int, tuple[Struct, Callable[[list[tuple[Any, ...]], MessageHead], None]]] = {
            Kind.READ: (PARTS, self._read),
            Kind.OFFER: (OFFERS, self._take_offers),
        }
        if asked.status != Status.DONE:
            return False
        if asked.kind == Kind.ASK:
            return self._say(asked, body)
        if asked.kind not in answers:
            return False
        row, answer = answers[asked.kind]
        if not 0 < asked.entries <= MAX_ENTRIES or asked.length != asked.entries * row.size:
            return False
        answer(list(row.iter_unpack(body)), asked)
        return True

    def _say(self, asked: MessageHead, question: bytes) -> bool:
        if len(question) > MAX_QUESTION:
            return False
        said = self._source.answer(question, self._soon(asked))
        status = Status.DONE if said is not None else Status.FAILED
        body = said or b""
        self._send([FRAMING.message(Kind.ASK, 0, body, status=status)], len(body))
        return True

    def _read(self, parts: Sequence[tuple[ChunkKey, int, int]], asked: MessageHead) -> None:
        before = FRAMING.message(Kind.READ, len(parts), b"")
        done, most = 0, _FEW  # their sizes are unknown so far
        while done < len(parts):
            count, size = self._give(before, parts[done : done + most], self._soon(asked))
            done += count
            most = TOGETHER if size < count * _LARGE else _FEW
            before = b""

    def _give(
        self, before: bytes, parts: Sequence[tuple[ChunkKey, int, int]], deadline: Deadline
    ) -> tuple[int, int]:
        """Answer the first of *parts*. Return their number, and the number of bytes sent.

        Ends before a part that is not lent beside others: it may be lent once these were released.
        """
        # Layers of one chunk take one lease.
        keys = list(dict.fromkeys([key for key, _, _ in parts]))
        leases = self._source.lend(keys, deadline)
        try:
            lent = dict(zip(keys, leases, strict=True))
            rows: list[tuple[ChunkKey, int]] = []
            frames: list[memoryview] = []
            sent: list[tuple[ChunkKey, int]] = []
            for key, start, size in parts:
                lease = lent[key]
                if lease is None and sent:
                    break
                part = part_of(lease, start, size)
                if part is None:
                    rows.append((key, ABSENT))
                    continue
                rows.append((key, len(part)))
                sent.append(rows[-1])
                frames.append(part)
            views: list[memoryview | bytes] = [before + pack_group(rows), *frames]
            size = sum(map(len, views))
            self._send(views, size)
            _note_moved(lent, sent)
        finally:
            release_all([lease for lease in leases if lease is not None])
        return len(rows), size

    def _take_offers(self, wanted: Sequence[tuple[ChunkKey, int]], asked: MessageHead) -> None:
        deadline = self._soon(asked)
        with ExitStack() as leased:
            rooms = self._rooms(wanted, deadline, leased)
            if all(isinstance(room, Reason) for room in rooms):  # nothing to wait for
                rooms = [Reason.NO_ROOM if room is Reason.QUEUE_FULL else room for room in rooms]
            self._tell(Kind.OFFER, list(map(_grant, rooms)))
            granted = [
                (key, size, room)
                for (key, size), room in zip(wanted, rooms, strict=True)
                if not isinstance(room, Reason)
            ]
            if not granted:
                return
            right = self._receive(granted)
            arrived = [
                Offer(key, room)
                for (key, _, room), fits in zip(granted, right, strict=True)
                if fits
            ]
            kept = iter(self._source.keep(arrived, deadline))
        verdicts = [
            (Verdict.KEPT if next(kept) else Verdict.REFUSED) if fits else Verdict.WRONG_KEY
            for fits in right
        ]
        self._tell(Kind.OFFER, verdicts)

    def _rooms(
        self, wanted: Sequence[tuple[ChunkKey, int]], deadline: Deadline, leased: ExitStack
    ) -> list[Lease | Reason]:
        """Return memory for the first of *wanted*, up to the limit of one connection."""
        total = 0
        rooms: list[Lease | Reason] = []
        for key, size in wanted:
            if not self._source.takes(size):
                rooms.append(Reason.REFUSED)
            elif total and total + size > self._limits.max_value:
                rooms.append(Reason.QUEUE_FULL)
            else:
                (room,) = self._source.room([(key, size)], deadline)
                rooms.append(room)
                if not isinstance(room, Reason):
                    leased.callback(room.release)
                    total += size
        return rooms

    def _receive(self, granted: Sequence[tuple[ChunkKey, int, Lease]]) -> list[bool]:
        """Receive frames into their memory. Return True for each that names its key."""
        return [self._fill(key, room.frame[:size]) for key, size, room in granted]

    def _fill(self, key: ChunkKey, into: memoryview) -> bool:
        with self._connection.transfer(len(into)) as deadline:
            self._stream.fill(into, deadline)
        return names_key(into, key)

    def _soon(self, asked: MessageHead) -> Deadline:
        """Return the deadline for the source: as long as the peer waits, within limits."""
        seconds = min(asked.patience / 1000, self._limits.wait)
        return Deadline.after(self._connection.clock, seconds)

    def _tell(self, kind: Kind, words: Sequence[int]) -> None:
        self._send([FRAMING.message(kind, len(words), bytes(words))])

    def _send(self, views: Sequence[memoryview | bytes], size: int = 0) -> None:
        self._connection.send(views, size)


def _note_moved(lent: dict[ChunkKey, Lease | None], sent: Sequence[tuple[ChunkKey, int]]) -> None:
    """Report to leases how many of their bytes were sent, also 0 bytes."""
    nothing = lent.keys() - {key for key, _ in sent}
    for key, size in (*sent, *((key, 0) for key in nothing)):
        # Not isinstance, which takes as long as sending a small frame.
        if (moved := getattr(lent[key], "moved", None)) is not None:
            moved(size)


def _grant(room: Lease | Reason) -> Grant:
    if not isinstance(room, Reason):
        return Grant.SEND
    words = {Reason.PRESENT: Grant.PRESENT, Reason.QUEUE_FULL: Grant.LATER}
    return words.get(room, Grant.NO_ROOM)


def part_of(lease: Lease | None, start: int, size: int) -> memoryview | None:
    """Return the requested bytes of a frame; ``None`` if it is too short."""
    if lease is None:
        return None
    frame = lease.frame
    if not size:
        return None if start else frame
    return frame[start : start + size] if start + size <= len(frame) else None
