"""Messages of numbered requests: a head of ``HEAD.size`` bytes, and a body.

All numbers are little-endian::

    length:u32  verb:u16  status:u16  request:u64  generation:u64  seconds:f64  | body

Requests are numbered by the client and answered in any order; number 0 is of messages without an
answer. The generation is of one life of a server: a message with another one is refused. A request
that takes longer may be answered more than once: with the part known so far (``BEGUN``), and then
with all of it. *seconds* is the time for which the client waits.
"""

from __future__ import annotations

from enum import IntEnum
from struct import Struct
from typing import NamedTuple

from hexkv.adapters.net.errors import BadMessage

HEAD = Struct("<IHHQQd")


class Status(IntEnum):
    """The outcome of a request."""

    DONE = 0
    BEGUN = 1
    """The part that is known by now; the rest follows under the same number."""

    INVALID = 2
    """The request is invalid; the body gives the reason."""

    BUSY = 3
    """The client has too much under way."""

    CLOSED = 4
    """The server ends."""
    FAILED = 5


class Head(NamedTuple):
    """The head of a message."""

    length: int
    verb: int
    status: int
    request: int
    generation: int
    seconds: float


def head(data: bytes, most: int) -> Head:
    """Read the head of a message, whose body has *most* bytes at most.

    Raises:
        BadMessage: its body is too long.
    """
    found = Head(*HEAD.unpack(data))
    if found.length > most:
        raise BadMessage(f"a body of {found.length} bytes")
    return found


def message(
    verb: int,
    request: int,
    generation: int,
    body: bytes = b"",
    *,
    status: int = 0,
    seconds: float = 0.0,
) -> bytes:
    """Return a whole message."""
    return HEAD.pack(len(body), verb, status, request, generation, seconds) + body
