"""Registers the channel and the store with hexkv. Imported at discovery, so it stays light."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import urlsplit

from hexkv.adapters.net.address import Address
from hexkv.plugins.channels import ChannelSettings
from hexkv.plugins.configuration.secret import NO_SECRET, Secret
from hexkv.plugins.configuration.values import FilePath
from hexkv.plugins.spec import AdapterSpec, OpenContext, SettingError, about, hookimpl


@dataclass(frozen=True, slots=True)
class NixlSettings(ChannelSettings):
    """Settings of the channel ``nixl``. UCX chooses the network."""

    listen: str = "127.0.0.1:0"
    """The address where peers negotiate reads; port 0 takes a free one."""

    advertise: str = ""
    """The host by which peers reach this one, if it is not that of *listen*."""

    def __post_init__(self) -> None:
        ChannelSettings.__post_init__(self)
        with about("listen"):
            Address.listening(self.listen)


@dataclass(frozen=True, slots=True)
class StorageSettings:
    """Settings of the store ``nixl``."""

    plugin: str = "POSIX"
    """NIXL's plug-in: ``POSIX``, ``GDS`` or ``GDS_MT`` for files, ``OBJ`` for an object store."""

    root: FilePath = ""
    """Of files: their directory, created if need be."""

    directory: Literal["disk", "fs"] = "disk"
    """The kind of directory: ``disk`` of one machine, ``fs`` of a file system that hosts share."""

    bucket: str = ""
    """Of objects; it must exist."""

    prefix: str = "hexkv/"
    """Of every object's name."""

    private: bool = False
    """Keep objects that only this process finds, until it ends: budgets and clearing need that,
    because NIXL lists no objects."""

    endpoint: str = ""
    """Of objects: ``http[s]://host[:port]`` of another server than Amazon's."""

    region: str = "us-east-1"
    """Of objects: the region for signatures."""

    access_key: Secret = NO_SECRET
    """Of objects: the access key, with the next. Empty: the keys of AWS's default places."""

    secret_key: Secret = NO_SECRET
    """See before."""

    options: dict[str, str] = field(default_factory=dict)
    """More options of the plug-in, named as in NIXL, such as ``use_uring: "true"``. No secrets."""

    staging_bytes: int = 256 << 20
    """Staging memory for frames: it bounds the bytes under way, and the largest frame."""

    def __post_init__(self) -> None:
        if not re.fullmatch("[A-Z0-9_]{1,32}", self.plugin):
            raise SettingError("plugin", "is a name in capital letters, for instance POSIX")
        if self.objects:
            if not re.fullmatch("[A-Za-z0-9][A-Za-z0-9._-]{1,61}[A-Za-z0-9]", self.bucket):
                raise SettingError("bucket", "names a bucket, which OBJ needs")
            if self.root:
                raise SettingError("root", "is of no use with OBJ")
            split = urlsplit(self.endpoint)
            if self.endpoint and (
                split.scheme not in ("http", "https")
                or not split.hostname
                or "@" in split.netloc
                or split.path.strip("/")
            ):
                raise SettingError("endpoint", "is http://host:port or https://host:port")
            if bool(self.access_key) != bool(self.secret_key):
                raise SettingError("access_key", "access_key and secret_key go together")
            if not re.fullmatch(r"[A-Za-z0-9 !$&'()+,./:;=@_-]{0,512}", self.prefix):
                raise SettingError("prefix", "has letters, digits and a few signs, 512 at most")
        else:
            if not self.root:
                raise SettingError("root", "names the directory, which plug-ins for files need")
            for name in ("bucket", "endpoint", "access_key", "secret_key", "private"):
                if getattr(self, name):
                    raise SettingError(name, "is of use with OBJ only")
        if not 1 << 20 <= self.staging_bytes <= 1 << 40:
            raise SettingError("staging_bytes", "is from 1 MiB to 1 TiB")

    @property
    def objects(self) -> bool:
        """True if chunks are objects, and not files."""
        return self.plugin == "OBJ"

    @property
    def given(self) -> dict[str, str]:
        """The options for NIXL's plug-in."""
        if not self.objects:
            return dict(self.options)
        found = {"bucket": self.bucket, "region": self.region, "req_checksum": "required"}
        if self.endpoint:
            split = urlsplit(self.endpoint)
            found |= {
                "endpoint_override": self.endpoint.rstrip("/"),
                "scheme": split.scheme,
                "use_virtual_addressing": "false",
            }
        if self.access_key:
            found["access_key"] = self.access_key.reveal()
            found["secret_key"] = self.secret_key.reveal()
        return found | self.options


def _open_storage(settings: StorageSettings, context: OpenContext) -> object:
    from hexkv.adapters.nixl.storage.files import NixlFileStore
    from hexkv.adapters.nixl.storage.mover import Mover
    from hexkv.adapters.nixl.storage.objects import NixlObjectStore
    from hexkv.adapters.nixl.storage.private import NixlPrivateObjects
    from hexkv.adapters.nixl.storage.staging import Staging
    from hexkv.plugins.file_store import open_files

    with about("plugin"):
        mover = Mover(settings.plugin, settings.given, Staging(settings.staging_bytes))
    try:
        if settings.objects and settings.private:
            return NixlPrivateObjects(mover, settings.prefix, context.clock, context.budget)
        if settings.objects:
            return NixlObjectStore(mover, settings.prefix)
        with about("root"):
            return NixlFileStore(open_files(settings.directory, settings.root, context), mover)
    except BaseException:
        mover.close()
        raise


def _open_nixl(settings: NixlSettings, context: OpenContext) -> object:
    from hexkv.adapters.net.peers.channel import Security
    from hexkv.adapters.net.security import RotatedSecret
    from hexkv.adapters.net.server.connection import Limits
    from hexkv.adapters.nixl.channel import NixlChannel

    return NixlChannel(
        Address.listening(settings.listen),
        context.clock,
        name=settings.own_name(context),
        advertise=settings.advertise,
        security=Security(settings.shared_secret(RotatedSecret)),
        limits=Limits(settings.max_frame, patience=settings.patience),
        connections=settings.connections,
        clients=settings.clients,
    )


@hookimpl
def hexkv_adapters() -> Iterable[AdapterSpec]:
    return [
        AdapterSpec(
            "channel",
            "nixl",
            "chunks between peers by NIXL and UCX, which takes RDMA where there is any",
            _open_nixl,
            NixlSettings,
            contract=2,
        ),
        AdapterSpec(
            "store",
            "nixl",
            "chunks in files or objects, by NIXL's plug-ins POSIX, OBJ and GDS",
            _open_storage,
            StorageSettings,
            hint="pip install hexkv-nixl[cuda12], or [cuda13]; both work without CUDA",
            isolate="keys",
            contract=2,
        ),
    ]
