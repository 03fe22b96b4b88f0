"""The client of a directory on a server."""

from __future__ import annotations

import ssl
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from hexkv.adapters.directory.cell import new_proof
from hexkv.adapters.directory.local import Holders, checked
from hexkv.adapters.directory.table import Rows
from hexkv.adapters.directory.tags import TAG_BYTES, tags_of
from hexkv.adapters.directory.wire import (
    HANDSHAKE,
    HEAD_BYTES,
    LARGEST_ANSWER,
    MOST_TAGS,
    DirectoryHead,
    RequestKind,
    pack_members,
    unpack,
    unpack_members,
)
from hexkv.adapters.net.address import Address
from hexkv.adapters.net.errors import BadMessage, OutOfTime, time_left
from hexkv.adapters.net.outcomes import answering, slices
from hexkv.adapters.net.pool import Pool
from hexkv.adapters.net.rpc.link import Link
from hexkv.adapters.net.security import SecretSource
from hexkv.adapters.net.stream import Stream
from hexkv.ports import ChunkKey, Clock, Deadline, Member, Report, StoreBusy, StoreFull

_CONNECTIONS = 4
"""Calls under way at a time; others wait."""


class DirectoryStream:
    """A connection after its handshake, for one call at a time."""

    def __init__(self, stream: Stream, clock: Clock) -> None:
        self.stream = stream
        self.link = Link(stream.socket, clock, lambda: None, most=LARGEST_ANSWER)

    def reusable(self, *, well: bool) -> bool:
        """True if the last answer was received whole."""
        return well and self.link.alive

    def ask(
        self, head: DirectoryHead, deadline: Deadline, rest: bytes = b""
    ) -> tuple[DirectoryHead, bytes]:
        """Send a request, and return the head of its answer, and what follows it.

        Raises:
            BadMessage: that is none.
            OutOfTime, ConnectionBroken: it did not come.
        """
        answer = self.link.call(head.kind, head.pack() + rest, deadline)
        found = unpack(answer.body)
        if found.kind not in (RequestKind.YES, RequestKind.NO, RequestKind.FULL, RequestKind.TAKEN):
            raise BadMessage("the directory answers with a request")
        return found, answer.body[HEAD_BYTES:]


