"""Both ends of administration over a socket, from its settings."""

from __future__ import annotations

import os
import ssl
from contextlib import ExitStack
from typing import TYPE_CHECKING

from hexkv.adapters.admin.client import RemoteAdministration
from hexkv.adapters.admin.server import AdminServer
from hexkv.adapters.admin.settings import SocketSettings, parse_address
from hexkv.adapters.net.security import RotatedSecret, SecretSource, is_local
from hexkv.adapters.net.server.client_check import Allowed, announce, processes_of
from hexkv.adapters.net.server.listening import Listener
from hexkv.adapters.net.tls import Trust, server_context
from hexkv.plugins.spec import about
from hexkv.ports import AdminAccess, Administration, Clock, ConfigError


class SocketAccess:
    """See :class:`hexkv.ports.AdminAccess`."""

    def __init__(self, settings: SocketSettings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._address = parse_address(settings.address)

    def serve(self, administration: Administration) -> AdminServer:
        settings = self._settings
        secret = self._secret()
        tls: ssl.SSLContext | None = None
        if settings.tls_certificate:
            with about("tls_certificate"):
                tls = server_context(settings.tls_certificate)
        with ExitStack() as opened:
            listener = opened.enter_context(Listener(self._address, int(settings.mode, 8)))
            if not (self._address.path or tls or is_local(listener.host)):
                raise ConfigError(
                    f"{listener.host} can be reached from other machines: serving there takes"
                    " tls_certificate"
                )
            opened.pop_all()
        announce(str(self._address), "hexkv admin", f"clients {self._known(secret)}")
        return AdminServer(
            administration,
            listener,
            self._clock,
            secret=secret,
            tls=tls,
            allowed=Allowed(frozenset({0, *settings.uids}), frozenset(settings.gids)),
            clients=settings.clients,
            verbs=settings.verbs,
        )

    def _known(self, secret: SecretSource) -> str:
        """Return the checks of clients, in words."""
        shown = ["show that they know the secret"] if secret else []
        if self._address.path:
            users = {0, os.geteuid(), *self._settings.uids}
            shown.insert(0, processes_of(users, self._settings.gids))
        return " and ".join(shown)

    def connect(self) -> RemoteAdministration:
        settings = self._settings
        tls = None
        if settings.tls_ca:
            tls = Trust(settings.tls_ca, newest=True).context()
        remote = RemoteAdministration(self._address, self._clock, secret=self._secret(), tls=tls)
        remote.status()
        return remote

    def _secret(self) -> SecretSource:
        if self._settings.secret_file:
            with about("secret_file"):
                return RotatedSecret(self._settings.secret_file)
        return self._settings.secret.reveal().encode()


if TYPE_CHECKING:

    def _is_access(access: SocketAccess) -> AdminAccess:
        return access
