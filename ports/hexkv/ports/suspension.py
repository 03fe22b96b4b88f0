"""What listens at an address that goes over to another process."""

from __future__ import annotations

from typing import Protocol, runtime_checkable


@runtime_checkable
class SupportsSuspension(Protocol):
    """A channel, or a directory, whose address another process may take.

    One thread at a time calls it.
    """

    def suspend(self) -> None:
        """Serve nobody, and leave the address to others, until :meth:`resume`. Twice is allowed.

        Asking and reading from peers goes on. Nothing is lent any more when this returns.
        """
        ...

    def resume(self) -> None:
        """Serve again as before, at the same address. Nothing where it serves.

        Raises:
            ConfigError: somebody else is there.
            StoreError: it is closed.
        """
        ...
