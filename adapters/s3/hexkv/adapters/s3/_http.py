"""Signed requests to one bucket."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from hexkv.adapters.net.errors import OutOfTime
from hexkv.adapters.net.pool import Pool
from hexkv.adapters.s3._answers import LONGEST_TEXT, Reply
from hexkv.adapters.s3._credentials import Source
from hexkv.adapters.s3._signing import Signer, query_of
from hexkv.adapters.s3._wire import HttpStream, ReplyHead
from hexkv.adapters.s3.address import Endpoint
from hexkv.ports import Clock, Deadline, StoreUnreachable

_NOTHING: Mapping[str, str] = {}
_EMPTY = memoryview(b"")
_SETTLED = 0.2
"""Seconds to wait for the reply of a server that closed the connection during a body."""


class Http:
    """Sends requests to an endpoint and receives the replies. Safe from any thread.

    Args:
        endpoint: of the bucket.
        pool: connections to it.
        source: of the keys for signatures.
        clock: for the dates of signatures.
    """

    def __init__(
        self, endpoint: Endpoint, pool: Pool[HttpStream], source: Source, clock: Clock
    ) -> None:
        self.endpoint = endpoint
        self.source = source
        self._pool = pool
        self._clock = clock
        self._signer = Signer(endpoint.region, endpoint.authority)

    @contextmanager
    def exchange(
        self,
        method: str,
        name: str,
        deadline: Deadline,
        *,
        query: Mapping[str, str] = _NOTHING,
        headers: Mapping[str, str] = _NOTHING,
        body: memoryview = _EMPTY,
    ) -> Iterator[tuple[ReplyHead, HttpStream]]:
        """Send a request; the reply's body can be received within the block.

        Args:
            method: in capitals.
            name: of the object, or empty for the bucket.
            deadline: of all of it.
            query: parameters.
            headers: that are not signed.
            body: the bytes to send, if any.

        Raises:
            OutOfTime: the deadline passed.
            StoreUnreachable: the server cannot be reached, or does not speak HTTP.
            StoreError: no keys were found, or the store was closed.
        """
        path, asked = self.endpoint.path(name), query_of(query)
        keys = self.source(deadline)
        signed = self._signer.headers(keys, self._clock.wall(), method, path, asked)
        lines = [f"{n}: {v}\r\n" for n, v in (*signed.items(), *headers.items())]
        if method in ("PUT", "POST"):
            lines.append(f"content-length: {len(body)}\r\n")
        target = f"{path}?{asked}" if asked else path
        head = f"{method} {target} HTTP/1.1\r\n{''.join(lines)}\r\n".encode()
        for fresh in (False, True):
            with self._pool.connection(deadline, fresh=fresh) as wire:
                try:
                    reply = _answered(wire, head, body, deadline, bodiless=method == "HEAD")
                except StoreUnreachable:
                    # A server may close an idle connection just when the next request is sent
                    # (RFC 9112, 9.3.1).
                    if fresh or not wire.ended_early or method == "POST":
                        raise
                    continue
                yield reply, wire
                return

    def ask(
        self,
        method: str,
        name: str,
        deadline: Deadline,
        *,
        query: Mapping[str, str] = _NOTHING,
        headers: Mapping[str, str] = _NOTHING,
        body: memoryview = _EMPTY,
    ) -> Reply:
        """Send a request and receive a small reply completely: see :meth:`exchange`."""
        with self.exchange(method, name, deadline, query=query, headers=headers, body=body) as (
            head,
            wire,
        ):
            return reply_of(head, wire, deadline)

    def close(self) -> None:
        """End everything under way."""
        self._pool.close()


def _answered(
    wire: HttpStream, head: bytes, body: memoryview, deadline: Deadline, *, bodiless: bool
) -> ReplyHead:
    try:
        wire.send(head, body, deadline)
    except StoreUnreachable as broken:
        # A server that refuses a body replies, and closes the connection before it has read it.
        early = Deadline(deadline.clock, min(deadline.at, deadline.clock.now() + _SETTLED))
        try:
            reply = wire.head(early)
        except (OutOfTime, StoreUnreachable) as error:
            raise broken from error
        if reply.status < 400:
            raise
        return reply
    return wire.head(deadline, bodiless=bodiless)


def reply_of(head: ReplyHead, wire: HttpStream, deadline: Deadline) -> Reply:
    """Receive a complete reply with a body of text, or without one."""
    return Reply(head.status, head.headers, wire.text(LONGEST_TEXT, deadline))
