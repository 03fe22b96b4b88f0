"""Copies made by a worker while the caller proceeds, on windows that allow it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from threading import Condition, RLock

from hexkv.ports import Deadline, DeviceKV, Executor, InvalidRequest, StoreUnreachable, Transfer

log = logging.getLogger(__name__)

LANE = "copies"
"""The executor's lane with one worker: a second would only share the memory's bandwidth."""


def in_background(device: DeviceKV) -> bool:
    """True if any thread may copy for *device*; see :class:`hexkv.ports.SupportsBackground`."""
    try:
        return getattr(device, "background", False) is True
    except Exception:
        log.exception("a window does not say whether it copies in the background")
        return False


def open_lane(executor: Executor) -> None:
    """Start a worker for copies. If none starts, each caller makes its copies."""
    with suppress(StoreUnreachable):
        executor.open(LANE, 1)


class BackgroundCopy:
    """A transfer made by a worker, which can be withdrawn until the worker has begun.

    A caller that needs it sooner withdraws it and copies in its own thread: so no caller waits for
    a busy worker, and no copy is lost without one.
    """

    __slots__ = ("_begun", "_changed", "_executor", "_failure", "_lock", "_made", "_move", "_over")

    def __init__(self, executor: Executor, move: Callable[[], Transfer]) -> None:
        """Let a worker call *move*, once this is submitted."""
        self._executor = executor
        self._move: Callable[[], Transfer] | None = move
        self._made: Transfer | None = None
        self._failure: Exception | None = None
        self._begun = False
        self._over = False
        # Entered directly, not through the condition: no signal comes between it and the body.
        self._lock = RLock()
        self._changed = Condition(self._lock)

    def submit(self) -> None:
        """Queue it for a worker, unless it was withdrawn."""
        if self._move is not None:
            self._executor.run(LANE, self._step)

    def withdraw(self) -> bool:
        """Prevent the copy, for good. Return False if a worker has begun."""
        with self._lock:
            if not self._begun:
                self._move = None
            return not self._begun

    def wait(self, deadline: Deadline) -> bool:
        """Wait until it was made; see :class:`hexkv.ports.Transfer`.

        Raises:
            Exception: the error that the device raised.
        """
        with self._lock:
            if not self._executor.wait(self._changed, lambda: self._over, deadline):
                return False
        if self._failure is not None:
            raise self._failure
        return self._made is not None and self._made.wait(deadline)

    def _step(self) -> None:
        with self._lock:
            move, self._move = self._move, None
            if move is None:
                return
            self._begun = True
        try:
            self._made = move()
        except InvalidRequest as error:
            self._failure = error.with_traceback(None)  # its frames have views of the blocks
        except Exception as error:
            log.exception("the device failed to copy")
            self._failure = error.with_traceback(None)
        del move  # no view of the copied memory is kept
        with self._lock:
            self._over = True
            self._changed.notify_all()
