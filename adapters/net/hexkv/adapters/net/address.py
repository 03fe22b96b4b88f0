"""The address of a server. Imports no socket, so settings may be checked with it at discovery."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit


@dataclass(frozen=True, slots=True)
class Address:
    """A TCP port, or the path of a Unix socket; an initial zero byte makes it abstract."""

    host: str = ""
    port: int = 0
    path: str = ""

    @classmethod
    def parse(cls, text: str, port: int | None = None) -> Address:
        """Return the address of ``host:port`` or ``[v6]:port``.

        Args:
            text: the address.
            port: of a *text* without one; ``None``: it must have one.

        Raises:
            ValueError: *text* is no address, or its port is not in 1 to 65535.
        """
        if "@" in text:  # the part before it is a secret, so it is not repeated
            raise ValueError("an address has no user and no password in it: write host:port")
        split = urlsplit(f"//{text}")
        if split.netloc != text or not split.hostname:
            raise ValueError(f"{text!r} is no address: write host:port")
        given = port if split.port is None else split.port
        if given is None:
            raise ValueError(f"{text!r} has no port: write host:port")
        if not given:
            raise ValueError(f"{text!r} has no port between 1 and 65535")
        return cls(split.hostname, given)

    @classmethod
    def listening(cls, text: str) -> Address:
        """Return the address of *text*, whose port may be 0: any free one.

        Raises:
            ValueError: it is none.
        """
        host, colon, port = text.rpartition(":")
        return cls(cls.parse(host, 1).host, 0) if colon and port == "0" else cls.parse(text)

    @classmethod
    def of_url(cls, text: str, scheme: str) -> Address:
        """Return the address of ``scheme://host:port``, with or without the scheme.

        Raises:
            ValueError: *text* is something else.
        """
        try:
            return cls.parse(text.removeprefix(f"{scheme}://").rstrip("/"))
        except ValueError as error:
            raise ValueError(f"expected {scheme}://host:port ({error})") from None

    def __str__(self) -> str:
        return self.path.replace("\0", "@") or (
            f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"
        )
