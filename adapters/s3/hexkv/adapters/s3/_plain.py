"""Moves objects over our own connections: between memory and socket, at best in one system call."""

from __future__ import annotations

from contextlib import suppress

from hexkv.adapters.net.errors import OutOfTime
from hexkv.adapters.s3._answers import (
    Changed,
    Reply,
    failed_after_all,
    refusal,
    word,
)
from hexkv.adapters.s3._bodies import Allocate, Parts
from hexkv.adapters.s3._crew import Crew
from hexkv.adapters.s3._http import Http, reply_of
from hexkv.adapters.s3._wire import HttpStream, ReplyHead
from hexkv.ports import (
    Corrupt,
    Deadline,
    Hit,
    Miss,
    ReadOutcome,
    Reason,
    StoreError,
    StoreUnreachable,
)

_TRIES = 3
"""The number of attempts to read an object that is replaced while its parts are read."""


class PlainBodies:
    """Moves objects over *http*, large ones in parts.

    Args:
        http: sends the requests.
        crew: makes requests concurrently.
        parts: the sizes for moving in parts.
    """

    def __init__(self, http: Http, crew: Crew, parts: Parts) -> None:
        self._http = http
        self._crew = crew
        self._parts = parts

    def get(self, name: str, room: Allocate, deadline: Deadline) -> ReadOutcome:
        for _ in range(_TRIES):
            with suppress(Changed):
                return self._get(name, room, deadline)
        raise StoreUnreachable("the object was replaced whenever it was read")

    def put(self, name: str, frame: memoryview, deadline: Deadline) -> None:
        if len(frame) > self._parts.above:
            self._put_in_parts(name, frame, deadline)
            return
        _must(self._http.ask("PUT", name, deadline, body=frame))

    def get_range(self, name: str, start: int, into: memoryview, deadline: Deadline) -> ReadOutcome:
        """Fill *into*, which is not empty, with the object's bytes from *start* on."""
        headers = _range(start, len(into))
        with self._http.exchange("GET", name, deadline, headers=headers) as (head, wire):
            if head.status == 416 or (head.status == 206 and wire.size != len(into)):
                return Corrupt("the object ends before that range")
            if head.status == 206 and _first_byte(head) == start:
                wire.fill(into, deadline)
                whole = head.headers.get("content-range", "").rpartition("/")[2]
                return Hit(len(into), int(whole) if _is_number(whole) else None)
            raise _wrong(head, wire, deadline)

    def close(self) -> None:
        return  # the connections are not owned by this object

    def _get(self, name: str, room: Allocate, deadline: Deadline) -> ReadOutcome:
        """Read the first part, and, once the size is known, the other parts concurrently."""
        headers = _range(0, self._parts.size)
        with self._http.exchange("GET", name, deadline, headers=headers) as (head, wire):
            if head.status == 416:  # an empty object has no first byte
                reply_of(head, wire, deadline)
                into, size = room(0), 0
                return Miss(Reason.REFUSED) if into is None else Hit(size)
            size, first = _sizes(head, wire, deadline)
            into = room(size)
            if into is None:
                return Miss(Reason.REFUSED)
            if first == size:
                wire.fill(into, deadline)
                return Hit(size)
            same = head.headers.get("etag", "")
            if not same:
                raise StoreUnreachable("an object without ETag cannot be read in parts")
            target = into

            def fetch(number: int) -> None:
                if number == 0:
                    wire.fill(target[:first], deadline)
                    return
                start = first + (number - 1) * self._parts.size
                self._part(name, target, start, same, deadline)

            self._crew.each(1 + -(-(size - first) // self._parts.size), fetch)
            return Hit(size)

    def _part(self, name: str, into: memoryview, start: int, same: str, deadline: Deadline) -> None:
        part = into[start : start + self._parts.size]
        headers = _range(start, len(part)) | {"if-match": same}
        with self._http.exchange("GET", name, deadline, headers=headers) as (head, wire):
            if head.status == 416:
                raise Changed
            if head.status != 206:
                raise _wrong(head, wire, deadline)
            if wire.size != len(part) or _first_byte(head) != start:
                raise Changed
            wire.fill(part, deadline)

    def _put_in_parts(self, name: str, frame: memoryview, deadline: Deadline) -> None:
        begun = _must(self._http.ask("POST", name, deadline, query={"uploads": ""}))
        upload = {"uploadId": word(begun.text, "UploadId")}
        size = self._parts.size

        def send(number: int) -> str:
            query = upload | {"partNumber": str(number + 1)}
            part = frame[number * size : (number + 1) * size]
            reply = _must(self._http.ask("PUT", name, deadline, query=query, body=part))
            return reply.headers.get("etag", "")

        try:
            tags = self._crew.each(-(-len(frame) // size), send)
            listed = "".join(
                [
                    f"<Part><PartNumber>{number}</PartNumber><ETag>{_escaped(tag)}</ETag></Part>"
                    for number, tag in enumerate(tags, 1)
                ]
            )
            text = f"<CompleteMultipartUpload>{listed}</CompleteMultipartUpload>".encode()
            body = memoryview(text)
            ended = _must(self._http.ask("POST", name, deadline, query=upload, body=body))
            if failed_after_all(ended.text):
                raise StoreUnreachable(f"an upload did not end well: {ended.text[:200]!r}")
        except (OutOfTime, StoreError):
            # After the deadline this fails at once: the bucket's lifecycle rules remove the rest.
            with suppress(OutOfTime, StoreError):
                self._http.ask("DELETE", name, deadline, query=upload)
            raise


def _range(start: int, size: int) -> dict[str, str]:
    return {"range": f"bytes={start}-{start + size - 1}"}


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _must(reply: Reply) -> Reply:
    if reply.status in (200, 204):
        return reply
    raise refusal(reply)


def _wrong(head: ReplyHead, wire: HttpStream, deadline: Deadline) -> Exception:
    """The error for a reply without the requested bytes."""
    if head.status < 300:
        wire.stream.abort()
        return StoreUnreachable(f"the server answered {head.status} to a read of a range")
    return refusal(reply_of(head, wire, deadline))


def _sizes(head: ReplyHead, wire: HttpStream, deadline: Deadline) -> tuple[int, int]:
    """The bytes of the object, and those in this reply, which begins with the first byte."""
    here = wire.size
    if head.status not in (200, 206) or here is None:
        raise _wrong(head, wire, deadline)
    if head.status == 200:  # a server without ranges sends all of it
        return here, here
    size = head.headers.get("content-range", "").rpartition("/")[2]
    if not _is_number(size) or _first_byte(head) != 0 or int(size) < here:
        wire.stream.abort()
        raise StoreUnreachable("a part of an object that does not say which")
    return int(size), here


def _first_byte(head: ReplyHead) -> int | None:
    """The start of the range in this reply; ``None`` if it has no such header."""
    start_text = head.headers.get("content-range", "").removeprefix("bytes ").partition("-")[0]
    return int(start_text) if _is_number(start_text) else None


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()
