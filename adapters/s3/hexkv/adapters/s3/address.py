"""Addresses of objects: the bucket and prefix of a URL, and the server of the bucket."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import quote, urlsplit

from hexkv.adapters.net.address import Address
from hexkv.plugins.spec import SettingError
from hexkv.ports import KEY_BYTES, ChunkKey

_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,253}[A-Za-z0-9]")
_NAME = re.compile(rf"[0-9a-f]{{{2 * KEY_BYTES}}}")
_REGION = re.compile(r"[a-z0-9-]{1,64}")
_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Location:
    """The bucket, and the prefix of all object names in it."""

    bucket: str
    prefix: str

    @classmethod
    def parse(cls, url: str) -> Location:
        """The location of ``s3://bucket`` or ``s3://bucket/prefix``.

        Raises:
            ValueError: *url* has another form.
        """
        split = urlsplit(url)
        if split.scheme != "s3" or "@" in split.netloc:
            raise ValueError(
                "a URL is s3://bucket/prefix, without keys: there are settings for them"
            )
        if split.query or split.fragment:
            raise ValueError("a URL has no options: there are settings for them")
        if not _BUCKET.fullmatch(split.netloc):
            raise ValueError(f"{split.netloc!r} is no bucket: three characters at least")
        prefix = split.path.strip("/")
        if not prefix.isprintable() or len(prefix.encode()) > 512:
            raise ValueError("a prefix is printable, and has 512 bytes at most")
        # Servers and proxies interpret such paths differently.
        if prefix and {"", ".", ".."} & set(prefix.split("/")):
            raise ValueError("no part of a prefix is empty, '.' or '..'")
        return cls(split.netloc, f"{prefix}/" if prefix else "")

    def name(self, key: ChunkKey) -> str:
        """The name of the chunk's object."""
        return self.prefix + key.hex()

    def key(self, name: str) -> ChunkKey | None:
        """The key of the chunk whose object is *name*; None if it is not one of this store."""
        bare = name.removeprefix(self.prefix)
        if not name.startswith(self.prefix) or not _NAME.fullmatch(bare):
            return None
        return ChunkKey(bytes.fromhex(bare))


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The server of one bucket."""

    host: str
    port: int
    tls: bool

    authority: str
    """The value of the ``Host`` header, with the port unless it is the default one."""

    root: str
    """The beginning of every object's path: ``/``, or the bucket as well."""

    region: str

    @classmethod
    def of(cls, location: Location, url: str, region: str, *, by_path: bool | None) -> Endpoint:
        """The endpoint at *url*, or Amazon's of *region* if that is empty.

        Args:
            location: names the bucket.
            url: ``http[s]://host[:port]``, or empty.
            region: for signatures.
            by_path: True for the bucket in the path, False for it in the host name.
                ``None``: in the path, except at Amazon's.

        Raises:
            ValueError: *url* is something else.
        """
        if not _REGION.fullmatch(region):
            raise SettingError("region", "is no region")
        split = urlsplit(url or f"https://s3.{region}.amazonaws.com")
        if split.scheme not in _PORTS or not split.hostname or "@" in split.netloc:
            raise ValueError("an endpoint is http://host:port or https://host:port")
        if split.path.strip("/") or split.query or split.fragment:
            raise ValueError("an endpoint is a host and a port, nothing else")
        usual = _PORTS[split.scheme]
        port = usual if split.port is None else split.port
        if by_path is None:
            # No certificate of Amazon's covers a bucket's name with dots in it.
            by_path = bool(url) or "." in location.bucket
        host = split.hostname if by_path else f"{location.bucket}.{split.hostname}"
        shown = f"[{host}]" if ":" in host else host
        return cls(
            host,
            port,
            split.scheme == "https",
            shown if port == usual else f"{shown}:{port}",
            f"/{location.bucket}/" if by_path else "/",
            region,
        )

    @property
    def address(self) -> Address:
        """The address on which it listens."""
        return Address(self.host, self.port)

    def path(self, name: str) -> str:
        """The path of the object *name*, or of the bucket if that is empty."""
        return self.root + quote(name, safe="/-_.~")
