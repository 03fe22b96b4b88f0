"""Registers S3 with hexkv. Imported at discovery, so it stays light."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from hexkv.adapters.s3.address import Endpoint, Location
from hexkv.plugins.clock import SystemClock
from hexkv.plugins.configuration.secret import NO_SECRET, Secret
from hexkv.plugins.configuration.values import FilePath
from hexkv.plugins.spec import AdapterSpec, OpenContext, SettingError, about, hookimpl
from hexkv.ports import Clock

if TYPE_CHECKING:
    from hexkv.adapters.net.tls import Trust
    from hexkv.adapters.s3._http import Http
    from hexkv.adapters.s3._signing import Credentials
    from hexkv.adapters.s3.back_door import S3Door

_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class S3Settings:
    """Settings of the store ``s3``."""

    url: str
    """``s3://bucket/prefix``: no keys."""

    endpoint: str = ""
    """``http[s]://host[:port]`` of any S3; empty for Amazon's of the region."""

    region: str = "us-east-1"
    """The region for signatures."""

    path_style: bool | None = None
    """True: the bucket is in the path; False: in the host name; ``None``: path, but not at
    Amazon's."""

    access_key: Secret = NO_SECRET
    """The access key; with the next. Empty: the keys of Amazon's default chain, by awscrt."""

    secret_key: Secret = NO_SECRET
    session_token: Secret = NO_SECRET

    client: Literal["auto", "http", "awscrt"] = "auto"
    """The client that moves frames: our own ``http``, or ``awscrt``. ``auto``: ``http``."""

    tls_ca: FilePath = ""
    """File of the certificates that sign servers'; empty for the system's."""

    tls_verify: bool = True
    """True if a server's certificate must be signed and have the server's name."""

    connections: int = 16
    """Connections at once, at most."""

    connect_timeout: float = 1.0
    """Seconds to wait for a connection, if the call's deadline is not earlier."""

    part_size: int = 64 * _MIB
    """Bytes of a part, if frames are moved in parts."""

    multipart_threshold: int = 64 * _MIB
    """Larger frames are written in parts; those larger than a part are read in parts."""

    present_ttl: float = 30.0
    """Seconds for which lookups remember that a chunk exists."""

    absent_ttl: float = 1.0
    """Seconds for which lookups remember that a chunk is absent."""

    def __post_init__(self) -> None:
        with about("url"):
            Location.parse(self.url)
        with about("endpoint"):
            _endpoint(self)
        if bool(self.access_key) != bool(self.secret_key):
            raise SettingError("access_key", "access_key and secret_key go together")
        if self.session_token and not self.access_key:
            raise SettingError("session_token", "a session_token is of keys that are given, too")
        for name in ("access_key", "secret_key", "session_token"):
            if not getattr(self, name).reveal().isprintable():
                raise SettingError(name, "keys are printable characters")
        if not _endpoint(self).tls and self.tls_ca:
            raise SettingError("tls_ca", "certificates are of use with https:// only")
        if not 1 <= self.connections <= 1024:
            raise SettingError("connections", "are from 1 to 1024")
        if not 0 < self.connect_timeout <= 3600:
            raise SettingError("connect_timeout", "is more than nothing, and an hour at most")
        if not 5 * _MIB <= self.part_size <= 1024 * _MIB:
            raise SettingError("part_size", "is from 5 MiB, which servers demand, to 1 GiB")
        if not self.part_size <= self.multipart_threshold <= 5120 * _MIB:
            raise SettingError("multipart_threshold", "is from part_size to 5 GiB")
        for name in ("present_ttl", "absent_ttl"):
            if not 0 <= getattr(self, name) <= 86_400:
                raise SettingError(name, "is from 0 to a day")


def _endpoint(settings: S3Settings) -> Endpoint:
    location = Location.parse(settings.url)
    return Endpoint.of(location, settings.endpoint, settings.region, by_path=settings.path_style)


def _keys(settings: S3Settings) -> Credentials | None:
    from hexkv.adapters.s3._signing import Credentials

    if not settings.access_key:
        return None
    keys = settings.access_key, settings.secret_key, settings.session_token
    return Credentials(*(key.reveal() for key in keys))


def _trust(settings: S3Settings) -> Trust:
    from hexkv.adapters.net.tls import Trust

    return Trust(settings.tls_ca, verify=settings.tls_verify)


def _http(settings: S3Settings, clock: Clock) -> Http:
    from hexkv.adapters.net.pool import Pool
    from hexkv.adapters.s3._credentials import Chain, chain_provider, given
    from hexkv.adapters.s3._http import Http
    from hexkv.adapters.s3._wire import HttpStream

    endpoint, keys = _endpoint(settings), _keys(settings)
    pool = Pool(
        endpoint.address,
        lambda stream, _: HttpStream(stream),
        tls=_trust(settings).context() if endpoint.tls else None,
        most=settings.connections,
        patience=settings.connect_timeout,
    )
    source = Chain(chain_provider(), clock) if keys is None else given(keys)
    return Http(endpoint, pool, source, clock)


def _open(settings: S3Settings, context: OpenContext) -> object:
    from hexkv.adapters.s3._bodies import Bodies, Parts
    from hexkv.adapters.s3._credentials import need_awscrt
    from hexkv.adapters.s3._crew import Crew
    from hexkv.adapters.s3._known import Known, Lives
    from hexkv.adapters.s3._plain import PlainBodies
    from hexkv.adapters.s3.store import S3Store

    http = _http(settings, context.clock)
    crew = Crew(settings.connections - 1)
    parts = Parts(settings.part_size, settings.multipart_threshold)
    plain = PlainBodies(http, crew, parts)
    bodies: Bodies = plain
    if settings.client == "awscrt":
        from hexkv.adapters.s3._crt import CrtBodies

        need_awscrt("client: awscrt needs it")
        bodies = CrtBodies(
            http.endpoint,
            _keys(settings),
            parts,
            connections=settings.connections,
            patience=settings.connect_timeout,
            trust=_trust(settings),
        )
    known = Known(context.clock, Lives(settings.present_ttl, settings.absent_ttl))
    location = Location.parse(settings.url)
    return S3Store(location, http, plain, bodies, crew, known, context.clock)


def _back_door(settings: S3Settings) -> S3Door:
    from hexkv.adapters.s3.back_door import S3Door

    clock = SystemClock()
    return S3Door(Location.parse(settings.url), _http(settings, clock), clock)


@hookimpl
def hexkv_adapters() -> Iterable[AdapterSpec]:
    return [
        AdapterSpec(
            "store",
            "s3",
            "S3 and what speaks like it: Amazon, Ceph, MinIO and others",
            _open,
            S3Settings,
            hint="pip install hexkv-s3[crt]",
            schemes=("s3",),
            back_door=_back_door,
            isolate="keys",
            renamed={"tls_authorities": "tls_ca"},
            contract=2,
        )
    ]
