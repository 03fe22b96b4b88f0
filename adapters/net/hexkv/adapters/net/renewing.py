"""Values made from files, and made anew once the files have changed."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from threading import Lock
from typing import Generic, TypeVar

from hexkv.ports import ConfigError

log = logging.getLogger(__name__)

T = TypeVar("T")

_State = tuple[tuple[int, int, int, int] | None, ...]


class Renewing(Generic[T]):
    """A value that files determine. Safe from any thread.

    Args:
        what: the name of the value, for log lines.
        files: that determine it; a missing one is another state of it.
        make: returns the value.

    Raises:
        ConfigError: the files give no value.
    """

    def __init__(self, what: str, files: Sequence[str], make: Callable[[], T]) -> None:
        self._what = what
        self._files = files
        self._make = make
        self._lock = Lock()
        self._state = self._look()
        self._value = make()

    def current(self) -> T:
        """Return the value of the files as they are now.

        Files that give no value, as two of which only one has been replaced, are one line of the
        log, and the former value is kept.
        """
        state = self._look()
        if state == self._state:
            return self._value
        with self._lock:
            if state != self._state:
                self._state = state  # before they are read: a later change is another state
                try:
                    self._value = self._make()
                except ConfigError as error:
                    log.warning("%s: the former one is kept: %s", self._what, error)
                else:
                    log.info("%s: read anew", self._what)
            return self._value

    def _look(self) -> _State:
        return tuple(map(_state_of, self._files))


def _state_of(file: str) -> tuple[int, int, int, int] | None:
    try:
        found = os.stat(file)
    except OSError:
        return None
    # Of a change of the mode, too: that may be why a file could not be used.
    return found.st_dev, found.st_ino, found.st_size, found.st_ctime_ns
