"""The service behind a store, which a test may break and mend."""

from __future__ import annotations

from typing import Final, Literal

from hexkv.contracts.faults.apart import ProxyApart
from hexkv.contracts.faults.proxy import FaultProxy

Ability = Literal["kill", "stall", "slow", "trickle", "cut", "garbage", "full"]
"""A way to break a service."""

GARBAGE: Final = 64
"""Bytes of garbage before a reply: more than any protocol's first header line needs to show."""


TRICKLE: Final = 8.0
"""Bytes of a reply per second: each comes in time, and all of them never."""


class Service:
    """The service behind a store, and the ways to break it.

    Subclass it, list in :attr:`can` the ways that work, and write those methods. The tests
    call no others, and undo each with its counterpart. Everything is undone after a test.
    :class:`BehindProxy` gives all but ``kill`` and ``full`` to any store that can be opened at an
    address.
    """

    can: frozenset[Ability] = frozenset()
    """``kill`` stands for ``start`` as well, ``stall`` for ``resume``, ``full`` for ``fill``."""

    def kill(self) -> None:
        """End it as a machine goes down: without a shutdown. Its data may be lost."""
        raise NotImplementedError

    def start(self) -> None:
        """Bring it back at the same place, ready for calls."""
        raise NotImplementedError

    def stall(self) -> None:
        """Make it send nothing more, and close no connection."""
        raise NotImplementedError

    def resume(self) -> None:
        """Let it continue where it stalled."""
        raise NotImplementedError

    def slow(self, seconds: float) -> None:
        """Make every answer take *seconds* longer, until it is mended."""
        raise NotImplementedError

    def trickle(self) -> None:
        """Send :data:`TRICKLE` bytes per second of each answer, until it is mended."""
        raise NotImplementedError

    def cut(self) -> None:
        """End every connection, now and as soon as it is made, until it is mended."""
        raise NotImplementedError

    def garbage(self) -> None:
        """Put random bytes before the next answers, until it is mended."""
        raise NotImplementedError

    def fill(self) -> None:
        """Leave it no room for another frame of 1 MiB, until it is mended."""
        raise NotImplementedError

    def mend(self) -> None:
        """Undo ``slow``, ``trickle``, ``cut``, ``garbage`` and ``fill``."""
        raise NotImplementedError


class BehindProxy(Service):
    """A service that is reached through a proxy; the store must be opened at its address.

    A subclass that starts the service itself adds ``kill`` and ``full``::

        class OwnRedis(BehindProxy):
            can = BehindProxy.can | {"kill"}

            def kill(self) -> None: ...
            def start(self) -> None: ...
    """

    can: frozenset[Ability] = frozenset({"stall", "slow", "trickle", "cut", "garbage"})

    def __init__(self, proxy: FaultProxy | ProxyApart) -> None:
        self.proxy = proxy

    def stall(self) -> None:
        self.proxy.stall()

    def resume(self) -> None:
        self.proxy.mend()

    def slow(self, seconds: float) -> None:
        self.proxy.latency(seconds)

    def trickle(self) -> None:
        self.proxy.trickle(TRICKLE)

    def cut(self) -> None:
        self.proxy.cut()

    def garbage(self) -> None:
        self.proxy.garbage(GARBAGE)

    def mend(self) -> None:
        self.proxy.mend()
