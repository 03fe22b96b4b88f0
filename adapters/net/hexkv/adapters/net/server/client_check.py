"""The check of clients that connect to a listener, before anything is read from them.

A wire with a secret checks it, and TLS that requires certificates checks those. Without either a
listener accepts processes of its own user alone: the kernel knows their user, of a Unix socket by
``SO_PEERCRED`` and of a connection over loopback by its tables. Loopback alone proves nothing:
every user of the machine, and every container of a pod, reaches it.
"""

from __future__ import annotations

import logging
import os
import socket
import ssl
from collections.abc import Collection
from dataclasses import dataclass

from hexkv.adapters.net.errors import Refused
from hexkv.adapters.net.owners import own_user
from hexkv.adapters.net.security import SecretSource, asks_for_certificates, check_exposure
from hexkv.adapters.net.stream import Stream
from hexkv.ports import ConfigError

log = logging.getLogger(__name__)

_NAMED = 16
"""Users whose refusal is logged, at most."""


@dataclass(frozen=True, slots=True)
class Allowed:
    """The processes that may connect to a Unix socket, beside those of this user."""

    uids: Collection[int] = frozenset()
    gids: Collection[int] = frozenset()
    """Primary groups of processes."""

    def lets_in(self, uid: int, gid: int) -> bool:
        """True if a process of this user and group may connect."""
        return uid == os.geteuid() or uid in self.uids or gid in self.gids


OWN, OWN_AND_ROOT = Allowed(), Allowed(frozenset({0}))


class ClientCheck:
    """Checks the clients of one listener. Safe from any thread.

    Args:
        listener: of the clients.
        secret: that the wire requires; empty for none.
        tls: of the connections.
        users: whose processes may connect to a Unix socket; ``None``: this user's, and root's.

    Raises:
        ConfigError: other machines could connect, or processes of other users could not be
            distinguished from those of this one, and neither a secret nor a certificate is
            required.
    """

    def __init__(
        self,
        listener: socket.socket,
        secret: SecretSource = b"",
        tls: ssl.SSLContext | None = None,
        users: Collection[int] | None = None,
    ) -> None:
        self._users: Collection[int] | None = None
        """Users whose processes are accepted; ``None``: the wire or TLS checks clients."""

        self._shown: list[str] = []
        """Other proofs that clients show."""

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
        """Accept the client, or leave it to the checks of the wire.

        Raises:
            Refused: it is a process of another user, or of an unknown one.
        """
        if self._users is None:
            return
        user = stream.user
        if user in self._users:
            return
        if user is None:  # as for each client that has closed its end already
            raise Refused("it is not known whose process connects")
        if user not in self._refused and len(self._refused) < _NAMED:
            self._refused.add(user)
            log.warning("a process of user %d is refused: that takes a secret", user)
        raise Refused(f"a process of user {user} connects")


def processes_of(users: Collection[int], groups: Collection[int] = ()) -> str:
    """Describe in words the users and groups of clients' processes."""
    words = f"are processes of user {' or '.join(map(str, sorted(users)))}"
    return f"{words}, or of group {' or '.join(map(str, sorted(groups)))}" if groups else words


def announce(where: str, what: str, who: object) -> None:
    """Log the place at which a process listens, and how it checks its clients."""
    logging.getLogger("hexkv.listening").info("listening at %s (%s): %s", where, what, who)
