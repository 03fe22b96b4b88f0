"""A directory's side of one connection."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hexkv.adapters.directory.cell import Cell
from hexkv.adapters.directory.tags import TAG_BYTES, Tags, tags_in
from hexkv.adapters.directory.wire import (
    AHEAD,
    HANDSHAKE,
    HEAD_BYTES,
    Head,
    Kind,
    pack_members,
    unpack_members,
    unpack_request,
)
from hexkv.adapters.net.errors import BadMessage
from hexkv.adapters.net.server.connection import Connection
from hexkv.plugins.notices import Notices
from hexkv.ports import Member, StoreBusy, StoreFull


class Session:
    """Answers one connection from a cell."""

    def __init__(self, connection: Connection, cell: Cell, secret: bytes, notices: Notices) -> None:
        self._connection = connection
        self._notices = notices
        self._cell = cell
        self._secret = secret

    def run(self) -> None:
        """Answer until the connection ends.

        Raises:
            OutOfTime, ConnectionBroken: the connection is over; every session ends by an error.
            BadMessage, Refused: the client does not speak the protocol, or know the secret.
        """
        HANDSHAKE.answer(self._connection, self._secret, self._cell.heartbeat_seconds)
        answers: dict[Kind, Callable[[Head, bytes, Tags], list[bytes]]] = {
            Kind.JOIN: self._join,
            Kind.PART: self._part,
            Kind.JOINED: self._joined,
            Kind.REPORT: self._report,
            Kind.HEARTBEAT: self._heartbeat,
            Kind.LEAVE: self._leave,
            Kind.LOCATE: self._locate,
            Kind.MEMBERS: self._members,
        }
        connection = self._connection
        while True:
            idle = connection.limits.idle
            head = unpack_request(connection.request(HEAD_BYTES, idle, ahead=AHEAD))
            if head.kind not in answers:
                raise BadMessage("an answer is no request")
            text, tags = self._receive(head)
            answer = answers[head.kind](head, text, tags)
            if answer:
                connection.send(answer, sum(map(len, answer)))

    def _receive(self, head: Head) -> tuple[bytes, Tags]:
        """Receive the parts after a head: text, and tags."""
        size = head.text + (head.first + head.second) * TAG_BYTES
        if not size:
            return b"", _NONE
        body = self._connection.rest(size)
        return body[: head.text], tags_in(memoryview(body)[head.text :])

    def _join(self, head: Head, text: bytes, tags: Tags) -> list[bytes]:
        del tags
        try:
            ((_, member),) = unpack_members(text)
        except ValueError as error:
            raise BadMessage("one member joins at a time") from error
        what = f"node {member.name!r}"
        try:
            number = self._cell.join(member, head.number)
        except StoreBusy as error:
            self._notices.failed(what, f"StoreBusy: {error}")
            return [Head(Kind.TAKEN).pack()]
        except StoreFull as error:
            self._notices.failed(what, f"StoreFull: {error}")
            return [Head(Kind.FULL).pack()]
        if number is None:
            self._notices.failed(what, "a later life of it is known")
        else:
            self._notices.works(what)
        return [_verdict(number is not None, number or 0)]

    def _part(self, head: Head, text: bytes, tags: Tags) -> list[bytes]:
        del text
        self._cell.take(head.number, tags)
        return []

    def _joined(self, head: Head, text: bytes, tags: Tags) -> list[bytes]:
        return self._heartbeat(head, text, tags)

    def _report(self, head: Head, text: bytes, tags: Tags) -> list[bytes]:
        del text
        added, removed = tags[: head.first], tags[head.first :]
        return [_verdict(self._cell.report(head.number, head.sequence, added, removed))]

    def _heartbeat(self, head: Head, text: bytes, tags: Tags) -> list[bytes]:
        del text, tags
        return [_verdict(self._cell.heartbeat(head.number, head.sequence))]

    def _leave(self, head: Head, text: bytes, tags: Tags) -> list[bytes]:
        del text, tags
        self._cell.leave(head.number)
        return [_verdict(True)]

    def _locate(self, head: Head, text: bytes, tags: Tags) -> list[bytes]:
        del text
        located = self._cell.locate(tags)
        version, members = located.version, b""
        if version != head.sequence:
            version, columns = self._cell.columns()
            if version != located.version:  # the members changed in between
                return self._locate(head, b"", tags)
            members = pack_members(columns)
        words = located.rows.shape[1]
        answer = Head(Kind.YES, words, 0, len(tags), len(members), version)
        return [answer.pack() + located.rows.astype("<u8", copy=False).tobytes() + members]

    def _members(self, head: Head, text: bytes, tags: Tags) -> list[bytes]:
        del head, tags
        version, columns = self._cell.columns()
        if text:  # the last life of one node, which may have ended
            name = text.decode(errors="replace")
            last = self._cell.last_life(name)
            columns = [(0, Member(name, last))] if last else []
        members = pack_members(columns)
        return [Head(Kind.YES, 0, 0, 0, len(members), version).pack() + members]


_NONE: Tags = np.zeros(0, np.uint64)


def _verdict(well: bool, number: int = 0) -> bytes:
    return Head(Kind.YES if well else Kind.NO, number=number).pack()
