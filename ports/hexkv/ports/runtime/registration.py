"""Memory that a process maps from another one, and the driver of a device that is to use it.

Copies between a GPU and memory that its driver does not know pass through a small buffer of the
driver's, at an eighth of the bus's speed. The adapter that maps such memory knows no device, and
the windows that drive one know no such memory; either may come first.
"""

from __future__ import annotations

import logging
import os
from threading import Lock
from typing import Protocol
from weakref import WeakSet

log = logging.getLogger(__name__)


class Registrar(Protocol):
    """Registers memory with a driver, which then uses it in place."""

    def register(self, address: int, size: int) -> None:
        """Pin a range of *size* bytes, all of which are mapped for reading and writing.

        Raises:
            OSError: the driver refuses.
        """
        ...

    def unregister(self, address: int) -> None:
        """End the registration of the range at *address*. Never raises."""
        ...


class Registrable(Protocol):
    """A range of mapped memory, which knows when it is unmapped."""

    def register(self, registrar: Registrar) -> None:
        """Register the range as a whole, until just before it is unmapped.

        Raises:
            OSError: the driver refuses.
        """
        ...


class Registrations:
    """The memory that a process has mapped, and the driver that registers it. For any thread."""

    def __init__(self) -> None:
        self.leave()

    def leave(self) -> None:
        """Begin anew in a forked child: memory, driver and a lock that is held are the parent's."""
        self._lock = Lock()
        self._registrar: Registrar | None = None
        self._waiting: WeakSet[Registrable] = WeakSet()

    def offer(self, memory: Registrable) -> None:
        """Have *memory* registered: now, or once there is a driver.

        Blocks while the driver pins the pages, for 0.7 s or so a GB. What it refuses is logged,
        and stays as it is.
        """
        with self._lock:
            if self._registrar is None:
                self._waiting.add(memory)
            else:
                _register(memory, self._registrar)

    def use(self, registrar: Registrar) -> None:
        """Register all memory that was offered and will be. Only the first call does anything.

        Blocks as :meth:`offer`.
        """
        if self._registrar is not None:
            return
        with self._lock:
            if self._registrar is None:
                self._registrar = registrar
                try:
                    for memory in list(self._waiting):
                        self._waiting.discard(memory)
                        _register(memory, registrar)
                except BaseException:
                    self._registrar = None  # the next call goes on
                    raise


def _register(memory: Registrable, registrar: Registrar) -> None:
    try:
        memory.register(registrar)
    except OSError as error:
        log.warning("mapped memory is not pinned, and a GPU's copies of it are slow: %s", error)


REGISTRATIONS = Registrations()
"""Those of this process."""

os.register_at_fork(after_in_child=REGISTRATIONS.leave)
