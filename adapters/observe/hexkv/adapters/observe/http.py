"""The HTTP server: numbers, whether the process lives, and whether it may be sent requests."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable
from contextlib import suppress
from hmac import compare_digest
from http.server import BaseHTTPRequestHandler
from socket import SHUT_RDWR, SO_SNDBUF, SOL_SOCKET, socket
from threading import Thread
from time import monotonic, sleep
from typing import TYPE_CHECKING, cast

from hexkv.adapters.net.address import Address
from hexkv.adapters.net.server import listen
from hexkv.adapters.observe.openmetrics import (
    OPENMETRICS,
    TEXT,
    as_openmetrics,
    wants_openmetrics,
)

if TYPE_CHECKING:
    from socketserver import BaseServer

log = logging.getLogger("hexkv")

_PATIENCE = 5.0
"""Seconds that a client may be silent in the middle of a request or an answer."""

_CLOSING = 1.0
_PAGE = 256 << 10
"""Bytes that are sent at once: a page of an engine with five tiers has 33 kB."""


class HealthServer:
    """Serves until it is closed, in threads of its own.

    Each waits for a connection and answers it: while threads of the host compute, every change of
    threads costs a turn of the interpreter's lock.
    """

    def __init__(
        self,
        address: Address,
        metrics: Callable[[], str],
        unready: Callable[[], str],
        *,
        secret: bytes = b"",
        tls: ssl.SSLContext | None = None,
        connections: int = 4,
    ) -> None:
        """Listen at *address*, and serve.

        Args:
            address: host and port.
            metrics: gives the numbers as text.
            unready: gives the reason why no requests should be sent here; empty for none.
            secret: the bearer token that numbers take; empty: none.
            tls: wraps every connection.
            connections: at a time; further ones wait.

        Raises:
            ConfigError: it cannot listen there.
        """
        self.metrics = metrics
        self.unready = unready
        self.secret = secret
        self._tls = tls
        self._listener = listen(address.host, address.port)
        # Connections inherit it: a page fits, so that sending one is not to wait for its reader.
        self._listener.setsockopt(SOL_SOCKET, SO_SNDBUF, _PAGE)
        self._closed = False
        self._threads = [
            Thread(target=self._serve, name="hexkv observe", daemon=True)
            for _ in range(connections)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def port(self) -> int:
        """The TCP port."""
        return int(self._listener.getsockname()[1])

    def close(self) -> None:
        """Serve no more. What is being answered may go on for a moment."""
        self._closed = True
        with suppress(OSError):
            self._listener.shutdown(SHUT_RDWR)  # wakes who waits in accept()
        self._listener.close()
        end = monotonic() + _CLOSING
        for thread in self._threads:
            thread.join(max(0.0, end - monotonic()))

    def _serve(self) -> None:
        while not self._closed:
            try:
                sock, client = self._listener.accept()
            except OSError:  # it was closed, or there are no more descriptors
                sleep(0.1)
                continue
            try:
                with suppress(OSError), sock:  # clients come and go, and some speak no TLS
                    self._answer(sock, client)
            except Exception:
                log.exception("a request for numbers is not answered")

    def _answer(self, sock: socket, client: object) -> None:
        sock.settimeout(_PATIENCE)
        if self._tls is None:
            _Handler(sock, client, cast("BaseServer", self))
            return
        with self._tls.wrap_socket(sock, server_side=True) as secured:
            _Handler(secured, client, cast("BaseServer", self))


class _Handler(BaseHTTPRequestHandler):
    """One request, after which the connection ends."""

    server: HealthServer  # type: ignore[assignment]  # all that it asks of one
    timeout = _PATIENCE
    # Heads and pages go out together: whatever a socket is asked for may cost a turn, too.
    wbufsize = _PAGE
    server_version = "hexkv"
    sys_version = ""

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/metrics":
            self._metrics()
        elif path == "/healthz":
            self._answer(200, "ok\n")
        elif path == "/readyz":
            why = self.server.unready()
            self._answer(503 if why else 200, f"{why or 'ok'}\n")
        else:
            self._answer(404, "there are /metrics, /healthz and /readyz\n")

    def do_HEAD(self) -> None:
        self.do_GET()

    def _metrics(self) -> None:
        if self.server.secret:
            said = self.headers.get("Authorization", "").encode(errors="replace")
            if not compare_digest(said, b"Bearer " + self.server.secret):
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
        """Nothing: a scrape every few seconds is no news."""
