"""The store ``lm``: a server that speaks the ``lm://`` wire, LMCache's own included."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import NamedTuple

from hexkv.adapters.lmcache._turns import KeyLocks
from hexkv.adapters.lmcache.wire import (
    ANSWER,
    LONGEST,
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
from hexkv.adapters.net.errors import OutOfTime
from hexkv.adapters.net.outcomes import answering, collect, land, plain, slices
from hexkv.adapters.net.pool import Pool
from hexkv.adapters.net.stream import Stream
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
    Sink,
    Stored,
    StoreError,
    StoreFull,
    StoreUnreachable,
    TimedOut,
    WriteOutcome,
)

_ENTRIES = 256
"""Requests sent before the first answer is read: few enough for any socket's buffer."""

_TOMBSTONES = 1 << 16
"""Deleted chunks that the store remembers."""


class ServerStream(NamedTuple):
    """A connection."""

    stream: Stream

    def reusable(self, *, well: bool) -> bool:
        """True if all answers were received: after an error some are left."""
        return well


class LMStore:
    """Chunks on a server of LMCache's wire.

    PUT has no answer, so each is followed by EXIST on the same connection, whose answer shows
    that the server has the chunk. The wire has no deletion either: an empty tombstone replaces
    the chunk. It reads as a miss; EXIST does not know the difference, so the store remembers its
    own latest tombstones, and those of other clients look like chunks until they are read.
    hexkv's server deletes the value when it receives a tombstone.

    So a change is several messages, between which a concurrent change of the same chunk would
    be mistaken for this one: within one store changes take turns.
    """

    def __init__(self, address: Address, *, connections: int = 4) -> None:
        self._pool = Pool(address, lambda stream, _: ServerStream(stream), most=connections)
        self._turns = KeyLocks()
        self._lock = Lock()
        self._gone: OrderedDict[ChunkKey, None] = OrderedDict()

    def contains(self, keys: Sequence[ChunkKey], deadline: Deadline) -> Sequence[bool]:
        if not keys:
            return []
        with self._calling(deadline) as peer:
            return self._there(peer, keys, deadline)

    def read(
        self, keys: Sequence[ChunkKey], sink: Sink, deadline: Deadline
    ) -> Sequence[ReadOutcome]:
        outcomes: list[ReadOutcome | None] = [None] * len(keys)

        def call(peer: ServerStream) -> None:
            for index, key in enumerate(keys):
                peer.stream.send([_question(Command.GET, key)], deadline)
                outcomes[index] = _take(peer.stream, index, sink, deadline)

        return collect(self._pool, outcomes, deadline, call) if keys else []

    def write(self, items: Sequence[Item], deadline: Deadline) -> Sequence[WriteOutcome]:
        outcomes: list[WriteOutcome | None] = [None] * len(items)

        def call(peer: ServerStream) -> None:
            for index, (key, frame) in enumerate(items):
                data = plain(frame)
                if data.nbytes > LONGEST:
                    outcomes[index] = Failed(StoreFull(f"the wire takes {LONGEST} bytes at most"))
                    continue
                put = RequestHead(Command.PUT, name_of(key), data.nbytes, frame_tensor(data.nbytes))
                # Before the PUT: otherwise a lookup just after a read could still miss the chunk.
                self._remember(key, gone=False)
                peer.stream.send([put.pack(), data, _question(Command.EXIST, key)], deadline)
                if _hear(peer.stream, deadline).found:
                    outcomes[index] = Stored(data.nbytes)
                else:
                    outcomes[index] = Failed(StoreError("the server did not keep the chunk"))

        try:
            with self._turns.alone_with({item.key for item in items}, deadline):
                return collect(self._pool, outcomes, deadline, call) if items else []
        except OutOfTime:
            return [TimedOut()] * len(items)

    def delete(self, keys: Sequence[ChunkKey], deadline: Deadline) -> Sequence[bool]:
        """Replace each chunk by a tombstone.

        Raises:
            StoreUnreachable: no answer; some may be deleted.
        """
        if not keys:
            return []
        try:
            with self._turns.alone_with(set(keys), deadline):
                return self._delete(keys, deadline)
        except OutOfTime as error:
            raise StoreUnreachable(str(error)) from error

    def close(self) -> None:
        self._pool.close()

    @contextmanager
    def _calling(self, deadline: Deadline) -> Iterator[ServerStream]:
        """A connection for one call, which fails as a whole.

        Raises:
            StoreUnreachable: no answer, or none in time.
        """
        with answering(self._pool.address), self._pool.connection(deadline) as peer:
            yield peer

    def _delete(self, keys: Sequence[ChunkKey], deadline: Deadline) -> list[bool]:
        with self._calling(deadline) as peer:
            there = self._there(peer, keys, deadline)
            found = [key for key, is_there in zip(keys, there, strict=True) if is_there]
            for part in slices(len(found), _ENTRIES):
                names = [name_of(found[index]) for index in part]
                requests = [RequestHead(Command.PUT, name, 0, TOMBSTONE).pack() for name in names]
                # The answer to the last one shows that the server has received all.
                requests.append(_question(Command.HEALTH, found[part.start]))
                try:
                    peer.stream.send([b"".join(requests)], deadline)
                    _hear(peer.stream, deadline)
                finally:  # without an answer the tombstones may be there, too
                    for index in part:
                        self._remember(found[index], gone=True)
            return there

    def _there(
        self, peer: ServerStream, keys: Sequence[ChunkKey], deadline: Deadline
    ) -> list[bool]:
        found = []
        for part in slices(len(keys), _ENTRIES):
            questions = b"".join(_question(Command.EXIST, keys[index]) for index in part)
            peer.stream.send([questions], deadline)
            answers = peer.stream.take(ANSWER.size * len(part), deadline)
            for place, index in enumerate(part):
                answer = answers[place * ANSWER.size : (place + 1) * ANSWER.size]
                found.append(parse_answer(answer).found and keys[index] not in self._gone)
        return found

    def _remember(self, key: ChunkKey, *, gone: bool) -> None:
        with self._lock:
            self._gone.pop(key, None)
            if gone:
                self._gone[key] = None
                if len(self._gone) > _TOMBSTONES:
                    self._gone.popitem(last=False)


def _question(command: Command, key: ChunkKey) -> bytes:
    return RequestHead(command, name_of(key), 0, NOTHING).pack()


def _hear(stream: Stream, deadline: Deadline) -> AnswerHead:
    return parse_answer(stream.take(ANSWER.size, deadline))


def _take(stream: Stream, index: int, sink: Sink, deadline: Deadline) -> ReadOutcome:
    answer = _hear(stream, deadline)
    if not answer.found or (not answer.length and answer.tensor == TOMBSTONE):
        return Miss(Reason.ABSENT)
    landed = land(stream, index, answer.length, sink, deadline)
    return landed if isinstance(landed, Miss) else Hit(answer.length)


def _is_a_store(store: LMStore) -> ChunkStore:
    return store  # mypy checks here that it keeps the port's promises
