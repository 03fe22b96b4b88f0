"""A server's side of one ``lm://`` connection."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from struct import Struct

from hexkv.adapters.lmserver._session import Limits
from hexkv.adapters.lmserver._shelf import HISTORIC, Loan, NoRoom, Shelf, Value
from hexkv.adapters.lmserver._stream import Stream
from hexkv.adapters.lmserver.historic import (
    KEY_LENGTH,
    NOTHING,
    REQUEST,
    TOMBSTONE,
    Answer,
    Command,
    Request,
    Tensor,
    parse_request,
)
from hexkv.adapters.lmserver.wire import BadMessage, Verdict
from hexkv.ports import KEY_BYTES, ChunkKey, Clock, Deadline, StoreError

_TAIL = Struct(f"<7i{KEY_LENGTH}s")
"""Kept behind each value: what its tensor was, and what it was called."""

_MOST_NAMES = 100_000
"""That LIST gives."""

_SCRATCH = 256 << 10


class HistoricSession:
    """Answers the requests of one connection until it ends.

    Args:
        stream: whose first bytes are in *start*.
        start: the bytes by which the wire was recognised.
        shelf: what the server holds.
        limits: of one connection. A client of this wire opens one and never another, so
            there is no limit to how long it may be idle.
        clock: for deadlines.
        idle: told before each wait for a request, and after it.
    """

    def __init__(
        self,
        stream: Stream,
        start: bytes,
        shelf: Shelf,
        limits: Limits,
        clock: Clock,
        idle: Callable[[bool], None],
    ) -> None:
        self._stream = stream
        self._start = start
        self._shelf = shelf
        self._limits = limits
        self._clock = clock
        self._idle = idle
        self._scratch: memoryview | None = None

    def run(self) -> None:
        """Answer until the connection breaks, which is how it ends.

        Raises:
            BadMessage: the client does not speak the protocol.
            OSError: the connection is over.
        """
        start = self._start + self._stream.receive_bytes(
            REQUEST.size - len(self._start), self._soon()
        )
        while True:
            self._answer(parse_request(start))
            self._idle(True)
            endless = Deadline(self._clock, float("inf"))
            start = self._stream.receive_start(REQUEST.size, endless, self._limits.patience)
            self._idle(False)

    def _answer(self, asked: Request) -> None:
        key = _key(asked.key)
        match asked.command:
            case Command.PUT:
                self._put(asked, key)
            case Command.GET:
                self._get(key)
            case Command.EXIST:
                (found,) = self._shelf.contains([key])
                self._tell(Answer(found, 0, NOTHING))
            case Command.LIST:
                names = b"\n".join(self._names())
                self._tell(Answer(True, len(names), NOTHING), names)
            case Command.HEALTH:
                self._tell(Answer(True, 0, NOTHING))

    def _put(self, asked: Request, key: ChunkKey) -> None:
        """Keep what follows. Nobody waits for an answer, so failing is leaving nothing."""
        if asked.length > self._limits.max_value:
            raise BadMessage(f"a value of {asked.length} bytes is announced")
        if not asked.length and asked.tensor == TOMBSTONE:
            self._shelf.delete([key])
            return
        tensor = asked.tensor
        tail = _TAIL.pack(
            tensor.format, tensor.dtype, *tensor.shape, tensor.location, asked.key.ljust(KEY_LENGTH)
        )
        size = asked.length + len(tail)
        deadline = self._limits.transfer(self._clock, asked.length)
        block = self._shelf.take(size, self._limits.wait)
        if block is None:
            self._drain(asked.length, deadline)
            self._shelf.delete([key])
            return
        with block:
            self._stream.receive(block.part(0, asked.length), deadline)
            for view in block.part(asked.length, len(tail)):
                view[:] = tail[: len(view)]
                tail = tail[len(view) :]
            (verdict,) = self._shelf.put([Value(key, block)])
        if verdict != Verdict.STORED:
            self._shelf.delete([key])

    def _get(self, key: ChunkKey) -> None:
        try:
            loan = self._shelf.borrow(key, patience=self._limits.wait)
        except (NoRoom, StoreError):
            loan = None
        if loan is None:
            self._tell(Answer(False, 0, NOTHING))
            return
        with loan.block:
            tensor, _ = _tail(loan)
            size = loan.size - _TAIL.size
            views = loan.block.part(0, size)
            deadline = self._limits.transfer(self._clock, size)
            self._stream.send([Answer(True, size, tensor).pack(), *views], deadline)
        self._shelf.touch([key])

    def _names(self) -> list[bytes]:
        names = []
        start = ChunkKey(bytes(KEY_BYTES))
        for entry in self._shelf.list(start, _MOST_NAMES, historic=True):
            place = entry.size - _TAIL.size
            try:
                loan = self._shelf.borrow(entry.key, place, _TAIL.size, patience=self._limits.wait)
            except (NoRoom, StoreError):
                continue
            if loan is not None:
                with loan.block:
                    name = _tail(loan)[1]
                if _key(name) == entry.key:  # or it was just replaced, and is no tail
                    names.append(name)
        return names

    def _drain(self, size: int, deadline: Deadline) -> None:
        if self._scratch is None:
            self._scratch = memoryview(bytearray(_SCRATCH))
        while size:
            part = self._scratch[:size]
            self._stream.receive([part], deadline)
            size -= len(part)

    def _tell(self, answer: Answer, data: bytes = b"") -> None:
        self._stream.send([answer.pack(), data], self._soon())

    def _soon(self) -> Deadline:
        return Deadline.after(self._clock, self._limits.patience)


def _key(name: bytes) -> ChunkKey:
    return ChunkKey(HISTORIC + sha256(name).digest())


def _tail(loan: Loan) -> tuple[Tensor, bytes]:
    """What is kept behind a value: its tensor and its name."""
    size, data = _TAIL.size, b""
    for view in reversed(loan.views):
        data = bytes(view[max(0, len(view) - size) :]) + data
        size = _TAIL.size - len(data)
        if not size:
            break
    form, dtype, a, b, c, d, location, name = _TAIL.unpack(data)
    return Tensor(form, dtype, (a, b, c, d), location), name.rstrip(b" ")
