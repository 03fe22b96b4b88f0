"""A server's side of one ``hexkv://`` connection, after the handshake."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

from xxhash import xxh3_128

from hexkv.adapters.lmserver.wire import (
    ABSENT,
    DIGEST_BYTES,
    ENTRIES,
    FRAMING,
    MAX_ENTRIES,
    REQUESTS,
    SLICE,
    UNREADABLE,
    AnswerStatus,
    Kind,
    ValueGrant,
    ValueVerdict,
    message,
    pack_size,
)
from hexkv.adapters.net.messages import MessageHead
from hexkv.adapters.net.server.connection import Connection
from hexkv.adapters.net.server.serving import Room, Unreadable, Values

log = logging.getLogger(__name__)

_AHEAD = 4 << 10
"""Bytes received at once with a request's head: for most requests all of it."""


class ValueSession:
    """Answers the requests of one connection until it ends.

    Args:
        connection: after the handshake.
        values: the values of this wire.
        checked: True if a digest follows each value.
        durable: True if a value that is not kept is a failure; else it means a lack of room.
    """

    def __init__(
        self, connection: Connection, values: Values, *, durable: bool, checked: bool
    ) -> None:
        self._connection = connection
        self._stream = connection.stream
        self._limits = connection.limits
        self._values = values
        self._checked = checked
        self._refused = ValueVerdict.FAILED if durable else ValueVerdict.FULL
        self._answers: dict[Kind, Callable[[list[tuple[Any, ...]], MessageHead], None]] = {
            Kind.CONTAINS: self._contains,
            Kind.READ: self._read,
            Kind.WRITE: self._write,
            Kind.DELETE: self._delete,
            Kind.RANGE: self._range,
            Kind.SCAN: self._scan,
        }

    def run(self) -> None:
        """Answer requests until the connection breaks, as every session ends.

        Raises:
            BadMessage: the client does not speak the protocol.
            OutOfTime, ConnectionBroken: the connection is over.
            EngineClosed: the server is closing; no answer is sent.
        """
        while True:
            asked, body = FRAMING.request(self._connection, _AHEAD)
            entries = _entries(asked, body)
            if entries:
                self._answers[Kind(asked.kind)](entries, asked)
            else:
                # Invalid, but framed correctly, so both sides stay in step.
                refusal = message(Kind.CONTAINS, 0, b"", status=AnswerStatus.BAD_REQUEST)
                self._send([refusal])

    def _contains(self, entries: Sequence[tuple[bytes]], asked: MessageHead) -> None:
        self._tell(asked, bytes(self._values.contains([key for (key,) in entries])))

    def _delete(self, entries: Sequence[tuple[bytes]], asked: MessageHead) -> None:
        self._tell(asked, bytes(self._values.delete([key for (key,) in entries])))

    def _scan(self, entries: Sequence[tuple[bytes]], asked: MessageHead) -> None:
        del asked
        found = self._values.list(entries[0][0], MAX_ENTRIES)
        body = b"".join(ENTRIES.pack(*kept) for kept in found)
        self._send([message(Kind.SCAN, len(found), body)], len(body))

    def _read(self, entries: Sequence[tuple[bytes]], asked: MessageHead) -> None:
        before = message(Kind.READ, len(entries), b"")
        names = [name for (name,) in entries]
        while names:
            # A run of values needs one call of the cache, and one of the kernel.
            with self._values.lent_run(names, asked.patience / 1000) as run:
                if run:
                    views: list[memoryview | bytes] = [before]
                    for lent in run:
                        views += pack_size(len(lent)), lent, self._digest(lent)
                    self._send(views, sum(map(len, run)))
            # Alone, while nothing else is held: only then may the cache wait for memory.
            if not run:
                self._give(before, names[0], asked)
            del names[: max(1, len(run))]
            before = b""

    def _range(self, entries: Sequence[tuple[bytes, int, int]], asked: MessageHead) -> None:
        for key, start, size in entries:
            self._give(message(Kind.RANGE, len(entries), b""), key, asked, (start, size))

    def _give(
        self, before: bytes, key: bytes, asked: MessageHead, part: tuple[int, int] | None = None
    ) -> None:
        try:
            with self._values.lent(key, asked.patience / 1000) as lent:
                if lent is not None and part is not None:
                    start, size = part
                    lent = lent[start : start + size] if start + size <= len(lent) else None
                if lent is None:
                    self._send([before, pack_size(ABSENT)])
                    return
                self._send([before, pack_size(len(lent)), lent, self._digest(lent)], len(lent))
        except Unreadable as error:
            log.info("hexkv: %s", error)
            self._send([before, pack_size(UNREADABLE)])

    def _write(self, entries: Sequence[tuple[bytes, int]], asked: MessageHead) -> None:
        with ExitStack() as held:
            rooms = self._grant(entries, min(asked.patience / 1000, self._limits.wait), held)
            self._tell(
                asked, bytes(it if isinstance(it, ValueGrant) else ValueGrant.SEND for it in rooms)
            )
            granted = [room for room in rooms if not isinstance(room, ValueGrant)]
            whole = self._receive([room.data for room in granted])
            arrived = [room for room, right in zip(granted, whole, strict=True) if right]
            kept = iter(self._values.keep(arrived))
            verdicts = [
                (ValueVerdict.STORED if next(kept) else self._refused)
                if right
                else ValueVerdict.DAMAGED
                for right in whole
            ]
            self._tell(asked, bytes(verdicts))

    def _grant(
        self, entries: Sequence[tuple[bytes, int]], wait: float, held: ExitStack
    ) -> list[Room | ValueGrant]:
        """Grant room to the first values, for as many as there is room."""
        granted: list[Room | ValueGrant] = []
        total = 0
        for key, size in entries:
            room = None
            if size > self._limits.max_value:
                granted.append(ValueGrant.TOO_LARGE)
                continue
            if total + size <= self._limits.max_value:
                room = held.enter_context(self._values.room(key, size, 0.0 if total else wait))
            granted.append(ValueGrant.LATER if room is None else room)
            total += 0 if room is None else max(1, size)
        return granted

    def _receive(self, rooms: Sequence[memoryview]) -> list[bool]:
        """Fill *rooms*; return True for each value that matches its digest."""
        if not self._checked:
            with self._connection.transfer(sum(map(len, rooms))) as deadline:
                self._stream.fill_each(rooms, deadline)
            return [True] * len(rooms)
        whole: list[bool] = []
        for room in rooms:
            with self._connection.transfer(len(room)) as deadline:
                self._stream.fill(room, deadline)
                digest = self._stream.take(DIGEST_BYTES, deadline)
            whole.append(digest == self._digest(room))
        return whole

    def _digest(self, data: memoryview) -> bytes:
        """The bytes that follow a value: its digest, or nothing."""
        if not self._checked:
            return b""
        digest = xxh3_128()
        for start in range(0, len(data), SLICE):
            digest.update(data[start : start + SLICE])
        return digest.digest()

    def _tell(self, asked: MessageHead, body: bytes) -> None:
        self._send([message(Kind(asked.kind), len(body), body)])

    def _send(self, views: Sequence[memoryview | bytes], size: int = 0) -> None:
        self._connection.send(views, size)


def _entries(asked: MessageHead, body: bytes) -> list[tuple[Any, ...]]:
    """The entries of a request; empty if it is invalid for its kind."""
    entry = REQUESTS.get(asked.kind)  # type: ignore[call-overload]
    if (
        entry is None
        or asked.status != AnswerStatus.DONE
        or not 0 < asked.entries <= MAX_ENTRIES
        or asked.length != asked.entries * entry.size
        or (asked.kind in (Kind.RANGE, Kind.SCAN) and asked.entries != 1)
    ):
        return []
    return list(entry.iter_unpack(body))
