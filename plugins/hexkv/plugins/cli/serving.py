"""The common parts of commands that serve: options, and their end by signals."""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable
from threading import Thread
from typing import Annotated

import typer

from hexkv.plugins.observing import logs
from hexkv.ports import ConfigError

log = logging.getLogger("hexkv.command")

Host = Annotated[str, typer.Option(help="Address to listen at.")]
SecretFile = Annotated[
    str, typer.Option(help="File with the clients' secret. Only its owner may read it.")
]
Certificate = Annotated[
    str, typer.Option(help="Encrypt: file with the server's certificate and key.")
]
ClientCa = Annotated[str, typer.Option(help="Ask clients for a certificate of these authorities.")]
Connections = Annotated[int, typer.Option(min=1, help="Connections at a time.")]


def size_in(text: str) -> int:
    """Return the bytes that an option gives.

    Raises:
        ConfigError: it is no size, or less than one byte.
    """
    from hexkv.plugins.configuration.schema import parse_size  # which imports pydantic

    try:
        size = int(str(parse_size(text)))
    except ValueError as error:
        raise ConfigError(str(error)) from error
    if size < 1:
        raise ConfigError(f"{text!r} is no size: there must be at least one byte")
    return size


def check_tls(certificate: str, client_ca: str) -> None:
    """End the command if it requires certificates, and has none itself."""
    if client_ca and not certificate:
        raise typer.BadParameter("--tls-client-ca needs --tls-certificate")


class EndedBySignals:
    """Ends a server by SIGTERM or SIGINT, also one that does not serve yet.

    A command makes this before it opens anything: a signal that comes while it opens is kept for
    the server, so once the command has printed anything, a signal cannot kill it abruptly. From
    then on its log has lines of all levels that the configuration asks for.
    """

    def __init__(self) -> None:
        self._came = ""
        self._stop: Callable[[], None] | None = None
        logs.show_all()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._note)

    def end(self, stop: Callable[[], None]) -> None:
        """Call *stop* when a signal comes, or now if one has come."""
        self._stop = stop
        if self._came:
            stop()

    def again(self, read: Callable[[], None]) -> None:
        """Call *read* at each SIGHUP, in a thread of its own."""
        signal.signal(signal.SIGHUP, lambda *_: Thread(target=read, daemon=True).start())

    def report(self, why: str = "") -> None:
        """Log that the server ends: *why*, or by which signal."""
        log.info("ends: %s", why or self._came or "it stops by itself")

    def _note(self, number: int, _: object) -> None:
        self._came = signal.Signals(number).name
        if self._stop:
            self._stop()
