"""A client's side of one connection to a peer."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import NamedTuple

from hexkv.adapters.net.errors import BadMessage
from hexkv.adapters.net.peers.wire import (
    ABSENT,
    FRAMING,
    GROUP_BYTES,
    MAGIC,
    MAX_ENTRIES,
    NAME_BYTES,
    OFFERS,
    PARTS,
    TOGETHER,
    Grant,
    Kind,
    Status,
    Verdict,
    handshake,
    read_group,
)
from hexkv.adapters.net.security import SecretSource
from hexkv.adapters.net.stream import Stream
from hexkv.ports import (
    MAX_QUESTION,
    PAGE,
    PIECE,
    Corrupt,
    CorruptFrame,
    Deadline,
    Destination,
    Failed,
    Hit,
    Lease,
    LeaseSink,
    Miss,
    Offer,
    Part,
    ReadOutcome,
    Reason,
    Stored,
    StoreError,
    StoreFull,
    StoreUnreachable,
    WriteOutcome,
    names_key,
    release_all,
    share_all,
)

_PIECE = 8 * PIECE
"""Bytes after which a sink learns how far its memory is filled. With an eighth of it, as stores
read from files, receiving costs a seventh more of the CPU: each call may have to wait."""

_AT_ONCE = _PIECE + TOGETHER * PAGE
"""Bytes of small parts that one call receives: those of a group, with their headers' pages."""

OWNER = "channel"
"""The owner of the leases of transfers."""


class Terms(NamedTuple):
    """The limits and the generation of a peer, from its greeting."""

    largest: int
    """Bytes of a frame that both ends accept."""

    generation: int
    most: int
    """Entries of a request."""


class Line:
    """One connection, after its greeting. For one call at a time.

    An aborted call leaves half a message behind: the pool then closes the connection, which cancels
    the transfer. Memory is written by the calling thread alone.
    """

    def __init__(self, stream: Stream, terms: Terms) -> None:
        self.stream = stream
        self.generation = terms.generation
        self._largest = terms.largest
        self.most = terms.most
        """Entries of a request."""

    def reusable(self, *, well: bool) -> bool:
        return well

    def read(
        self,
        parts: Sequence[Part],
        first: int,
        sink: LeaseSink,
        outcomes: list[ReadOutcome | None],
        deadline: Deadline,
    ) -> None:
        """Read *parts*, which begin at index *first* of a batch.

        Raises:
            OutOfTime, StoreUnreachable: the rest has no outcome.
        """
        rows = b"".join([PARTS.pack(part.key, part.start, part.size or 0) for part in parts])
        self._ask(Kind.READ, len(parts), rows, deadline)
        self._answer(Kind.READ, len(parts), 0, deadline)
        landing = Landing(self.stream, sink, outcomes, deadline)
        head = memoryview(bytearray(GROUP_BYTES))
        self.stream.fill(head, deadline)
        done = 0
        while done < len(parts):
            left = parts[done : done + TOGETHER]
            sizes = read_group(head, [part.key for part in left])
            for index, (part, size) in enumerate(zip(left, sizes, strict=False), first + done):
                if size == ABSENT:
                    outcomes[index] = Miss()
                    continue
                self._check(part, size)
                landing.take(index, part, size)
            done += len(sizes)
            # The next group's head is received with the rest of this one; none after the last.
            landing.finish(head if done < len(parts) else head[:0])

    def offer(
        self, offers: Sequence[Offer], outcomes: list[WriteOutcome | None], deadline: Deadline
    ) -> None:
        """Offer chunks, and send those that the peer has room for.

        Raises:
            OutOfTime, StoreUnreachable: the rest has no outcome.
        """
        left = list(range(len(offers)))
        while left:
            asked, left = left[: self.most], left[self.most :]
            rows = b"".join(OFFERS.pack(offers[i].key, len(offers[i].lease.frame)) for i in asked)
            self._ask(Kind.OFFER, len(asked), rows, deadline)
            later: list[int] = []
            sending: list[int] = []
            for index, grant in zip(asked, self._words(len(asked), deadline), strict=True):
                if grant == Grant.SEND:
                    sending.append(index)
                elif grant == Grant.LATER:
                    later.append(index)
                elif grant == Grant.PRESENT:
                    outcomes[index] = Stored(0)
                else:
                    outcomes[index] = Failed(StoreFull("the peer has no room for it"))
            if not sending and later:
                raise BadMessage("the peer takes nothing, and nothing comes first")
            if sending:
                self._send(offers, sending, outcomes, deadline)
            left = later + left

    def question(self, question: bytes, deadline: Deadline) -> bytes:
        """Return the peer's answer.

        Raises:
            OutOfTime, StoreUnreachable: there is none.
        """
        self._ask(Kind.ASK, 0, question, deadline)
        status, answer = self._answer(Kind.ASK, 0, MAX_QUESTION, deadline)
        if status != Status.DONE:
            raise StoreUnreachable("the peer has no answer")
        return answer

    def _ask(self, kind: Kind, count: int, body: bytes, deadline: Deadline) -> None:
        FRAMING.ask(self.stream, kind, count, body, deadline)

    def _answer(self, kind: Kind, count: int, most: int, deadline: Deadline) -> tuple[int, bytes]:
        """Receive an answer about *count* entries, up to *most* bytes. Return status and body."""
        found, body = FRAMING.hear(self.stream, kind, count, deadline)
        if found.length > most:
            raise BadMessage("an answer to another question")
        return found.status, body

    def _words(self, count: int, deadline: Deadline) -> bytes:
        """Receive a byte for each of *count* frames."""
        _, body = self._answer(Kind.OFFER, count, count, deadline)
        if len(body) != count:
            raise BadMessage("not one word for each frame")
        return body

    def _send(
        self,
        offers: Sequence[Offer],
        sending: Sequence[int],
        outcomes: list[WriteOutcome | None],
        deadline: Deadline,
    ) -> None:
        """Send the frames that the peer has granted, and set their outcomes."""
        with ExitStack() as leased:
            for index in sending:
                leased.enter_context(offers[index].lease.share(OWNER))
            try:
                self._push([offers[index] for index in sending], deadline)
                verdicts = self._words(len(sending), deadline)
            except BaseException:
                # Before the leases end: the peer discards what it reads from here on.
                self.stream.abort()
                raise
        for index, verdict in zip(sending, verdicts, strict=True):
            if verdict == Verdict.KEPT:
                outcomes[index] = Stored(len(offers[index].lease.frame))
            elif verdict == Verdict.WRONG_KEY:
                outcomes[index] = Failed(CorruptFrame("the frame is of another chunk"))
            else:
                outcomes[index] = Failed(StoreError("the peer does not keep it"))

    def _push(self, offers: Sequence[Offer], deadline: Deadline) -> None:
        """Send frames that the peer has granted."""
        self.stream.send([offer.lease.frame for offer in offers], deadline)

    def _check(self, part: Part, size: int) -> None:
        """Raise ``BadMessage`` if a part cannot have *size* bytes."""
        whole = part.size is None
        right = PAGE <= size <= self._largest and not size % PAGE if whole else size == part.size
        if not right:
            raise BadMessage(f"{size} bytes of a chunk, {part.size} wanted")


