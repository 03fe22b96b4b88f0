"""The HTTP server: metrics, liveness and readiness of the process."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping
from hmac import compare_digest
from http.server import BaseHTTPRequestHandler
from io import BufferedReader, BytesIO, RawIOBase
from socket import SO_SNDBUF, SOL_SOCKET
from threading import Thread
from typing import TYPE_CHECKING, cast

from hexkv.adapters.net.address import Address
from hexkv.adapters.net.errors import BadMessage
from hexkv.adapters.net.security import SecretSource, accepted
from hexkv.adapters.net.server.admission import TurnedAway
from hexkv.adapters.net.server.connection import Connection, Limits
from hexkv.adapters.net.server.server import StreamServer, listen
from hexkv.adapters.observe.openmetrics import (
    OPENMETRICS,
    TEXT,
    as_openmetrics,
    wants_openmetrics,
)
from hexkv.ports import Clock

if TYPE_CHECKING:
    from socket import socket
    from socketserver import BaseServer

    from _typeshed import WriteableBuffer

_REQUEST = 64 << 10
"""Bytes of a request, at most."""

_SECONDS, _FIRST = 5.0, 1.0
"""Seconds for a whole request, up to the last byte of its answer, and for its first byte."""

_CLOSING = 1.0
_PAGE = 256 << 10
"""Bytes of a connection's send buffer: a page of an engine with five tiers has 33 kB."""


class HealthServer:
    """Serves until it is closed, in threads of its own."""

    def __init__(
        self,
        address: Address,
        clock: Clock,
        metrics: Callable[[], str],
        unready: Callable[[], str],
        degraded: Callable[[], str],
        *,
        secret: SecretSource = b"",
        tls: ssl.SSLContext | None = None,
        connections: int = 64,
    ) -> None:
        """Listen at *address*, and serve.

        Args:
            address: host and port.
            clock: for deadlines.
            metrics: returns the metrics as text.
            unready: returns the reason why no requests should be sent here; empty for none.
            degraded: returns the parts that do not work all the same; empty for none.
            secret: the bearer token that metrics require; empty: none.
            tls: wraps every connection.
            connections: at a time, as in every :class:`StreamServer`.

        Raises:
            ConfigError: it cannot listen there.
        """
        self.metrics = metrics
        self.unready = unready
        self.degraded = degraded
        self.secret = secret
        listener = listen(address.host, address.port)
        # Connections inherit it: a page fits, so sending one does not wait for its reader.
        listener.setsockopt(SOL_SOCKET, SO_SNDBUF, _PAGE)
        self._server = StreamServer(
            listener,
            self._attend,
            clock,
            Limits(_REQUEST, patience=_SECONDS, first=_FIRST),
            connections=connections,
            tls=tls,
            public=True,
            name="hexkv observe",
        )
        self.port = int(listener.getsockname()[1])
        self._thread = Thread(target=self._server.run, name="hexkv observe", daemon=True)
        self._thread.start()

    @property
    def turned_away(self) -> Mapping[TurnedAway, int]:
        """The number of connections turned away, by reason."""
        return self._server.turned_away

    def close(self) -> None:
        """Stop serving. Requests under way may take a moment longer."""
        self._server.stop()
        self._thread.join(_CLOSING)

    def _attend(self, connection: Connection) -> None:
        # A connection in place of a socket, which only setup() would use.
        answer = _Handler(cast("socket", connection), None, cast("BaseServer", self)).answer
        if answer:  # otherwise the client has left
            connection.engage(connection.opening.remaining())
            connection.send([answer])


class _Request(RawIOBase):
    """The bytes that a client sends, up to the deadline of its request."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._left = _REQUEST

    def readable(self) -> bool:
        return True

    def readinto(self, into: WriteableBuffer) -> int:
        view = memoryview(into).cast("B")
        if not self._left:
            raise BadMessage("a request that is too long")
        connection = self._connection
        came = connection.stream.take_some(min(len(view), self._left), connection.opening)
        self._left -= len(came)
        view[: len(came)] = came
        return len(came)


class _Handler(BaseHTTPRequestHandler):
    """One request, after which the connection ends."""

    server: HealthServer  # type: ignore[assignment]  # all that it uses of one
    wfile: BytesIO
    answer: bytes
    """The whole answer, once it is complete."""

    request: Connection
    server_version = "hexkv"
    sys_version = ""

    def setup(self) -> None:
        self.rfile = BufferedReader(_Request(self.request))
        # Heads and pages are sent together: each use of a socket may cost a turn of the
        # interpreter's lock.
        self.wfile = BytesIO()

    def finish(self) -> None:
        self.answer = self.wfile.getvalue()

    def parse_request(self) -> bool:
        parsed = super().parse_request()
        self.request.engage(self.request.opening.remaining())
        return parsed

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/metrics":
            self._metrics()
        elif path == "/healthz":
            self._answer(200, "ok\n")
        elif path == "/readyz":
            why = self.server.unready()
            parts = "" if why else self.server.degraded()
            well = f"ok, degraded: {parts}" if parts else "ok"
            self._answer(503 if why else 200, f"{why or well}\n")
        else:
            self._answer(404, "there are /metrics, /healthz and /readyz\n")

    def do_HEAD(self) -> None:
        self.do_GET()

    def _metrics(self) -> None:
        if self.server.secret:
            given = self.headers.get("Authorization", "").encode(errors="replace")
            known = accepted(self.server.secret)
            if not any(compare_digest(given, b"Bearer " + one) for one in known):
                self._answer(401, "the secret is missing\n")
                return
        text = self.server.metrics()
        if wants_openmetrics(self.headers.get("Accept", "")):
            self._answer(200, as_openmetrics(text), OPENMETRICS)
        else:
            self._answer(200, text, TEXT)

    def _answer(self, status: int, text: str, kind: str = "text/plain; charset=utf-8") -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        if status == 401:
            self.send_header("WWW-Authenticate", "Bearer")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name there
        """Log nothing: a scrape every few seconds is no news."""
