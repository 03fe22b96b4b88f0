"""Places of objects: the cloud, the bucket and the prefix of a URL."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from hexkv.ports import KEY_BYTES, ChunkKey

SCHEMES = ("gs", "az", "s3", "file")

_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,220}[A-Za-z0-9]")
_PREFIX = re.compile(r"[A-Za-z0-9 !$&'()+,./:;=@_-]*")
_NAME = re.compile(rf"[0-9a-f]{{{2 * KEY_BYTES}}}")


@dataclass(frozen=True, slots=True)
class BucketPrefix:
    """A bucket, and the prefix of all object names in it."""

    scheme: str
    bucket: str
    """For ``file`` the folder."""

    prefix: str
    """Ends with a slash, or is empty."""

    @classmethod
    def parse(cls, url: str) -> BucketPrefix:
        """The place of ``gs://bucket/prefix``, or of the same form with another scheme.

        Raises:
            ValueError: *url* has another form.
        """
        split = urlsplit(url)
        if split.scheme not in SCHEMES or "@" in split.netloc:
            known = ", ".join(f"{scheme}://" for scheme in SCHEMES)
            raise ValueError(f"a URL begins with one of {known} and has no keys in it")
        if split.query or split.fragment:
            raise ValueError("a URL has no options: there are settings for them")
        if split.scheme == "file":
            if split.netloc or not split.path.startswith("/") or split.path.strip("/") == "":
                raise ValueError("a folder is file:///and/its/path")
            return cls("file", split.path.rstrip("/"), "")
        if not _BUCKET.fullmatch(split.netloc):
            raise ValueError(f"{split.netloc!r} is no bucket: three characters at least")
        prefix = split.path.strip("/")
        # The library rewrites some characters; servers interpret others differently.
        if not _PREFIX.fullmatch(prefix) or len(prefix) > 512:
            raise ValueError("a prefix has letters, digits and a few signs, and 512 at most")
        if prefix and {"", ".", ".."} & set(prefix.split("/")):
            raise ValueError("no part of a prefix is empty, '.' or '..'")
        return cls(split.scheme, split.netloc, f"{prefix}/" if prefix else "")

    def name(self, key: ChunkKey) -> str:
        """The name of the chunk's object."""
        return self.prefix + key.hex()

    def key(self, name: str) -> ChunkKey | None:
        """The key of the chunk whose object is *name*; None if it is not one of this store."""
        bare = name.removeprefix(self.prefix)
        if not name.startswith(self.prefix) or not _NAME.fullmatch(bare):
            return None
        return ChunkKey(bytes.fromhex(bare))