class RemoteDirectory:
    """A directory that ``hexkv directory`` serves. Safe from any thread.

    Args:
        address: of the server.
        secret: that both ends know; empty for none.
        tls: encrypts connections.
        patience: seconds for a connection, unless the deadline comes first.
        heartbeat_seconds: between two heartbeats, until the server has set it.
    """

    def __init__(
        self,
        address: Address,
        *,
        secret: SecretSource = b"",
        tls: ssl.SSLContext | None = None,
        patience: float = 1.0,
        heartbeat_seconds: float = 1.0,
    ) -> None:
        self.address = address
        self._secret = secret
        self._heartbeat_seconds = heartbeat_seconds
        self._pool = Pool(address, self._greeted, tls=tls, most=_CONNECTIONS, patience=patience)
        self._numbers: dict[str, tuple[int, int]] = {}
        """Generation and number of the last membership that each node began here."""
        self._proof = new_proof()
        self._holders = Holders()

    @property
    def heartbeat_seconds(self) -> float:
        return self._heartbeat_seconds

    def join(
        self, member: Member, snapshot: Iterable[Sequence[ChunkKey]], deadline: Deadline
    ) -> bool:
        text = pack_members([(0, member)])
        with self._wire(deadline) as wire:
            question = DirectoryHead(RequestKind.JOIN, text=len(text), number=self._proof)
            head, _ = wire.ask(question, deadline, text)
            self._see_room(head.kind, member)
            if head.kind is RequestKind.NO:
                return False
            for batch in snapshot:
                tags = tags_of(checked(batch))
                part = DirectoryHead(RequestKind.PART, first=len(tags), number=head.number).pack()
                if not wire.link.tell(RequestKind.PART, part + tags.tobytes(), deadline):
                    raise OutOfTime("a part of the snapshot was not sent")
            # NO: the directory forgot this life during its snapshot; the next heartbeat will show
            # it.
            wire.ask(DirectoryHead(RequestKind.JOINED, number=head.number), deadline)
        self._numbers[member.name] = member.generation, head.number
        return True

    def last_life(self, name: str, deadline: Deadline) -> int:
        text = name.encode()
        with self._wire(deadline) as wire:
            _, listed = wire.ask(DirectoryHead(RequestKind.MEMBERS, text=len(text)), deadline, text)
            found = [member for _, member in unpack_members(listed)]
        return max((it.generation for it in found if it.name == name), default=0)

    def report(self, member: Member, report: Report, deadline: Deadline) -> bool:
        checked(report.added, report.removed)
        tags = np.concatenate([tags_of(report.added), tags_of(report.removed)])
        sizes = len(report.added), len(report.removed)
        return self._say(
            RequestKind.REPORT, member, deadline, report.sequence, sizes, tags.tobytes()
        )

    def heartbeat(self, member: Member, sequence: int, deadline: Deadline) -> bool:
        return self._say(RequestKind.HEARTBEAT, member, deadline, sequence)

    def leave(self, member: Member, deadline: Deadline) -> None:
        self._say(RequestKind.LEAVE, member, deadline)

    def locate(self, keys: Sequence[ChunkKey], deadline: Deadline) -> Sequence[Sequence[Member]]:
        found: list[tuple[Member, ...]] = []
        with self._wire(deadline) as wire:
            for part in slices(len(keys), MOST_TAGS):
                found += self._locate(wire, keys[part.start : part.stop], deadline)
        return found

    def members(self, deadline: Deadline) -> Sequence[Member]:
        with self._wire(deadline) as wire:
            _, listed = wire.ask(DirectoryHead(RequestKind.MEMBERS), deadline)
            return [member for _, member in unpack_members(listed)]

    def close(self) -> None:
        self._pool.close()

    def _see_room(self, kind: RequestKind, member: Member) -> None:
        """Check that the answer to a join accepts *member*.

        Raises:
            StoreFull, StoreBusy: the directory is full; another process has its name.
        """
        if kind is RequestKind.FULL:
            raise StoreFull(f"{self.address} has no room for another member")
        if kind is RequestKind.TAKEN:
            raise StoreBusy(
                f"{self.address}: another process, or another cache of this one, is {member.name!r}"
            )

    def _locate(
        self, wire: DirectoryStream, keys: Sequence[ChunkKey], deadline: Deadline
    ) -> list[tuple[Member, ...]]:
        tags, holders = tags_of(keys), self._holders
        question = DirectoryHead(RequestKind.LOCATE, first=len(tags), sequence=holders.version)
        head, found = wire.ask(question, deadline, tags.tobytes())
        size = len(tags) * head.words * TAG_BYTES
        if head.first != len(tags) or not head.words or len(found) != size + head.second:
            raise BadMessage("the directory answers another question")
        rows: Rows = np.frombuffer(found[:size], "<u8").reshape(len(tags), head.words)
        if head.second:
            holders = Holders(head.sequence, dict(unpack_members(found[size:])))
            self._holders = holders
        elif head.sequence != holders.version:
            holders = Holders(head.sequence, {})  # there are no members
        return holders.of(rows)

    def _say(
        self,
        kind: RequestKind,
        member: Member,
        deadline: Deadline,
        sequence: int = 0,
        sizes: tuple[int, int] = (0, 0),
        tags: bytes = b"",
    ) -> bool:
        generation, number = self._numbers.get(member.name, (0, 0))
        if generation != member.generation:
            number = 0  # of no membership; still sent, to see if the directory answers
        head = DirectoryHead(
            kind, first=sizes[0], second=sizes[1], sequence=sequence, number=number
        )
        with self._wire(deadline) as wire:
            return wire.ask(head, deadline, tags)[0].kind is RequestKind.YES

    @contextmanager
    def _wire(self, deadline: Deadline) -> Iterator[DirectoryStream]:
        """Yield a connection.

        Raises:
            StoreUnreachable: there is none in time, or the answer did not come in time.
            StoreError: the directory is closed.
        """
        with answering(self.address), self._pool.connection(deadline) as wire:
            yield wire

    def _greeted(self, stream: Stream, deadline: Deadline) -> DirectoryStream:
        time_left(deadline)
        (heartbeat,) = HANDSHAKE.greet(stream, deadline, self._secret)
        if not 0.001 <= heartbeat <= 3600:
            raise BadMessage("the directory wants no signs of life that can be given")
        self._heartbeat_seconds = heartbeat
        return DirectoryStream(stream, deadline.clock)