class Landing:
    """Receives the parts of a call into memory that *sink* gives: small ones together."""

    def __init__(
        self,
        stream: Stream,
        sink: LeaseSink,
        outcomes: list[ReadOutcome | None],
        deadline: Deadline,
    ) -> None:
        self._stream = stream
        self._sink = sink
        self._outcomes = outcomes
        self._deadline = deadline
        self._waiting: list[tuple[int, Part, Destination]] = []
        """The next parts, of which nothing was received yet."""

        self._bytes = 0

    def take(self, index: int, part: Part, size: int) -> None:
        """Receive a part, now or with those that follow it."""
        there = self._sink.room(index, size)
        if there is None:
            self.finish()
            self._stream.skip(size, self._deadline)
            self._outcomes[index] = Miss(Reason.REFUSED)
            return
        if self._bytes + size > _AT_ONCE:
            self.finish()
        self._waiting.append((index, part, there))
        self._bytes += size

    def finish(self, after: memoryview | None = None) -> None:
        """Receive the waiting parts, and then *after*."""
        waiting, self._waiting, self._bytes = self._waiting, [], 0
        views = [there.into for _, _, there in waiting]
        if after is not None:
            views.append(after)
        shares: list[Lease] = []  # an ExitStack costs a small frame a tenth more
        try:
            for share in share_all([there.lease for _, _, there in waiting], OWNER):
                shares.append(share)  # noqa: PERF402 - an error leaves the others
            if len(waiting) == 1:
                views[0] = self._begin(waiting[0][0], views[0])
            self._stream.fill_each(views, self._deadline)
            for index, part, (_, into) in waiting:
                if part.size is None and not names_key(into, part.key):
                    self._outcomes[index] = Corrupt("the frame is of another chunk")
                    continue
                # These are verified while the peer sends the next ones.
                self._sink.filled(index, len(into))
                self._outcomes[index] = Hit(len(into))
        finally:
            release_all(shares)

    def _begin(self, index: int, into: memoryview) -> memoryview:
        """Receive the beginning of a large part piece by piece; return the rest of it."""
        start = 0
        # The rest comes with the last piece: receiving a header's page alone is one more wait.
        while len(into) - start >= 2 * _PIECE:
            self._stream.fill(into[start : start + _PIECE], self._deadline)
            start += _PIECE
            self._sink.filled(index, start)
        return into[start:]


def greet(
    stream: Stream,
    secret: SecretSource,
    name: str,
    largest: int,
    deadline: Deadline,
    magic: bytes = MAGIC,
) -> Terms:
    """Return the terms of the peer on *stream*, once both ends have proved that they know *secret*.

    Args:
        stream: connected, after TLS.
        secret: of all peers.
        name: of this peer, for the other one.
        largest: bytes of a frame at most.
        deadline: for all of it.
        magic: of the transport of frames.

    Raises:
        Refused: another version or secret, on either side.
        BadMessage: this is no peer.
        OutOfTime, ConnectionBroken: as everything that waits for a stream.
    """
    said = name.encode()[:NAME_BYTES]
    entries, frame, generation = handshake(magic).greet(stream, deadline, secret, said)
    if not 0 < entries <= MAX_ENTRIES:
        raise BadMessage("the peer takes no entries")
    return Terms(min(largest, frame), generation, entries)
