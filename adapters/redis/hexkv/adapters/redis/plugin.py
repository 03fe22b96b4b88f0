"""Registers Redis with hexkv. Imported at discovery, so it stays light."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from hexkv.adapters.net.address import Address
from hexkv.adapters.redis.address import PORT, Location
from hexkv.plugins.configuration.secret import NO_SECRET, Secret
from hexkv.plugins.configuration.values import FilePath
from hexkv.plugins.spec import AdapterSpec, BackDoor, OpenContext, SettingError, about, hookimpl

if TYPE_CHECKING:
    from hexkv.adapters.redis._routes import Route

_PATIENCE = 10.0
"""Seconds after which a server that does not answer the back door counts as gone."""


@dataclass(frozen=True, slots=True)
class _Servers:
    """The addresses of the servers, and the login."""

    url: str = "redis://localhost:6379/0"
    """``redis[s]://host[:port][/database]`` or ``unix:///path[?db=database]``: no password."""

    topology: Literal["single", "cluster", "sentinel"] = "single"
    """The server at the URL: a single one, a node of a cluster, or a sentinel."""

    others: tuple[str, ...] = ()
    """More nodes or sentinels to begin with, each ``host:port``."""

    service: str = "mymaster"
    """The sentinels' name of the master."""

    username: str = ""
    password: Secret = NO_SECRET
    sentinel_username: str = ""
    sentinel_password: Secret = NO_SECRET

    tls_ca: FilePath = ""
    """File of the certificates that sign servers'; empty for the system's."""

    tls_certificate: FilePath = ""
    """File of this client's certificate, if servers require one, and of its key."""

    tls_key: FilePath = ""
    """File of the key, if it is not in that of the certificate."""

    tls_verify: bool = True
    """True if a server's certificate must be signed and have the server's name."""

    prefix: str = "hexkv:"
    """Of every key."""

    def __post_init__(self) -> None:
        with about("url"):
            location = Location.parse(self.url)
        with about("others"):
            for other in self.others:
                Address.parse(other, PORT)
        if location.address.path and self.topology != "single":
            raise SettingError("topology", f"a {self.topology} is not behind a Unix socket")
        if self.others and self.topology == "single":
            raise SettingError("others", "are of a cluster, or sentinels")
        if location.database and self.topology == "cluster":
            raise SettingError("url", "a cluster has database 0 only")
        if self.tls_key and not self.tls_certificate:
            raise SettingError("tls_key", "goes together with tls_certificate")
        if not location.tls and (self.tls_ca or self.tls_certificate):
            why = "like tls_certificate, is of use with rediss:// only"
            raise SettingError("tls_ca", why)

    def route(self, patience: float) -> Route:
        """The route to the servers, with *patience* seconds to connect.

        Raises:
            ConfigError: a file cannot be used.
        """
        from hexkv.adapters.net.tls import Trust
        from hexkv.adapters.redis._routes import Cluster, Sentinels, Single
        from hexkv.adapters.redis._server import Login

        location = Location.parse(self.url)
        trust = Trust(self.tls_ca, self.tls_certificate, self.tls_key, self.tls_verify)
        login = Login(
            self.username,
            self.password,
            location.database,
            trust.context() if location.tls else None,
            patience,
        )
        addresses = [location.address, *(Address.parse(other, PORT) for other in self.others)]
        if self.topology == "cluster":
            return Cluster(addresses, login)
        if self.topology == "sentinel":
            guards = Login(self.sentinel_username, self.sentinel_password, 0, login.tls, patience)
            return Sentinels(addresses, self.service, guards, login)
        return Single(location.address, login)


