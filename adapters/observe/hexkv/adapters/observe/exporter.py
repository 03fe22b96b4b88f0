"""Sends spans to a collector that accepts OTLP over HTTP, from a thread of its own.

https://opentelemetry.io/docs/specs/otlp/#otlphttp
"""

from __future__ import annotations

import logging
import ssl
from contextlib import suppress
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from threading import Event, Thread

from hexkv.adapters.observe.place import Collector
from hexkv.adapters.observe.spans import CallQueue, Encoder
from hexkv.ports import Clock

log = logging.getLogger(__name__)

_BEAT = 1.0
"""Seconds between two requests, to batch calls. Each failure doubles it, up to the limit below."""

_LONGEST_BEAT = 30.0
_PATIENCE = 5.0
"""Seconds that the collector may be silent."""

_CALLS = 512
"""Calls in a request: some 300 KiB."""

_TRIES = 5
_AGAIN = (429, 502, 503, 504)
"""Statuses after which the same request may be sent again."""

_CLOSING = 0.5
_ANSWER = 64 << 10
"""Bytes of an answer that are read."""


class Exporter:
    """Sends the waiting calls, about once a second, until it is closed."""

    def __init__(
        self,
        queue: CallQueue,
        encoder: Encoder,
        collector: Collector,
        clock: Clock,
        *,
        authorization: str = "",
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """Begin to send the calls in *queue*, encoded by *encoder*, to *collector*.

        Args:
            queue: of calls that have ended.
            encoder: writes requests.
            collector: receives them.
            clock: of the calls.
            authorization: the header of that name; empty: none.
            tls: wraps the connections to a collector that has TLS.
        """
        self.spans = 0
        """Spans that the collector accepted."""

        self.lost = 0
        """Spans that it did not accept."""

        self._queue = queue
        self._encoder = encoder
        self._collector = collector
        self._clock = clock
        self._headers = {"Content-Type": "application/x-protobuf", "User-Agent": "hexkv"}
        if authorization:
            self._headers["Authorization"] = authorization
        self._tls = tls
        self._pending: tuple[bytes, int] | None = None
        self._tries = 0
        self._ending = Event()
        self._thread = Thread(target=self._run, name="hexkv traces", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Send the rest, within half a second. Never raises; twice is allowed."""
        self._ending.set()
        self._thread.join(_CLOSING)

    def _run(self) -> None:
        beat = _BEAT
        while not self._ending.wait(beat):
            beat = _BEAT if self._send_all(_PATIENCE) else min(2 * beat, _LONGEST_BEAT)
        self._send_all(_CLOSING)

    def _send_all(self, patience: float) -> bool:
        """Send the waiting calls. False if the collector does not accept them now."""
        while True:
            if self._pending is None:
                calls = self._queue.take(_CALLS)
                if not calls:
                    return True
                ahead = self._clock.wall() - self._clock.now()
                self._pending, self._tries = self._encoder.request(calls, ahead), 0
            body, spans = self._pending
            why, again = self._send(body, patience)
            if not why:
                self.spans += spans
                self._pending = None
                continue
            if not self._tries and not self.lost:
                log.warning("traces do not reach %s: %s", self._collector, why)
            self._tries += 1
            if not again or self._tries >= _TRIES:
                self.lost += spans
                self._pending = None
            return False

    def _send(self, body: bytes, patience: float) -> tuple[str, bool]:
        """Return why the collector rejects *body*, empty if it does not; and True to retry."""
        to = self._collector
        connection = (
            HTTPSConnection(to.host, to.port, timeout=patience, context=self._tls)
            if to.tls
            else HTTPConnection(to.host, to.port, timeout=patience)
        )
        try:
            connection.request("POST", to.path, body, self._headers)
            answer = connection.getresponse()
            answer.read(_ANSWER)
        except (OSError, HTTPException) as error:
            return f"{type(error).__name__}: {error}", True
        finally:
            with suppress(OSError):
                connection.close()
        if 200 <= answer.status < 300:
            return "", False
        return f"it answers with status {answer.status}", answer.status in _AGAIN
