"""Who may connect to a listener, and how that is known before anything is read from a client.

A wire with a secret asks for it itself, and so does TLS that asks for certificates. Without either
a listener takes processes of its own user alone: the kernel says whose they are, of a Unix socket
by ``SO_PEERCRED`` and of a connection over loopback by its tables. Loopback by itself says nothing:
every user of the machine, and every container of a pod, reaches it.
"""

from __future__ import annotations

import logging
import os
import socket
import ssl
from collections.abc import Collection

from hexkv.adapters.net.handshake import Refused
from hexkv.adapters.net.owners import own_user
from hexkv.adapters.net.security import asks_for_certificates, check_exposure
from hexkv.adapters.net.stream import Stream
from hexkv.ports import ConfigError

log = logging.getLogger("hexkv")

_NAMED = 16
"""Users of whom the log says that they are refused."""


class ClientCheck:
    """How one listener knows its clients. Safe from any thread.

    Args:
        listener: of the clients.
        secret: for which the wire asks; empty: for none.
        tls: of the connections.
        users: whose processes may connect to a Unix socket; ``None``: this user's, and root's.

    Raises:
        ConfigError: other machines could connect, or processes of other users could not be told
            from those of this one, and no secret and no certificate is asked for.
    """

    def __init__(
        self,
        listener: socket.socket,
        secret: bytes = b"",
        tls: ssl.SSLContext | None = None,
        users: Collection[int] | None = None,
    ) -> None:
        self._users: Collection[int] | None = None
        """Whose processes are let in; ``None``: the wire or TLS asks clients itself."""

        self._shown: list[str] = []
        """What clients show beside."""

        if secret:
            self._shown.append("show that they know the secret")
        if asks_for_certificates(tls):
            self._shown.append("show a certificate")
        self._refused: set[int] = set()
        if listener.family == socket.AF_UNIX:
            self._users = {0, os.geteuid()} if users is None else users
            return
        host = listener.getsockname()[0]
        check_exposure(host, secret, tls)
        if self._shown:
            return
        user = own_user()
        if user is None:
            raise ConfigError(
                f"it cannot be seen whose processes connect to {host}: serving there takes a"
                " secret, or TLS that asks clients for certificates"
            )
        self._users = {user}

    def __str__(self) -> str:
        known = [] if self._users is None else [processes_of(self._users)]
        return f"clients {' and '.join(known + self._shown)}"

    def check(self, stream: Stream) -> None:
        """Nothing, where the client is let in, or has still to show what the wire asks for.

        Raises:
            Refused: it is a process of another user, or it is not known of which.
        """
        if self._users is None:
            return
        user = stream.user
        if user in self._users:
            return
        if user is None:  # as of each client that has closed its end already
            raise Refused("it is not known whose process connects")
        if user not in self._refused and len(self._refused) < _NAMED:
            self._refused.add(user)
            log.warning("a process of user %d is refused: that takes a secret", user)
        raise Refused(f"a process of user {user} connects")


def processes_of(users: Collection[int], groups: Collection[int] = ()) -> str:
    """In words, of which users and groups clients are processes."""
    words = f"are processes of user {' or '.join(map(str, sorted(users)))}"
    return f"{words}, or of group {' or '.join(map(str, sorted(groups)))}" if groups else words


def announce(where: str, what: str, who: object) -> None:
    """Say in the log at which place a process listens, and how it knows its clients."""
    logging.getLogger("hexkv.listening").info("listening at %s (%s): %s", where, what, who)
