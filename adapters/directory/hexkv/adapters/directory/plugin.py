"""Registers the directories with hexkv. Imported at discovery, so it stays light."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hexkv.adapters.net.address import Address
from hexkv.plugins.configuration.secret import NO_SECRET, Secret
from hexkv.plugins.configuration.values import FilePath
from hexkv.plugins.spec import (
    AdapterSpec,
    CommandSpec,
    OpenContext,
    SettingError,
    about,
    hookimpl,
)
from hexkv.ports import Clock, ConfigError

if TYPE_CHECKING:
    from ssl import SSLContext

    from hexkv.adapters.directory.cell import Cell
    from hexkv.adapters.directory.client import RemoteDirectory
    from hexkv.adapters.directory.server import DirectoryServer
    from hexkv.adapters.directory.static import Asked
    from hexkv.adapters.net.security import SecretSource

_SCHEME = "hexkv-directory"


@dataclass(frozen=True, slots=True)
class _Access:
    """The settings for access to servers: a secret, and TLS."""

    secret: Secret = NO_SECRET
    """The secret that servers require; empty for none."""

    secret_file: FilePath = ""
    """A file that holds the secret instead. Line ends at its end do not count."""

    tls: bool = False
    """Encrypt. A server's certificate must be valid for the host in its address."""

    tls_ca: FilePath = ""
    """A file of authorities to trust instead of the system's."""

    tls_certificate: FilePath = ""
    """A file with this end's certificate and key, for a server that requires one."""

    def __post_init__(self) -> None:
        if self.secret and self.secret_file:
            raise SettingError("secret", "give secret or secret_file, not both")
        if (self.tls_ca or self.tls_certificate) and not self.tls:
            raise SettingError("tls", "tls_ca and tls_certificate mean nothing without it")

    def known(self) -> SecretSource:
        """Return the secret.

        Raises:
            ConfigError: its file cannot be used.
        """
        from hexkv.adapters.net.security import RotatedSecret

        if self.secret_file:
            with about("secret_file"):
                return RotatedSecret(self.secret_file)
        return self.secret.reveal().encode()

    def context(self) -> SSLContext | None:
        """Return the TLS context for connections to servers, or ``None``.

        Raises:
            ConfigError: a file cannot be used.
        """
        from hexkv.adapters.net.tls import Trust

        trust = Trust(self.tls_ca, self.tls_certificate, newest=True)
        return trust.context() if self.tls else None

    def client(self, address: str) -> RemoteDirectory:
        """Return the directory at *address*."""
        from hexkv.adapters.directory.client import RemoteDirectory

        place = Address.of_url(address, _SCHEME)
        return RemoteDirectory(place, secret=self.known(), tls=self.context())


@dataclass(frozen=True, slots=True)
class EmbeddedSettings(_Access):
    """Settings of the directory ``embedded``."""

    address: str = "127.0.0.1:7171"
    """``host:port`` of ``hexkv directory``."""

    second: str = ""
    """``host:port`` of a replica, which gets the same reports and is queried if the first fails."""

    def __post_init__(self) -> None:
        _Access.__post_init__(self)
        with about("address"):
            Address.of_url(self.address, _SCHEME)
        with about("second"):
            if self.second and Address.of_url(self.second, _SCHEME) == Address.of_url(
                self.address, _SCHEME
            ):
                raise SettingError("second", "is the first one again")