@dataclass(frozen=True, slots=True)
class RedisSettings(_Servers):
    """Settings of the store ``redis``."""

    ttl: float | None = None
    """Seconds after which the server drops a chunk that was not written again; None: never."""

    connect_timeout: float = 1.0
    """Seconds to wait for a connection, if the call's deadline is not earlier."""

    def __post_init__(self) -> None:
        _Servers.__post_init__(self)
        if self.ttl is not None and not 0.001 <= self.ttl <= 1e9:
            raise SettingError("ttl", "is from a millisecond to thirty years, or null")
        if not 0 < self.connect_timeout <= 3600:
            raise SettingError("connect_timeout", "is more than nothing, and an hour at most")


@dataclass(frozen=True, slots=True)
class DirectorySettings(_Servers):
    """Settings of the directory ``redis``."""

    prefix: str = "hexkv-directory:"
    """Of every key; without braces, which have a meaning in a cluster."""

    ttl: float = 86_400.0
    """Seconds after which an entry expires; each node renews its own after half of them."""

    heartbeat: float = 1.0
    """Seconds between two signs of life of a node."""

    connect_timeout: float = 1.0
    """Seconds to wait for a connection, if the call's deadline is not earlier."""

    def __post_init__(self) -> None:
        _Servers.__post_init__(self)
        if "{" in self.prefix or "}" in self.prefix:
            raise SettingError("prefix", "has no braces")
        if not 60 <= self.ttl <= 1e9:
            raise SettingError("ttl", "is from a minute to thirty years")
        if not 0.05 <= self.heartbeat <= 600:
            raise SettingError("heartbeat", "is from 0.05 to 600 seconds")
        if not 0 < self.connect_timeout <= 3600:
            raise SettingError("connect_timeout", "is more than nothing, and an hour at most")


def _open(settings: RedisSettings, context: OpenContext) -> object:
    del context
    from hexkv.adapters.redis.store import RedisStore

    route = settings.route(settings.connect_timeout)
    return RedisStore(route, prefix=settings.prefix.encode(), ttl=settings.ttl)


def _open_directory(settings: DirectorySettings, context: OpenContext) -> object:
    from hexkv.adapters.redis.directory import RedisDirectory

    return RedisDirectory(
        settings.route(settings.connect_timeout),
        context.clock,
        prefix=settings.prefix.encode(),
        ttl=settings.ttl,
        heartbeat_seconds=settings.heartbeat,
    )


def _back_door(settings: RedisSettings) -> BackDoor | None:
    if settings.topology != "single":
        return None
    import redis

    from hexkv.adapters.redis.back_door import RedisDoor

    location = Location.parse(settings.url)
    address = location.address
    client = redis.Redis(
        host=address.host,
        port=address.port,
        unix_socket_path=address.path or None,
        db=location.database,
        username=settings.username or None,
        password=settings.password.reveal() or None,
        socket_timeout=_PATIENCE,
        ssl=location.tls,
        ssl_ca_certs=settings.tls_ca or None,
        ssl_certfile=settings.tls_certificate or None,
        ssl_keyfile=settings.tls_key or None,
        ssl_check_hostname=settings.tls_verify,
        ssl_cert_reqs="required" if settings.tls_verify else "none",
    )
    return RedisDoor(client, settings.prefix.encode())


RENAMED = {"tls_authorities": "tls_ca"}


@hookimpl
def hexkv_adapters() -> Iterable[AdapterSpec]:
    return [
        AdapterSpec(
            "store",
            "redis",
            "Redis or Valkey: one server, a cluster, or behind sentinels",
            _open,
            RedisSettings,
            requires=("redis",),
            hint="pip install hexkv-redis",
            schemes=("redis", "rediss", "unix"),
            back_door=_back_door,
            isolate={"prefix": "prefix"},
            renamed=RENAMED,
            contract=2,
        ),
        AdapterSpec(
            "directory",
            "redis",
            "who holds what, in a Redis or Valkey that stands already",
            _open_directory,
            DirectorySettings,
            requires=("redis",),
            hint="pip install hexkv-redis",
            schemes=("redis", "rediss", "unix"),
            renamed=RENAMED,
            contract=2,
        ),
    ]
