"""The barrier at which all sessions of a server stop, so that another process goes on with them."""

from __future__ import annotations

import os


class Barrier:
    """Keeps all sessions of a server from reading, while it is down."""

    def __init__(self) -> None:
        self.down = False
        self._event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def fileno(self) -> int:
        """Readable while it is down."""
        return self._event

    def lower(self) -> None:
        """Stop all reading."""
        self.down = True
        os.eventfd_write(self._event, 1)

    def lift(self) -> None:
        """Sessions may read again, after ``Session.resume``."""
        os.eventfd_read(self._event)
        self.down = False

    def close(self) -> None:
        """Calling it twice is allowed."""
        if self._event >= 0:
            os.close(self._event)
            self._event = -1
