"""Addresses of servers, parsed from configurations."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from hexkv.adapters.net.address import Address

PORT = 6379


@dataclass(frozen=True, slots=True)
class Location:
    """The contents of a URL: address, database, and TLS."""

    address: Address
    database: int
    tls: bool

    @classmethod
    def parse(cls, url: str) -> Location:
        """The location of ``redis[s]://host[:port][/database]`` or ``unix:///path[?db=database]``.

        Raises:
            ValueError: *url* is neither, or holds a password: URLs are printed.
        """
        split = urlsplit(url)
        if "@" in split.netloc:
            raise ValueError("no user or password in the URL: there are settings for them")
        if split.scheme == "unix":
            return _of_socket(split)
        if split.scheme not in ("redis", "rediss"):
            raise ValueError("a URL begins with redis://, rediss:// or unix://")
        if split.query or split.fragment:
            raise ValueError("a URL has no options: there are settings for them")
        database = _database(split.path.removeprefix("/") or "0")
        return cls(Address.parse(split.netloc, PORT), database, split.scheme == "rediss")


def _of_socket(split: SplitResult) -> Location:
    options = dict(parse_qsl(split.query, keep_blank_values=True))
    database = _database(options.pop("db", "0"))
    if options or split.fragment or split.netloc or not split.path.startswith("/"):
        raise ValueError("a Unix socket is unix:///path or unix:///path?db=1")
    return Location(Address(path=unquote(split.path)), database, tls=False)


def _database(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise ValueError(f"{text!r} is no database: they are numbers")
    return int(text)
