"""The addresses that a process leaves to its successor, or takes back."""

from __future__ import annotations

import logging
from threading import Event, Thread

from hexkv.ports import ConfigError, StoreError, SupportsSuspension

log = logging.getLogger(__name__)

_RETURNING = 0.5
"""Seconds between two attempts to serve again while another process still does."""


class Addresses:
    """The parts of a process that listen at known addresses. Called by one thread at a time."""

    def __init__(self) -> None:
        self._parts: list[SupportsSuspension] = []
        self._over = Event()
        self._returning: Thread | None = None

    def add(self, part: object) -> None:
        """Add *part*, if it can leave its address."""
        if isinstance(part, SupportsSuspension):
            self._parts.append(part)

    def leave(self) -> None:
        """Leave them to the process that takes over, until :meth:`take_back`."""
        self.close()
        for part in self._parts:
            part.suspend()

    def take_back(self) -> None:
        """Serve there again: now, or as soon as no other process does."""
        self.close()
        if not self._back():
            # The successor may still be there, and end only now.
            self._over = Event()
            self._returning = Thread(target=self._return, name="hexkv peers", daemon=True)
            self._returning.start()

    def close(self) -> None:
        """Stop taking addresses back. Calling it twice is allowed."""
        self._over.set()
        returning, self._returning = self._returning, None
        if returning is not None:
            returning.join()

    def _back(self) -> bool:
        """True if all of them serve."""
        well = True
        for part in self._parts:
            try:
                part.resume()
            except ConfigError as error:
                log.warning("peers are not served: %s", error)
                well = False
            except StoreError:  # it has ended, and does not serve
                continue
        return well

    def _return(self) -> None:
        while not self._over.wait(_RETURNING):
            if self._back():
                return
