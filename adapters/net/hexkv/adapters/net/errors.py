"""What may go wrong with a connection.

* Exception
  + OutOfTime              the deadline passed
* StoreUnreachable
  + ConnectionBroken       there is no connection, or not any more
    + Untrusted              ... the other end shows no certificate that counts
  + BadMessage             the other end does not speak the protocol
"""

from __future__ import annotations

from hexkv.ports import Deadline, StoreUnreachable


class OutOfTime(Exception):
    """The deadline passed first."""


class ConnectionBroken(StoreUnreachable):
    """There is no connection, or not any more."""


class Untrusted(ConnectionBroken):
    """The other end shows no certificate that counts."""


class BadMessage(StoreUnreachable):
    """The other end does not speak the protocol: nothing more that it sends has a meaning."""


def time_left(deadline: Deadline) -> float:
    """Seconds until *deadline*, more than none.

    Raises:
        OutOfTime: it has passed.
    """
    seconds = deadline.at - deadline.clock.now()
    if seconds <= 0:
        raise OutOfTime("the deadline has passed")
    return seconds
