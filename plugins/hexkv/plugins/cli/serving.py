"""The common parts of commands that serve: options, and their end by signals."""

from __future__ import annotations

import logging
import os
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from threading import Event, Thread
from typing import Annotated

import typer

from hexkv.plugins.observing import logs
from hexkv.ports import ConfigError

log = logging.getLogger("hexkv.command")

_PATIENCE = 1.0
"""Seconds for the service manager to take a word."""

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
        self._ending = Event()
        logs.show_all()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._note)

    def end(self, stop: Callable[[], None]) -> None:
        """Call *stop* when a signal comes, or now if one has come."""
        self._stop = stop
        if self._came:
            stop()

    def ready(self, works: Callable[[], object]) -> None:
        """Report to the service manager, if there is one, that the server serves.

        From then on *works* is called twice in each period of the manager's watchdog, from a thread
        of its own: while it hangs or fails, nothing more is reported.
        """
        _notify(f"READY=1\nMAINPID={os.getpid()}")
        from hexkv.plugins.configuration.config import service_manager  # which imports pydantic

        if period := service_manager()[1] / 2:
            Thread(target=self._report_life, args=(works, period), daemon=True).start()

    def _report_life(self, works: Callable[[], object], period: float) -> None:
        while not self._ending.wait(period):
            try:
                works()
            except Exception:
                log.exception("the server does not work")
            else:
                _notify("WATCHDOG=1")

    def again(self, read: Callable[[], None]) -> None:
        """Call *read* at each SIGHUP, in a thread of its own."""
        signal.signal(signal.SIGHUP, lambda *_: Thread(target=read, daemon=True).start())

    def report(self, why: str = "") -> None:
        """Log that the server ends: *why*, or by which signal."""
        self._ending.set()
        _notify("STOPPING=1")
        log.info("ends: %s", why or self._came or "it stops by itself")

    def _note(self, number: int, _: object) -> None:
        self._came = signal.Signals(number).name
        if self._stop:
            self._stop()


def _notify(state: str) -> None:
    """Send *state* to the service manager; see sd_notify(3). An error is ignored.

    A manager that does not read gets nothing after :data:`_PATIENCE`: it keeps no server running.
    """
    from hexkv.plugins.configuration.config import service_manager  # which imports pydantic

    address, _ = service_manager()
    if address:
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.settimeout(_PATIENCE)
            sock.sendto(state.encode(), address.replace("@", "\0", 1))
