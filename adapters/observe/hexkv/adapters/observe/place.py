"""The address of a collector of traces. Imports no library, so settings can be checked."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit


@dataclass(frozen=True, slots=True)
class Collector:
    """The address of a collector."""

    host: str
    port: int
    path: str
    tls: bool

    @classmethod
    def parse(cls, text: str) -> Collector:
        """Return the collector of a URL; the default ports are those of OTLP and of HTTPS.

        Raises:
            ValueError: it is none.
        """
        parts = urlsplit(text)
        if "@" in parts.netloc:  # the URL is not repeated in the error
            raise ValueError("a URL with a user or a password in it: give traces_authorization")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{text!r} is no URL of http or https")
        if parts.query or parts.fragment:
            raise ValueError(f"{text!r} has more than a path")
        tls = parts.scheme == "https"
        path = parts.path if parts.path not in ("", "/") else "/v1/traces"
        return cls(parts.hostname, parts.port or (443 if tls else 4318), path, tls)

    def __str__(self) -> str:
        return f"{self.host}:{self.port}{self.path}"
