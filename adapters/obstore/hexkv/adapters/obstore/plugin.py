"""Registers obstore with hexkv. Imported at discovery, so it stays light."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from hexkv.adapters.obstore.places import BucketPrefix
from hexkv.plugins.clock import SystemClock
from hexkv.plugins.configuration.secret import NO_SECRET, Secret
from hexkv.plugins.configuration.values import FilePath
from hexkv.plugins.spec import AdapterSpec, OpenContext, SettingError, about, hookimpl

if TYPE_CHECKING:
    from hexkv.adapters.obstore.back_door import ObjectDoor
    from obstore.store import ObjectStore

_KEYS = {"s3": ("access_key", "secret_key"), "az": ("account", "secret_key")}
"""Settings that must be given together or not at all."""


@dataclass(frozen=True, slots=True)
class ObstoreSettings:
    """Settings of the store ``obstore``."""

    url: str
    """``gs://bucket/prefix``, ``az://container/prefix``, ``s3://bucket/prefix``, ``file:///folder``."""

    endpoint: str = ""
    """``http[s]://host[:port]`` of another server than the cloud's own; Azure's may have a path."""

    region: str = "us-east-1"
    """Of S3: the region for signatures."""

    account: str = ""
    """Of Azure: the account of the container."""

    access_key: Secret = NO_SECRET
    """Of S3: the access key, with the next. Empty: the keys of the default places, by obstore."""

    secret_key: Secret = NO_SECRET
    """Of S3 and Azure."""

    service_account: FilePath = ""
    """Of Google: the file of the service account; empty: that of the default places."""

    anonymous: bool = False
    """True for requests without a signature."""

    tls_ca: FilePath = ""
    """File of the certificates that sign servers', beside the system's."""

    connections: int = 16
    """Requests at once, at most."""

    connect_timeout: float = 1.0
    """Seconds to wait for a connection, if the call's deadline is not earlier."""

    def __post_init__(self) -> None:
        with about("url"):
            place = BucketPrefix.parse(self.url)
        if self.endpoint:
            split = urlsplit(self.endpoint)
            if split.scheme not in ("http", "https") or not split.hostname or "@" in split.netloc:
                raise SettingError("endpoint", "is http://host:port or https://host:port")
            if place.scheme == "file":
                raise SettingError("endpoint", "a folder has none")
        given = {name: bool(getattr(self, name)) for name in _NAMES}
        allowed = {"s3": _NAMES[1:3], "az": _NAMES[::2], "gs": _NAMES[3:], "file": ()}[place.scheme]
        for name, there in given.items():
            if there and name not in allowed:
                raise SettingError(name, f"is of no use with {place.scheme}://")
        together = _KEYS.get(place.scheme, ())
        if len({given[name] for name in together}) > 1 and place.scheme == "s3":
            raise SettingError("access_key", "access_key and secret_key go together")
        if place.scheme == "az" and not self.account:
            raise SettingError("account", "is needed: the owner of the container")
        for name in ("access_key", "secret_key"):
            if not getattr(self, name).reveal().isprintable():
                raise SettingError(name, "keys are printable characters")
        if not 1 <= self.connections <= 1024:
            raise SettingError("connections", "are from 1 to 1024")
        if not 0 < self.connect_timeout <= 3600:
            raise SettingError("connect_timeout", "is more than nothing, and an hour at most")


_NAMES = ("account", "access_key", "secret_key", "service_account")


def _client(settings: ObstoreSettings) -> dict[str, Any]:
    from datetime import timedelta

    options: dict[str, Any] = {
        "allow_http": settings.endpoint.startswith("http://"),
        "connect_timeout": timedelta(seconds=settings.connect_timeout),
        # Each call has its own deadline; this timeout ends requests that no call waits for.
        "timeout": timedelta(hours=1),
    }
    if settings.tls_ca:
        options["root_certificate"] = Path(settings.tls_ca).read_text(encoding="utf-8")
    # The core retries: the library's own retries would ignore a call's deadline.
    return {"client_options": options, "retry_config": {"max_retries": 0}}


def _bucket(settings: ObstoreSettings) -> ObjectStore:
    """Obstore's store of the bucket."""
    from obstore.store import AzureStore, GCSStore, LocalStore, S3Store

    place = BucketPrefix.parse(settings.url)
    given: dict[str, Any] = {}
    if settings.anonymous:
        given["skip_signature"] = True
    if place.scheme == "file":
        return LocalStore(place.bucket, mkdir=True)
    given |= _client(settings)
    secret = settings.secret_key.reveal()
    if place.scheme == "s3":
        if settings.access_key:
            given |= {"access_key_id": settings.access_key.reveal(), "secret_access_key": secret}
        if settings.endpoint:
            given["endpoint"] = settings.endpoint
        # A digest of a frame costs more than sending it, and the core verifies each read. Each
        # chunk is deleted separately, because not all servers can delete several.
        given |= {"unsigned_payload": True, "disable_bulk_delete": True}
        return S3Store(place.bucket, region=settings.region, **given)
    if place.scheme == "az":
        given["account_name"] = settings.account
        if secret:
            given["account_key"] = secret
        if settings.endpoint:
            given["endpoint"] = settings.endpoint
        return AzureStore(place.bucket, **given)
    if settings.service_account:
        given["service_account"] = settings.service_account
    if settings.endpoint:
        given["base_url"] = settings.endpoint
    return GCSStore(place.bucket, **given)


def _open(settings: ObstoreSettings, context: OpenContext) -> object:
    from hexkv.adapters.obstore.requests import RequestLoop
    from hexkv.adapters.obstore.store import ObjectStorage

    place = BucketPrefix.parse(settings.url)
    return ObjectStorage(place, _bucket(settings), RequestLoop(settings.connections), context.clock)


def _back_door(settings: ObstoreSettings) -> ObjectDoor:
    from hexkv.adapters.obstore.back_door import ObjectDoor

    return ObjectDoor(BucketPrefix.parse(settings.url), _bucket(settings), SystemClock())


@hookimpl
def hexkv_adapters() -> Iterable[AdapterSpec]:
    return [
        AdapterSpec(
            "store",
            "obstore",
            "object stores of Google, Azure, Amazon and others, by the library obstore",
            _open,
            ObstoreSettings,
            requires=("obstore",),
            hint="pip install hexkv-obstore",
            schemes=("gs", "az"),
            back_door=_back_door,
            isolate="keys",
            renamed={"tls_authorities": "tls_ca"},
            contract=2,
        )
    ]
