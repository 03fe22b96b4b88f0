"""A bad network before somebody's server, as a service that can be broken."""

from __future__ import annotations

from hexkv.contracts.faults.proxy import FaultProxy


class Proxied:
    """What can be done to a service without doing anything to it: see :class:`FaultProxy`."""

    can = frozenset({"cut", "garbage", "slow", "stall"})

    def __init__(self, proxy: FaultProxy) -> None:
        self._proxy = proxy

    def kill(self) -> None:
        """Never: it is not ours."""
        raise NotImplementedError("a service behind a proxy cannot be killed")

    def start(self) -> None:
        """Never: it was not killed."""
        raise NotImplementedError("a service behind a proxy cannot be started")

    def full(self) -> None:
        """Never: others need the room."""
        raise NotImplementedError("a service behind a proxy cannot be filled up")

    def stall(self) -> None:
        self._proxy.stall()

    def resume(self) -> None:
        self._proxy.mend()

    def slow(self, seconds: float) -> None:
        self._proxy.latency(seconds)

    def cut(self) -> None:
        self._proxy.cut()

    def garbage(self) -> None:
        self._proxy.garbage(64)

    def mend(self) -> None:
        self._proxy.mend()
