"""Errors of a connection.

* Exception
  + OutOfTime              the deadline passed
* StoreUnreachable
  + ConnectionBroken       there is no connection, or it has ended
    + Untrusted              ... the other end shows no valid certificate
  + BadMessage             the other end does not speak the protocol
"""

from __future__ import annotations

from hexkv.ports import Deadline, StoreUnreachable


class OutOfTime(Exception):
    """The deadline passed first."""


class ConnectionBroken(StoreUnreachable):
    """There is no connection, or it has ended."""


class Untrusted(ConnectionBroken):
    """The other end shows no valid certificate."""


class BadMessage(StoreUnreachable):
    """The other end does not speak the protocol: its further bytes have no meaning."""


class Refused(StoreUnreachable):
    """The other end speaks another version, or does not know the same secret."""


def time_left(deadline: Deadline) -> float:
    """Return the seconds until *deadline*, more than 0.

    Raises:
        OutOfTime: it has passed.
    """
    seconds = deadline.at - deadline.clock.now()
    if seconds <= 0:
        raise OutOfTime("the deadline has passed")
    return seconds
