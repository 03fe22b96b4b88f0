"""The store ``hexkv``: a server that speaks the ``hexkv://`` wire."""

from __future__ import annotations

import ssl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from xxhash import xxh3_128_digest

from hexkv.adapters.lmserver.handshake import Agreed, greet
from hexkv.adapters.lmserver.wire import (
    ABSENT,
    DIGEST_BYTES,
    ENTRIES,
    FRAMING,
    RANGES,
    SIZE,
    UNREADABLE,
    WISHES,
    Kind,
    ValueGrant,
    ValueVerdict,
    pack_keys,
    unpack_size,
)
from hexkv.adapters.net.address import Address
from hexkv.adapters.net.errors import BadMessage
from hexkv.adapters.net.outcomes import answering, collect, land, plain, slices
from hexkv.adapters.net.pool import Pool
from hexkv.adapters.net.security import SecretSource
from hexkv.adapters.net.stream import Stream
from hexkv.ports import (
    KEY_BYTES,
    ChunkKey,
    ChunkStore,
    Clock,
    Corrupt,
    Deadline,
    Entry,
    Failed,
    Hit,
    Item,
    Miss,
    ReadOutcome,
    SharedMedium,
    Sink,
    Stored,
    StoreError,
    StoreFull,
    StoreUnreachable,
    SupportsClear,
    SupportsRangeRead,
    SupportsScan,
    WriteOutcome,
)

_PAGE = 10.0
"""Seconds that one page of a scan may take."""


class ServerStream(NamedTuple):
    """A connection that is ready for requests."""

    stream: Stream
    agreed: Agreed

    def reusable(self, *, well: bool) -> bool:
        """True if all answers were received: after an error some are left."""
        return well


