"""Tells hexkv about Redis. Imported at discovery, so it stays light."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from hexkv.adapters.net.address import Address
from hexkv.adapters.redis.address import PORT, Location
from hexkv.plugins.secret import NO_SECRET, Secret
from hexkv.plugins.spec import AdapterSpec, BackDoor, OpenContext, SettingError, about, hookimpl

_PATIENCE = 10.0
"""Seconds after which a server that says nothing to the back door counts as gone."""


@dataclass(frozen=True, slots=True)
class RedisSettings:
    """Settings of the store ``redis``."""

    url: str = "redis://localhost:6379/0"
    """``redis[s]://host[:port][/database]`` or ``unix:///path[?db=database]``: no password."""

    topology: Literal["single", "cluster", "sentinel"] = "single"
    """What is at the URL: the one server, a node of a cluster, or a sentinel."""

    others: tuple[str, ...] = ()
    """More nodes or sentinels to begin with, each ``host:port``."""

    service: str = "mymaster"
    """What sentinels call the master."""

    username: str = ""
    password: Secret = NO_SECRET
    sentinel_username: str = ""
    sentinel_password: Secret = NO_SECRET

    tls_authorities: str = ""
    """File of the certificates that sign servers'; empty for the system's."""

    tls_certificate: str = ""
    """File of this client's certificate, where servers ask for one."""

    tls_key: str = ""
    tls_verify: bool = True
    """Whether a server's certificate must be signed and have the server's name."""

    prefix: str = "hexkv:"
    """Of every key."""

    ttl: float | None = None
    """Seconds after which the server forgets a chunk that was not written again."""

    connect_timeout: float = 1.0
    """Seconds to wait for a connection, where the call's deadline does not come first."""

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
        if bool(self.tls_certificate) != bool(self.tls_key):
            raise SettingError("tls_certificate", "a certificate and its key go together")
        if not location.tls and (self.tls_authorities or self.tls_certificate):
            raise SettingError("tls_authorities", "certificates are of use with rediss:// only")
        if self.ttl is not None and not 0.001 <= self.ttl <= 1e9:
            raise SettingError("ttl", "is from a millisecond to thirty years, or null")
        if not 0 < self.connect_timeout <= 3600:
            raise SettingError("connect_timeout", "is more than nothing, and an hour at most")


def _open(settings: RedisSettings, context: OpenContext) -> object:
    del context
    from hexkv.adapters.net.tls import Trust
    from hexkv.adapters.redis._routes import Cluster, Route, Sentinels, Single
    from hexkv.adapters.redis._server import Login
    from hexkv.adapters.redis.store import RedisStore

    location = Location.parse(settings.url)
    trust = Trust(
        settings.tls_authorities,
        settings.tls_certificate,
        settings.tls_key,
        settings.tls_verify,
    )
    login = Login(
        settings.username,
        settings.password,
        location.database,
        trust.context() if location.tls else None,
        settings.connect_timeout,
    )
    addresses = [location.address, *(Address.parse(other, PORT) for other in settings.others)]
    route: Route
    match settings.topology:
        case "single":
            route = Single(location.address, login)
        case "cluster":
            route = Cluster(addresses, login)
        case "sentinel":
            guards = Login(
                settings.sentinel_username,
                settings.sentinel_password,
                0,
                login.tls,
                settings.connect_timeout,
            )
            route = Sentinels(addresses, settings.service, guards, login)
    return RedisStore(route, prefix=settings.prefix.encode(), ttl=settings.ttl)


def _back_door(settings: RedisSettings) -> BackDoor | None:
    if settings.topology != "single":
        return None
    import redis

    from hexkv.adapters.redis.back_door import BackDoor

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
        ssl_ca_certs=settings.tls_authorities or None,
        ssl_certfile=settings.tls_certificate or None,
        ssl_keyfile=settings.tls_key or None,
        ssl_check_hostname=settings.tls_verify,
        ssl_cert_reqs="required" if settings.tls_verify else "none",
    )
    return BackDoor(client, settings.prefix.encode())


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
            contract=2,
        )
    ]
