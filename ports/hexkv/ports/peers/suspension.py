"""Suspension of a listener, so that another process can take over its address."""

from __future__ import annotations

from typing import Protocol, runtime_checkable


@runtime_checkable
class SupportsSuspension(Protocol):
    """A channel, or a directory, whose address another process may take over.

    One thread at a time calls it.
    """

    def suspend(self) -> None:
        """Stop serving and free the address, until :meth:`resume`. Calling it twice is allowed.

        Queries to and reads from peers still work. No lease is lent when this returns.
        """
        ...

    def resume(self) -> None:
        """Serve again as before, at the same address. Does nothing if it serves.

        Raises:
            ConfigError: another process listens there.
            StoreError: it is closed.
        """
        ...
