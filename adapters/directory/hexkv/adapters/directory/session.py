"""A directory's side of one connection."""

from __future__ import annotations

from collections.abc import Callable

from hexkv.adapters.directory.cell import Cell
from hexkv.adapters.directory.tags import Tags
from hexkv.adapters.directory.wire import (
    LARGEST,
    DirectoryHead,
    RequestKind,
    pack_members,
    unpack_members,
    unpack_request,
)
from hexkv.adapters.net.errors import BadMessage
from hexkv.adapters.net.rpc import wire as rpc
from hexkv.adapters.net.rpc.asked import ClientBounds, Request
from hexkv.adapters.net.rpc.placed import PlacedSession
from hexkv.adapters.net.server.connection import Connection
from hexkv.plugins.notices import Notices
from hexkv.ports import Member, StoreBusy, StoreFull


class DirectorySession(PlacedSession):
    """Answers one node from a cell. All requests are short: one thread does for a connection."""

    at_once = frozenset(RequestKind)
    kind = "directory"

    def __init__(self, connection: Connection, cell: Cell, notices: Notices) -> None:
        limits = connection.limits
        super().__init__(
            connection, ClientBounds(largest=LARGEST, patience=limits.patience, idle=limits.idle)
        )
        self._notices = notices
        self._cell = cell
        self._answers: dict[RequestKind, Callable[[DirectoryHead, bytes, Tags], bytes]] = {
            RequestKind.JOIN: self._join,
            RequestKind.JOINED: self._joined,
            RequestKind.REPORT: self._report,
            RequestKind.HEARTBEAT: self._heartbeat,
            RequestKind.LEAVE: self._leave,
            RequestKind.LOCATE: self._locate,
            RequestKind.MEMBERS: self._members,
        }

    def take(self, head: rpc.Head, body: bytes) -> bool:
        if head.verb == RequestKind.PART:
            part, _, tags = unpack_request(body)
            self._cell.take(part.number, tags)
        return head.verb == RequestKind.PART or super().take(head, body)

    def respond(self, asked: Request) -> None:
        head, text, tags = unpack_request(asked.body)
        if head.kind not in self._answers or head.kind != asked.head.verb:
            raise BadMessage("an answer is no request")
        self.send(asked.head, rpc.Status.DONE, self._answers[head.kind](head, text, tags))

    def _join(self, head: DirectoryHead, text: bytes, tags: Tags) -> bytes:
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
            return DirectoryHead(RequestKind.TAKEN).pack()
        except StoreFull as error:
            self._notices.failed(what, f"StoreFull: {error}")
            return DirectoryHead(RequestKind.FULL).pack()
        if number is None:
            self._notices.failed(what, "a later life of it is known")
        else:
            self._notices.works(what)
        return _verdict(number is not None, number or 0)

    def _joined(self, head: DirectoryHead, text: bytes, tags: Tags) -> bytes:
        return self._heartbeat(head, text, tags)

    def _report(self, head: DirectoryHead, text: bytes, tags: Tags) -> bytes:
        del text
        added, removed = tags[: head.first], tags[head.first :]
        return _verdict(self._cell.report(head.number, head.sequence, added, removed))

    def _heartbeat(self, head: DirectoryHead, text: bytes, tags: Tags) -> bytes:
        del text, tags
        return _verdict(self._cell.heartbeat(head.number, head.sequence))

    def _leave(self, head: DirectoryHead, text: bytes, tags: Tags) -> bytes:
        del text, tags
        self._cell.leave(head.number)
        return _verdict(True)

    def _locate(self, head: DirectoryHead, text: bytes, tags: Tags) -> bytes:
        del text
        located = self._cell.locate(tags)
        version, members = located.version, b""
        if version != head.sequence:
            version, columns = self._cell.columns()
            if version != located.version:  # the members changed in between
                return self._locate(head, b"", tags)
            members = pack_members(columns)
        words = located.rows.shape[1]
        answer = DirectoryHead(RequestKind.YES, words, 0, len(tags), len(members), version)
        return answer.pack() + located.rows.astype("<u8", copy=False).tobytes() + members

    def _members(self, head: DirectoryHead, text: bytes, tags: Tags) -> bytes:
        del head, tags
        version, columns = self._cell.columns()
        if text:  # the last life of one node, which may have ended
            name = text.decode(errors="replace")
            last = self._cell.last_life(name)
            columns = [(0, Member(name, last))] if last else []
        members = pack_members(columns)
        return DirectoryHead(RequestKind.YES, 0, 0, 0, len(members), version).pack() + members


def _verdict(well: bool, number: int = 0) -> bytes:
    return DirectoryHead(RequestKind.YES if well else RequestKind.NO, number=number).pack()
