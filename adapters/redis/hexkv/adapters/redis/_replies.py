"""Translates error replies into the outcomes and errors of the ports."""

from __future__ import annotations

from dataclasses import dataclass

from hexkv.adapters.net.address import Address
from hexkv.ports import Corrupt, Failed, StoreError, StoreFull, StoreUnreachable


@dataclass(frozen=True, slots=True)
class Redirect:
    """Another server of the cluster has the key."""

    address: Address

    asking: bool
    """True if for this command only, while that server imports the slot."""


PASSING = frozenset(
    {
        b"BUSY",  # a script runs
        b"CLUSTERDOWN",
        b"LOADING",
        b"MASTERDOWN",
        b"MISCONF",  # it cannot write its snapshot, so it refuses writes
        b"NOREPLICAS",
        b"READONLY",  # a replica, since the last failover
        b"TRYAGAIN",
    }
)
"""Beginnings of replies to transient errors."""


def judged(reply: bytes) -> Redirect | Failed | Corrupt:
    """The redirect or outcome for one chunk, from an error reply without its first byte."""
    word, _, rest = reply.partition(b" ")
    if word in (b"MOVED", b"ASK"):
        redirect = _redirect(rest, asking=word == b"ASK")
        if redirect is not None:
            return redirect
    if word == b"WRONGTYPE":
        return Corrupt("a value that is no string")
    return Failed(error_of(reply))


def error_of(reply: bytes) -> StoreError:
    """The error of the ports for an error reply without its first byte."""
    word = reply.partition(b" ")[0]
    text = reply.decode("utf-8", "replace")
    if word == b"OOM":
        return StoreFull(text)
    if word in PASSING or b"max number of clients" in reply:
        return StoreUnreachable(text)
    return StoreError(text)


def _redirect(rest: bytes, *, asking: bool) -> Redirect | None:
    where = rest.partition(b" ")[2]
    host, _, port = where.rpartition(b":")
    if not (host and port.isdigit()):
        return None
    return Redirect(Address(host.decode("utf-8", "replace"), int(port)), asking)