class HexkvStore:
    """Chunks on a server that any number of engines share.

    Connects at the first call, so that a server that is down does not prevent the start. A chunk
    is received into the sink's buffer, and sent from the caller's memory, without a copy.
    """

    def __init__(
        self,
        address: Address,
        clock: Clock,
        *,
        secret: SecretSource = b"",
        checked: bool = False,
        connections: int = 4,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """Reach the server at *address*.

        Args:
            address: where it listens.
            clock: for the deadlines of scans, whose callers pass none.
            secret: that both ends must know.
            checked: True to send a digest with each chunk. The core verifies frames anyway.
            connections: the most calls under way at a time; others wait.
            tls: encrypts, with the certificates to trust.
        """
        self._clock = clock

        def ready(stream: Stream, deadline: Deadline) -> ServerStream:
            return ServerStream(stream, greet(stream, secret, deadline, checked=checked))

        self._pool = Pool(address, ready, tls=tls, most=connections)

    @property
    def shared(self) -> bool:
        """True: any number of engines may use a server, which also evicts on its own."""
        return True

    def contains(self, keys: Sequence[ChunkKey], deadline: Deadline) -> Sequence[bool]:
        return self._flags(Kind.CONTAINS, keys, deadline)

    def delete(self, keys: Sequence[ChunkKey], deadline: Deadline) -> Sequence[bool]:
        return self._flags(Kind.DELETE, keys, deadline)

    def read(
        self, keys: Sequence[ChunkKey], sink: Sink, deadline: Deadline
    ) -> Sequence[ReadOutcome]:
        outcomes: list[ReadOutcome | None] = [None] * len(keys)

        def call(peer: ServerStream) -> None:
            for part in slices(len(keys), peer.agreed.max_entries):
                body = pack_keys(keys[part.start : part.stop])
                _ask(peer, Kind.READ, len(part), body, deadline)
                _hear(peer, Kind.READ, len(part), 0, deadline)
                for index in part:
                    outcomes[index] = _take(peer, index, sink, deadline)

        return collect(self._pool, outcomes, deadline, call) if keys else []

    def read_range(
        self, key: ChunkKey, start: int, into: memoryview, deadline: Deadline
    ) -> ReadOutcome:
        outcomes: list[ReadOutcome | None] = [None]

        def call(peer: ServerStream) -> None:
            body = RANGES.pack(key, start, into.nbytes)
            _ask(peer, Kind.RANGE, 1, body, deadline)
            _hear(peer, Kind.RANGE, 1, 0, deadline)
            outcomes[0] = _take(peer, 0, _Into(plain(into)), deadline)

        answered: Sequence[ReadOutcome] = collect(self._pool, outcomes, deadline, call)
        return answered[0]

    def write(self, items: Sequence[Item], deadline: Deadline) -> Sequence[WriteOutcome]:
        outcomes: list[WriteOutcome | None] = [None] * len(items)

        def call(peer: ServerStream) -> None:
            for part in slices(len(items), peer.agreed.max_entries):
                waiting = list(part)
                while waiting:
                    later = _put(peer, items, waiting, outcomes, deadline)
                    if len(later) == len(waiting):
                        busy = StoreUnreachable("the server has no room to receive at present")
                        for index in later:
                            outcomes[index] = Failed(busy)
                        break
                    waiting = later

        return collect(self._pool, outcomes, deadline, call) if items else []

    def scan(self) -> Iterator[Entry]:
        """Every chunk, in the order of the keys; pages are requested as needed.

        Raises:
            StoreUnreachable: no answer.
        """
        after = bytes(KEY_BYTES)
        while page := self._page(after, Deadline.after(self._clock, _PAGE)):
            yield from page
            after = page[-1].key

    def clear_prefix(self, prefix: bytes, deadline: Deadline) -> int:
        first = prefix.ljust(KEY_BYTES, b"\0")
        # The server lists keys after a given one: here after the last key before the prefix.
        after = (max(int.from_bytes(first), 1) - 1).to_bytes(KEY_BYTES)
        total = 0
        while page := self._page(after, deadline):
            after = page[-1].key
            mine = [entry.key for entry in page if entry.key.startswith(prefix)]
            total += sum(self._flags(Kind.DELETE, mine, deadline))
            if not after.startswith(prefix):
                break
        return total

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

    def _page(self, after: bytes, deadline: Deadline) -> list[Entry]:
        """The next chunks in the order of their keys; empty after the last."""
        with self._calling(deadline) as peer:
            _ask(peer, Kind.SCAN, 1, after, deadline)
            body = _hear(peer, Kind.SCAN, None, ENTRIES.size, deadline)
        found = ENTRIES.iter_unpack(body)
        return [Entry(ChunkKey(key), size, stored) for key, size, stored in found]

    def _flags(self, kind: Kind, keys: Sequence[ChunkKey], deadline: Deadline) -> list[bool]:
        found: list[bool] = []
        if keys:
            with self._calling(deadline) as peer:
                for part in slices(len(keys), peer.agreed.max_entries):
                    body = pack_keys(keys[part.start : part.stop])
                    _ask(peer, kind, len(part), body, deadline)
                    found += map(bool, _hear(peer, kind, len(part), 1, deadline))
        return found


class _Into:
    """A sink of one buffer, for a value of exactly its size."""

    def __init__(self, into: memoryview) -> None:
        self._into = into

    def room(self, index: int, size: int) -> memoryview | None:
        del index
        return self._into if size == self._into.nbytes else None

    def filled(self, index: int, upto: int) -> None:
        """Ignored: a part is used only once it is complete."""


def _ask(peer: ServerStream, kind: Kind, count: int, body: bytes, deadline: Deadline) -> None:
    FRAMING.ask(peer.stream, kind, count, body, deadline)


def _hear(
    peer: ServerStream, kind: Kind, count: int | None, entry: int, deadline: Deadline
) -> bytes:
    """Receive an answer about *count* entries, if that is known, of *entry* bytes each.

    Raises:
        BadMessage: this does not answer the request.
        OutOfTime, ConnectionBroken: as everything that waits for a stream.
    """
    found, body = FRAMING.hear(peer.stream, kind, count, deadline)
    if found.entries > peer.agreed.max_entries or found.length != found.entries * entry:
        raise BadMessage("the server answered something else than was asked")
    return body


def _take(peer: ServerStream, index: int, sink: Sink, deadline: Deadline) -> ReadOutcome:
    size = unpack_size(peer.stream.take(SIZE.size, deadline))
    if size == ABSENT:
        return Miss()
    if size == UNREADABLE:
        return Failed(StoreError("the server could not read the chunk"))
    if size > peer.agreed.max_value:
        raise BadMessage(f"the server announces a chunk of {size} bytes")
    landed = land(peer.stream, index, size, sink, deadline)
    digest = peer.stream.take(DIGEST_BYTES, deadline) if peer.agreed.checked else None
    if isinstance(landed, Miss):
        return landed
    if digest is not None and digest != xxh3_128_digest(landed):
        return Corrupt("it was damaged on its way from the server")
    return Hit(size)


def _put(
    peer: ServerStream,
    items: Sequence[Item],
    waiting: Sequence[int],
    outcomes: list[WriteOutcome | None],
    deadline: Deadline,
) -> list[int]:
    """One round: send the chunks that the server grants; return those to send later."""
    frames = {index: plain(items[index].frame) for index in waiting}
    wishes = b"".join(WISHES.pack(items[index].key, frames[index].nbytes) for index in waiting)
    _ask(peer, Kind.WRITE, len(waiting), wishes, deadline)
    grants = _hear(peer, Kind.WRITE, len(waiting), 1, deadline)
    sent, later = [], []
    for index, grant in zip(waiting, grants, strict=True):
        if grant == ValueGrant.SEND:
            sent.append(index)
        elif grant == ValueGrant.LATER:
            later.append(index)
        else:
            full = f"the server takes {peer.agreed.max_value} bytes at most"
            outcomes[index] = Failed(StoreFull(full))
    views: list[memoryview | bytes] = []
    for index in sent:
        views.append(frames[index])
        if peer.agreed.checked:
            views.append(xxh3_128_digest(frames[index]))
    peer.stream.send(views, deadline)
    verdicts = _hear(peer, Kind.WRITE, len(sent), 1, deadline)
    for index, verdict in zip(sent, verdicts, strict=True):
        outcomes[index] = _outcome(verdict, frames[index].nbytes)
    return later


def _outcome(verdict: int, size: int) -> WriteOutcome:
    match verdict:
        case ValueVerdict.STORED:
            return Stored(size)
        case ValueVerdict.FULL:
            return Failed(StoreFull("the server has no room that it may clear"))
        case ValueVerdict.DAMAGED:
            return Failed(StoreUnreachable("the chunk was damaged on its way to the server"))
        case _:
            return Failed(StoreError("the server could not keep the chunk"))


def _is_a_store(
    store: HexkvStore,
) -> tuple[ChunkStore, SupportsScan, SupportsRangeRead, SupportsClear, SharedMedium]:
    return store, store, store, store, store  # mypy checks here that it keeps the ports' promises