@dataclass(frozen=True, slots=True)
class StaticSettings(_Access):
    """Settings of the directory ``static``."""

    peers: tuple[str, ...] = ()
    """``host:port`` at which each other node listens; ``/path`` or ``@name`` over a channel within
    the machine."""

    over_channel: bool = False
    """True if *peers* are the addresses at which nodes serve their chunks, and are queried there:
    then nothing else listens. Secrets and TLS are the channel's."""

    listen: str = ""
    """``host:port`` at which this node answers the others; empty if it answers none."""

    tls_client_ca: FilePath = ""
    """A file of authorities that must have signed the certificates of others, where this node
    listens."""

    entries: int = 1 << 22
    """Chunks of this node in the directory at most."""

    def __post_init__(self) -> None:
        _Access.__post_init__(self)
        with about("peers"):
            for peer in self.peers:
                # Channels within a machine have names of sockets.
                if not (self.over_channel and peer.startswith(("/", "@"))):
                    Address.of_url(peer, _SCHEME)
        if self.listen:
            with about("listen"):
                Address.of_url(self.listen, _SCHEME)
        if self.over_channel and (self.listen or self.secret or self.secret_file or self.tls):
            raise SettingError("over_channel", "leaves listen, secrets and tls to the channel")
        if self.entries < 1:
            raise SettingError("entries", "must be at least 1")
        if self.tls_client_ca and not self.tls_certificate:
            raise SettingError("tls_client_ca", "needs tls_certificate")


def _open_embedded(settings: EmbeddedSettings, context: OpenContext) -> object:
    from hexkv.adapters.directory.replicas import ReplicatedDirectory

    first = settings.client(settings.address)
    if not settings.second:
        return first
    return ReplicatedDirectory([first, settings.client(settings.second)], context.clock)


def _open_static(settings: StaticSettings, context: OpenContext) -> object:
    from hexkv.adapters.directory.cell import Cell
    from hexkv.adapters.directory.local import LocalDirectory
    from hexkv.adapters.directory.static import StaticDirectory

    cell = Cell(context.clock, members=1, entries=settings.entries)
    serve = _serving(settings, cell, context.clock) if settings.listen else None
    peers = _asked(settings, context)
    return StaticDirectory(LocalDirectory(cell), peers, context.clock, serve=serve)


def _serving(settings: StaticSettings, cell: Cell, clock: Clock) -> Callable[[], DirectoryServer]:
    """Return a function that serves *cell* at the address of the settings.

    Raises:
        ConfigError: a file cannot be used.
    """
    from hexkv.adapters.directory.server import DirectoryServer
    from hexkv.adapters.net.server.server import listen
    from hexkv.adapters.net.tls import server_context

    place = Address.of_url(settings.listen, _SCHEME)
    secret, tls = settings.known(), None
    if settings.tls_certificate:
        tls = server_context(settings.tls_certificate, settings.tls_client_ca)

    def serve() -> DirectoryServer:
        with about("listen"):
            listener = listen(place.host, place.port)
            try:
                return DirectoryServer(listener, cell, clock, secret=secret, tls=tls)
            except BaseException:
                listener.close()
                raise

    return serve


def _asked(settings: StaticSettings, context: OpenContext) -> Sequence[Asked]:
    """Return the other nodes."""
    from hexkv.adapters.directory.asking import ChannelPeer

    if not settings.over_channel:
        return [settings.client(peer) for peer in settings.peers]
    if context.peers is None:
        with about("over_channel"):
            raise ConfigError("the configuration names no channel under `peers`")
    return [ChannelPeer(context.peers.channel, peer) for peer in settings.peers]


def _serve(arguments: Sequence[str]) -> int:
    from hexkv.adapters.directory.command import run

    return run(arguments)


@hookimpl
def hexkv_adapters() -> Iterable[AdapterSpec]:
    return [
        AdapterSpec(
            "directory",
            "embedded",
            "a directory that `hexkv directory` serves",
            _open_embedded,
            EmbeddedSettings,
            requires=("numpy",),
            hint="pip install hexkv-directory",
            schemes=(_SCHEME,),
            contract=2,
        ),
        AdapterSpec(
            "directory",
            "static",
            "a list of nodes, each of which is asked",
            _open_static,
            StaticSettings,
            requires=("numpy",),
            hint="pip install hexkv-directory",
            contract=2,
        ),
    ]


@hookimpl
def hexkv_commands() -> Iterable[CommandSpec]:
    return [CommandSpec("directory", "Serve which node holds which chunks", _serve)]
