"""A server's side of one ``hexkv://`` connection, after the handshake."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

from xxhash import xxh3_128

from hexkv.adapters.lmserver._arena import Block
from hexkv.adapters.lmserver._shelf import NoRoom, Shelf, Value, is_historic
from hexkv.adapters.lmserver.wire import (
    ABSENT,
    DIGEST_BYTES,
    ENTRIES,
    HEAD_BYTES,
    MAX_ENTRIES,
    REQUESTS,
    SLICE,
    UNREADABLE,
    Grant,
    Head,
    Kind,
    Status,
    Verdict,
    head,
    message,
    pack_size,
    verify,
)
from hexkv.adapters.net.connection import Connection
from hexkv.ports import ChunkKey, StoreError


class Session:
    """Answers the requests of one connection until it ends.

    Args:
        connection: after the handshake.
        shelf: what the server holds.
        checked: whether a digest follows each value.
    """

    def __init__(self, connection: Connection, shelf: Shelf, *, checked: bool) -> None:
        self._connection = connection
        self._stream = connection.stream
        self._limits = connection.limits
        self._shelf = shelf
        self._checked = checked
        self._answers: dict[Kind, Callable[[list[tuple[Any, ...]], Head], None]] = {
            Kind.CONTAINS: self._contains,
            Kind.READ: self._read,
            Kind.WRITE: self._write,
            Kind.DELETE: self._delete,
            Kind.RANGE: self._range,
            Kind.SCAN: self._scan,
        }

    def run(self) -> None:
        """Answer until the connection breaks, which is how it ends.

        Raises:
            BadMessage: the client does not speak the protocol.
            OutOfTime, ConnectionBroken: the connection is over.
            StoreError: the shelf broke; the client must not take that for an answer.
        """
        while True:
            asked = head(self._connection.request(HEAD_BYTES, self._limits.idle))
            with self._connection.transfer(asked.length) as deadline:
                body = self._stream.take(asked.length, deadline)
            verify(asked, body)
            entries = _entries(asked, body)
            if entries:
                self._answers[Kind(asked.kind)](entries, asked)
            else:
                # Framed well, meaningless all the same: both sides know where they are.
                refusal = message(Kind.CONTAINS, 0, b"", status=Status.BAD_REQUEST)
                self._send([refusal])

    def _contains(self, entries: Sequence[tuple[ChunkKey]], asked: Head) -> None:
        self._tell(asked, bytes(self._shelf.contains([key for (key,) in entries])))

    def _delete(self, entries: Sequence[tuple[ChunkKey]], asked: Head) -> None:
        self._tell(asked, bytes(self._shelf.delete([key for (key,) in entries])))

    def _scan(self, entries: Sequence[tuple[ChunkKey]], asked: Head) -> None:
        del asked
        found = self._shelf.list(entries[0][0], MAX_ENTRIES)
        body = b"".join(ENTRIES.pack(*entry) for entry in found)
        self._send([message(Kind.SCAN, len(found), body)], len(body))

    def _read(self, entries: Sequence[tuple[ChunkKey]], asked: Head) -> None:
        before = message(Kind.READ, len(entries), b"")
        wait = self._wait(asked)
        for (key,) in entries:
            self._give(before, key, 0, None, wait)
            before = b""
        self._shelf.touch([key for (key,) in entries])

    def _range(self, entries: Sequence[tuple[ChunkKey, int, int]], asked: Head) -> None:
        before = message(Kind.RANGE, len(entries), b"")
        wait = self._wait(asked)
        for key, start, size in entries:
            self._give(before, key, start, size, wait)
            before = b""

    def _give(
        self, before: bytes, key: ChunkKey, start: int, size: int | None, wait: float
    ) -> None:
        try:
            loan = self._shelf.borrow(key, start, size, patience=wait)
        except (NoRoom, StoreError):
            self._send([before, pack_size(UNREADABLE)])
            return
        if loan is None:
            self._send([before, pack_size(ABSENT)])
            return
        with loan.block:
            digest = _digest(loan.views) if self._checked else b""
            self._send([before, pack_size(loan.size), *loan.views, digest], loan.size)

    def _write(self, entries: Sequence[tuple[ChunkKey, int]], asked: Head) -> None:
        with ExitStack() as held:
            blocks = self._grant([size for _, size in entries], self._wait(asked), held)
            grants = [it if isinstance(it, Grant) else Grant.SEND for it in blocks]
            self._tell(asked, bytes(grants))
            arrived: list[Value] = []
            whole: list[bool] = []
            for (key, _), block in zip(entries, blocks, strict=True):
                if isinstance(block, Block):
                    whole.append(self._receive(block))
                    if whole[-1]:
                        arrived.append(Value(key, block))
            kept = iter(self._shelf.put(arrived))
            verdicts = [next(kept) if right else Verdict.DAMAGED for right in whole]
            self._tell(asked, bytes(verdicts))

    def _grant(self, sizes: Sequence[int], wait: float, held: ExitStack) -> list[Block | Grant]:
        """Room for as many values as there is, the first ones first."""
        granted: list[Block | Grant] = []
        total = 0
        for size in sizes:
            block = None
            if size > self._limits.max_value:
                granted.append(Grant.TOO_LARGE)
                continue
            if total + size <= self._limits.max_value:
                block = self._shelf.take(size, 0.0 if total else wait)
            if block is None:
                granted.append(Grant.LATER)
            else:
                held.enter_context(block)
                granted.append(block)
                total += max(1, size)
        return granted

    def _receive(self, block: Block) -> bool:
        """Fill *block*. Whether its digest says that it arrived whole."""
        with self._connection.transfer(block.size) as deadline:
            self._stream.fill_all(block.views, deadline)
            if not self._checked:
                return True
            digest = self._stream.take(DIGEST_BYTES, deadline)
        return digest == _digest(block.views)

    def _tell(self, asked: Head, body: bytes) -> None:
        self._send([message(Kind(asked.kind), len(body), body)])

    def _send(self, views: Sequence[memoryview | bytes], size: int = 0) -> None:
        with self._connection.transfer(size) as deadline:
            self._stream.send(views, deadline)

    def _wait(self, asked: Head) -> float:
        return min(asked.patience / 1000, self._limits.wait)


def _entries(asked: Head, body: bytes) -> list[tuple[Any, ...]]:
    """What a request is about; nothing if it does not say what its kind may say.

    No client of this wire names what came over another, whatever it asks of it; to list from
    such a place on is another matter.
    """
    entry = REQUESTS.get(asked.kind)  # type: ignore[call-overload]
    if (
        entry is None
        or asked.status != Status.DONE
        or not 0 < asked.entries <= MAX_ENTRIES
        or asked.length != asked.entries * entry.size
        or (asked.kind in (Kind.RANGE, Kind.SCAN) and asked.entries != 1)
    ):
        return []
    entries = list(entry.iter_unpack(body))
    if asked.kind != Kind.SCAN and any(is_historic(key) for key, *_ in entries):
        return []
    return entries


def _digest(views: Sequence[memoryview]) -> bytes:
    digest = xxh3_128()
    for view in views:
        for start in range(0, len(view), SLICE):
            digest.update(view[start : start + SLICE])
    return digest.digest()
