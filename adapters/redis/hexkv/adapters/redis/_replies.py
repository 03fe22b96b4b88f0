"""What error replies mean, in the vocabulary of the ports."""

from __future__ import annotations

from dataclasses import dataclass

from hexkv.adapters.net.address import Address
from hexkv.ports import Corrupt, Failed, StoreError, StoreFull, StoreUnreachable


@dataclass(frozen=True, slots=True)
class Redirect:
    """Another server of the cluster has the key."""

    address: Address

    asking: bool
    """For this command only, while the slot is on its way there."""


PASSING = frozenset(
    {
        b"BUSY",  # a script runs
        b"CLUSTERDOWN",
        b"LOADING",
        b"MASTERDOWN",
        b"MISCONF",  # it cannot write its snapshot, so it takes no writes
        b"NOREPLICAS",
        b"READONLY",  # a replica, since the last failover
        b"TRYAGAIN",
    }
)
"""Replies of a server that may do better later."""


def judged(reply: bytes) -> Redirect | Failed | Corrupt:
    """What an error reply, without its first byte, says about one chunk."""
    word, _, rest = reply.partition(b" ")
    if word in (b"MOVED", b"ASK"):
        redirect = _redirect(rest, asking=word == b"ASK")
        if redirect is not None:
            return redirect
    if word == b"WRONGTYPE":
        return Corrupt("a value that is no string")
    return Failed(error_of(reply))


def error_of(reply: bytes) -> StoreError:
    """The error that an error reply, without its first byte, stands for."""
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
